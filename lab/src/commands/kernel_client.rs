//! Lull's memcached server under vanilla on loopback, loaded by `loadgen` through the kernel's TCP.
//! Such a client batches, which spares the server interrupts: policies are compared under a fleet.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use loadgen::{Arrival, Config, Loop, Report, WarmUp, Workload};
use policies::{Cpus, Policy};
use runtime::{Builder, DriverKind, WaitStrategy};

use crate::Error;
use crate::cores::CoreAssignment;
use crate::polling_config::PollingConfig;
use crate::processes::{ExperimentProcess, ProcessRole, ServerCounts, ServerReady, ServerSpec};

pub(super) struct KernelClientTurn {
    pub(super) cores: CoreAssignment,
    pub(super) driver: DriverKind,
    pub(super) wait: WaitStrategy,
    pub(super) connections: usize,
    /// Requests per second; `None` for a closed loop.
    pub(super) rate: Option<f64>,
    pub(super) records: u64,
    /// Seconds.
    pub(super) warm_up: f64,
    pub(super) duration: f64,
}

/// What the server did from the end of the warm-up on.
pub(super) struct ServerCost {
    pub(super) requests: u64,
    pub(super) waits: u64,
    pub(super) cpu_seconds: f64,
    pub(super) seconds: f64,
}

impl KernelClientTurn {
    /// Starts a server, loads it, and measures both.
    pub(super) fn measure(&self) -> Result<(Report, ServerCost), Error> {
        let role = ProcessRole::Server(ServerSpec {
            policy: Policy::Vanilla,
            driver: self.driver,
            interface: None,
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            cores: Cpus::one(self.cores.server),
            packing_core: self.cores.packing,
            polling: PollingConfig::default(),
            wait: self.wait.to_string(),
            memory: 0,
        });
        let mut server = ExperimentProcess::start(&role, None)?;
        let address = server.receive::<ServerReady>()?.address;
        // A new thread, which the runtime pins: the caller keeps its affinity.
        thread::scope(|scope| scope.spawn(|| self.load(address, &mut server)).join())
            .unwrap_or_else(|_| Err(io::Error::other("the load's thread panicked").into()))
    }

    fn load(
        &self,
        address: SocketAddr,
        server: &mut ExperimentProcess,
    ) -> Result<(Report, ServerCost), Error> {
        let builder = Builder::new().ignore_environment().workers(1).cores(Cpus::one(self.cores.client));
        let mut runtime = builder.driver(DriverKind::Epoll).build()?;
        let warm_up = Duration::from_secs_f64(self.warm_up);
        let config = Config {
            servers: vec![address.into()],
            connections: self.connections,
            depth: 1,
            pacing: self.rate.map_or(Loop::Closed, |rate| Loop::Open { rate, arrival: Arrival::default() }),
            workload: Workload { records: self.records, ..Workload::default() },
            warm_up: WarmUp::Fixed(warm_up),
            duration: Duration::from_secs_f64(self.duration),
            ..Config::default()
        };
        let mut read =
            || -> Result<(ServerCounts, f64), Error> { Ok((server.status()?, server.cpu_seconds()?)) };
        let mut begun = None;
        let report = runtime.block_on(async {
            loadgen::load_records(&config).await?;
            loadgen::run_until(&config, &AtomicBool::new(false), |progress| {
                if progress.elapsed >= warm_up && begun.is_none() {
                    begun = Some((read(), std::time::Instant::now()));
                }
            })
            .await
        })?;
        let (before, from) =
            begun.ok_or_else(|| io::Error::other("the load ended before it was measured"))?;
        let ((before, cpu_before), (after, cpu)) = (before?, read()?);
        let cost = ServerCost {
            requests: after.requests - before.requests,
            waits: after.waits - before.waits,
            cpu_seconds: cpu - cpu_before,
            seconds: from.elapsed().as_secs_f64(),
        };
        Ok((report, cost))
    }
}
