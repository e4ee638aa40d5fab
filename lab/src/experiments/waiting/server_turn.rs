//! One turn: the memcached server at low load on loopback, under one strategy.

use std::net::{IpAddr, Ipv4Addr};

use policies::{Cpus, Policy};
use runtime::WaitStrategy;
use serde::Serialize;

use super::super::core_assignment::CoreAssignment;
use super::config::WaitingConfig;
use crate::Error;
use crate::experiment_process::{ExperimentProcess, LoadSpec, ProcessRole, ServerSpec};
use crate::polling_config::PollingConfig;

const RECORDS: u64 = 1_000;

/// The memcached server at low load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ServerCost {
    /// Requests that the server has answered.
    pub requests: u64,
    /// Median latency at the client, µs.
    pub p50_us: f64,
    /// 99th percentile of the latency at the client, µs.
    pub p99_us: f64,
    /// CPU time of the server's worker over elapsed time, 0 to 1.
    pub cpu_share: f64,
}

/// Measures one strategy; `None` if requests failed or were not answered, so that the latency is not that of the load asked for.
pub(super) fn measure(
    strategy: WaitStrategy,
    cores: CoreAssignment,
    config: &WaitingConfig,
) -> Result<Option<ServerCost>, Error> {
    let role = ProcessRole::Server(ServerSpec {
        policy: Policy::Vanilla,
        interface: None,
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        cores: Cpus::one(cores.server),
        packing_core: cores.packing,
        polling: PollingConfig::default(),
        wait: strategy,
        driver: config.driver,
        memory: 0,
    });
    let mut server = ExperimentProcess::start(&role, None)?;
    let ready = server.server_ready()?;
    let role = ProcessRole::Load(LoadSpec {
        interface: None,
        server: ready.address,
        cores: Cpus::one(cores.client),
        connections: config.connections,
        rate: Some(config.rate),
        warm_up: config.server_warm_up,
        duration: config.server_duration,
        records: RECORDS,
        load_records: true,
    });
    let mut load = ExperimentProcess::start(&role, None)?;
    let (measured, counted) = load.measure(&mut server)?;
    load.finish()?;
    server.finish()?;
    let complete = measured.errors + measured.unanswered == 0;
    Ok(complete.then(|| ServerCost {
        requests: counted.requests,
        p50_us: measured.latency.p50,
        p99_us: measured.latency.p99,
        cpu_share: counted.thread_cpu / counted.seconds,
    }))
}
