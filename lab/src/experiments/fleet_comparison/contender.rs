//! A server in its own testbed, and the fleet that stays connected to it.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use policies::counters::Snapshot;
use policies::host::Interface;
use policies::law::{LatencyBudget, QueueMode, QueueSettings};
use policies::netlink::netdev::{NapiSetting, Netdev};
use policies::{Cpus, Policy, host};
use runtime::{DriverKind, WaitStrategy};
use serde::Serialize;

use super::super::contestant::Contestant;
use super::super::core_assignment::CoreAssignment;
use super::super::memcached_process::await_listening;
use super::measurement::{AttachReading, HostReading, TurnMeasurement};
use super::server_command::{ServerCommand, with_reply_length};
use crate::Error;
use crate::experiment_process::{
    AttachSpec, EchoServerReady, ExperimentProcess, FleetSpec, ProcessRole, ProgramSpec, ServerReady,
    ServerSpec,
};
use crate::fleet::{FleetConfig, FleetLoad, FleetPacing, FleetRequests};
use crate::peers::{EchoServerNetwork, EchoServerSpec, Peer, PeerService, RequestShape};
use crate::polling_config::PollingConfig;
use crate::testbed::{
    CLIENT_INTERFACE, FLEET_ADDRESS, FLEET_MAC, SERVER_ADDRESS, SERVER_INTERFACE, SERVER_MAC, Testbed,
    ring_drops,
};

/// A server that takes part in a comparison under a fleet.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// This project's memcached server.
    Lull {
        /// The policy.
        policy: Policy,
        /// The driver.
        driver: DriverKind,
        /// How it adapts under kernel polling.
        polling: PollingConfig,
        /// How the worker waits.
        #[serde(serialize_with = "as_text")]
        wait: WaitStrategy,
    },
    /// The same service on a runtime.
    Echo {
        /// What it does with a request.
        service: PeerService,
        /// The runtime.
        peer: Peer,
        /// Lull's policy and driver; `None` for the other runtimes, which run as they are.
        network: Option<(Policy, DriverKind, PollingConfig)>,
        /// Time that the server spends computing for each request.
        work: Duration,
    },
    /// A server of another project, as it is.
    Program {
        /// How it is started.
        server: ServerCommand,
        /// The latency budget with which it is attached to from outside, as `policies attach` does. `None`: not at all.
        attached: Option<LatencyBudget>,
    },
}

fn as_text<S: serde::Serializer>(wait: &WaitStrategy, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(wait)
}

impl Contender {
    /// Each contestant as this project's memcached server; kernel polling once for each of `polling`.
    pub fn lull(contestants: &[Contestant], polling: &[PollingConfig], wait: WaitStrategy) -> Vec<Self> {
        let mut contenders = Vec::new();
        for &Contestant { policy, driver } in contestants {
            let variants = if policy == Policy::KernelPolling { polling } else { &polling[..1] };
            contenders.extend(variants.iter().map(|&polling| Self::Lull { policy, driver, polling, wait }));
        }
        contenders
    }

    /// Lull's echo server, which computes for `work` with each request.
    pub fn lull_echo(policy: Policy, driver: DriverKind, polling: PollingConfig, work: Duration) -> Self {
        Self::lull_peer(PeerService::Echo, policy, driver, polling, work)
    }

    fn lull_peer(
        service: PeerService,
        policy: Policy,
        driver: DriverKind,
        polling: PollingConfig,
        work: Duration,
    ) -> Self {
        Self::Echo { service, peer: Peer::LullEpoll, network: Some((policy, driver, polling)), work }
    }

    /// A service on the other runtimes that have it, as they run, and on Lull under each policy, on the driver that `auto`
    /// chooses for it and on epoll.
    pub fn peers(service: PeerService, polling: PollingConfig) -> Vec<Self> {
        let others = [Peer::Tokio, Peer::Monoio, Peer::Compio, Peer::BareEpoll];
        let others = others.into_iter().filter(|peer| service.runs_on(*peer));
        let others = others.map(|peer| Self::Echo { service, peer, network: None, work: Duration::ZERO });
        let lull = [
            (Policy::Vanilla, DriverKind::Uring),
            (Policy::Vanilla, DriverKind::Epoll),
            (Policy::Packing, DriverKind::Uring),
            (Policy::Suppression, DriverKind::Epoll),
            (Policy::KernelPolling, DriverKind::Epoll),
            (Policy::KernelPolling, DriverKind::Hybrid),
        ];
        let lull =
            lull.map(|(policy, driver)| Self::lull_peer(service, policy, driver, polling, Duration::ZERO));
        others.chain(lull).collect()
    }

    /// A server as it runs, and the same under kernel polling from outside, once for each latency budget.
    pub fn attached(server: &ServerCommand, budgets: &[LatencyBudget]) -> Vec<Self> {
        let attached = std::iter::once(None).chain(budgets.iter().copied().map(Some));
        attached.map(|attached| Self::Program { server: server.clone(), attached }).collect()
    }

    /// The name in tables.
    pub fn name(&self) -> String {
        match self {
            Self::Lull { policy: policy @ Policy::KernelPolling, driver, polling, .. } => {
                format!("{policy}, {driver}{polling}")
            }
            Self::Lull { policy, driver, .. } => format!("{policy}, {driver}"),
            Self::Echo { network: Some((policy, driver, _)), work, .. } if work.is_zero() => {
                format!("lull, {policy}, {driver}")
            }
            Self::Echo { network: Some((policy, driver, _)), work, .. } => {
                format!("lull, {policy}, {driver}, {} µs of work", work.as_micros())
            }
            Self::Echo { peer, .. } => peer.name().to_owned(),
            Self::Program { server, attached: None } => server.name.clone(),
            Self::Program { server, attached: Some(budget) } => {
                format!("{}, attached, budget {budget} µs", server.name)
            }
        }
    }

    /// Whether its worker never sleeps, and so disturbs the other contenders on its core.
    pub(super) fn spins(&self) -> bool {
        matches!(self, Self::Lull { wait: WaitStrategy::Spin, .. })
    }

    /// Whether a kernel thread is to poll its queue all the time, also while other contenders are measured.
    pub(super) fn has_polling_thread(&self) -> bool {
        self.policy().is_some_and(|(policy, _)| policy == Policy::KernelThread)
    }

    /// Whether its queue is under kernel polling.
    pub fn polls(&self) -> bool {
        self.is_attached() || self.policy().is_some_and(|(policy, _)| policy == Policy::KernelPolling)
    }

    /// Whether it is a server of another project that is attached to from outside.
    pub fn is_attached(&self) -> bool {
        matches!(self, Self::Program { attached: Some(_), .. })
    }

    /// The policy and the driver, if the server is Lull's.
    pub fn policy(&self) -> Option<(Policy, DriverKind)> {
        match self {
            Self::Lull { policy, driver, .. } => Some((*policy, *driver)),
            Self::Echo { network, .. } => network.map(|(policy, driver, _)| (policy, driver)),
            Self::Program { .. } => None,
        }
    }
}

/// The sizes of requests and replies of an echo server under the fleet.
const ECHO: RequestShape = RequestShape { request: 40, reply: 200, depth: 1 };

/// What the fleet asks a server of this service.
pub fn requests_for(service: PeerService) -> FleetRequests {
    let RequestShape { request, reply, .. } = service.shape().unwrap_or(ECHO);
    match service.text() {
        Some(text) => FleetRequests::Text { request: text.to_owned(), reply: Some(reply) },
        None => FleetRequests::Fixed { request, reply },
    }
}

/// What a Lull server's worker runs.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct RunningPolicy {
    /// The policy that runs.
    pub ran: String,
    /// Why it is not the requested one.
    pub steps_down: Vec<String>,
    /// The first message of a memcached server: its worker's report, and the knobs read back.
    pub ready: Option<ServerReady>,
}

/// A contender that runs. Dropping it ends its processes and removes its testbed.
#[derive(Debug)]
pub(super) struct RunningContender {
    // The processes end before their testbed.
    fleet: ExperimentProcess,
    /// What attaches to the server from outside.
    attacher: Option<ExperimentProcess>,
    server: ExperimentProcess,
    testbed: Testbed,
    interface: Interface,
    cores: CoreAssignment,
    /// The core that should receive the server's packets.
    receiver: u32,
    depth: usize,
    /// Whether a law drives its queue.
    adapts: bool,
    /// What its worker runs, if it is Lull's.
    pub(super) policy: Option<RunningPolicy>,
}

impl RunningContender {
    /// Starts the server and connects the fleet.
    pub(super) fn start(
        contender: &Contender,
        cores: CoreAssignment,
        connections: usize,
        depth: usize,
        requests: &FleetRequests,
        seed: u64,
    ) -> Result<Self, Error> {
        let testbed = Testbed::new(1)?;
        let (server, address, policy) = start_server(contender, &testbed, cores)?;
        let records = match requests {
            FleetRequests::Memcached(workload) => workload.records,
            FleetRequests::Fixed { .. } | FleetRequests::Text { .. } => 0,
        };
        let SocketAddr::V4(address) = address else {
            return Err(Error::LoadProcess(format!(
                "a fleet speaks IPv4, and the server listens on {address}"
            )));
        };
        let requests = with_reply_length(requests, &testbed, address)?;
        let fleet = FleetConfig {
            interface: CLIENT_INTERFACE.to_owned(),
            mac: FLEET_MAC,
            address: FLEET_ADDRESS,
            server_mac: SERVER_MAC,
            server: address,
            connections,
            depth,
            requests,
            seed,
        };
        let role = ProcessRole::Fleet(FleetSpec { fleet, core: cores.client, records });
        let mut fleet = ExperimentProcess::start(&role, Some(&testbed.client))?;
        fleet.fleet_ready()?;
        // A server without connections has no queue that could be attached to.
        let attacher = start_attacher(contender, &testbed, cores, server.id())?;
        let interface = testbed.server.run(|| host::interface(SERVER_INTERFACE).map_err(io::Error::other))?;
        let packing = contender.policy().is_some_and(|(policy, _)| policy == Policy::Packing);
        // As it runs: on a kernel without kernel-thread, vanilla does.
        let polled = policy.as_ref().is_some_and(|policy| policy.ran == Policy::KernelThread.name());
        let receiver = if packing || polled { cores.packing } else { cores.server };
        let adapts = contender.polls();
        Ok(Self { fleet, attacher, server, testbed, interface, cores, receiver, depth, adapts, policy })
    }

    /// Runs a load for some seconds, of which nothing is counted.
    pub(super) fn settle(&mut self, pacing: FleetPacing, seconds: f64) -> Result<(), Error> {
        if seconds > 0.0 {
            self.fleet.run_fleet(&FleetLoad { pacing, warm_up: 0.0, duration: seconds })?;
        }
        Ok(())
    }

    /// Runs a load, and reads what the host did meanwhile.
    pub(super) fn measure(&mut self, load: &FleetLoad) -> Result<TurnMeasurement, Error> {
        let Self { fleet, attacher, server, testbed, interface, adapts, .. } = self;
        let adapts = *adapts;
        let (server, testbed, interface) = (&*server, &*testbed, &*interface);
        let mut read = || -> Result<HostReading, Error> {
            let cpu = server.cpu_seconds()?;
            let snapshot = testbed.server.run(|| Snapshot::take(interface).map_err(io::Error::other))?;
            let drops = testbed.client.run(ring_drops)?;
            let queue = if adapts { testbed.server.run(|| queue_mode(interface))? } else { None };
            let attach = attacher.as_mut().map(|attacher| -> Result<_, Error> {
                Ok(AttachReading { cpu: attacher.cpu_seconds()?, progress: attacher.attach_progress()? })
            });
            let (attach, retransmitted) = (attach.transpose()?, testbed.server_retransmissions()?);
            Ok(HostReading { cpu, snapshot, retransmitted, drops, queue, attach })
        };
        // Before and after the whole run the server is idle, so that no CPU time is attributed to the wrong side.
        let before = read()?;
        let measurement = fleet.run_fleet(load)?;
        let after = read()?;
        Ok(TurnMeasurement::new(*load, measurement, &before, &after, self.cores, self.receiver, self.depth))
    }
}

/// How the first queue of an interface is driven now, by its NAPI's values.
fn queue_mode(interface: &Interface) -> io::Result<Option<String>> {
    let napi = interface.queues.iter().find_map(|queue| queue.napi.as_ref());
    let Some(napi) = napi.map(|napi| Netdev::open()?.napi(napi.id)).transpose()? else { return Ok(None) };
    let nanos = |value: Option<u64>| Duration::from_nanos(value.unwrap_or(0));
    let (grace, suspend) = (nanos(napi.gro_flush_timeout), nanos(napi.irq_suspend_timeout));
    let settings = QueueSettings::preset(napi.defer_hard_irqs.unwrap_or(0), grace, suspend);
    Ok(Some(match settings.mode {
        QueueMode::Grace => format!("{} {} µs", settings.mode, settings.grace_time.as_micros()),
        mode => mode.to_string(),
    }))
}

fn start_server(
    contender: &Contender,
    testbed: &Testbed,
    cores: CoreAssignment,
) -> Result<(ExperimentProcess, SocketAddr, Option<RunningPolicy>), Error> {
    match contender {
        Contender::Lull { policy, driver, polling, wait } => {
            let role = ProcessRole::Server(ServerSpec {
                policy: *policy,
                driver: *driver,
                interface: Some(SERVER_INTERFACE.to_owned()),
                address: IpAddr::V4(SERVER_ADDRESS),
                core: cores.server,
                packing_core: cores.packing,
                polling: *polling,
                grace_time_turns: None,
                wait: *wait,
            });
            let mut server = ExperimentProcess::start(&role, Some(&testbed.server))?;
            let ready = server.server_ready()?;
            let address = ready.address;
            let (ran, steps_down) = (ready.ran.clone(), ready.steps_down.clone());
            Ok((server, address, Some(RunningPolicy { ran, steps_down, ready: Some(ready) })))
        }
        Contender::Echo { service, peer, network, work } => {
            if network.is_none() {
                interrupt_by_thread(testbed, cores.server)?;
            }
            let network = network.map(|(policy, driver, polling)| EchoServerNetwork {
                policy,
                driver,
                interface: SERVER_INTERFACE.to_owned(),
                packing_core: cores.packing,
                polling,
            });
            let role = ProcessRole::EchoServer(EchoServerSpec {
                peer: *peer,
                core: cores.server,
                service: *service,
                shape: service.shape().unwrap_or(ECHO),
                address: SERVER_ADDRESS,
                network,
                work: *work,
            });
            let mut server = ExperimentProcess::start(&role, Some(&testbed.server))?;
            let EchoServerReady { address, ran, steps_down, .. } = server.receive()?;
            testbed.server.run(|| service.check(address))?;
            Ok((server, address, ran.map(|ran| RunningPolicy { ran, steps_down, ready: None })))
        }
        Contender::Program { server: ServerCommand { program, arguments, name }, .. } => {
            interrupt_by_thread(testbed, cores.server)?;
            let address = ServerCommand::address();
            let role = ProcessRole::Program(ProgramSpec {
                program: program.clone(),
                arguments: arguments.clone(),
                core: cores.server,
            });
            let mut server = ExperimentProcess::start(&role, Some(&testbed.server))?;
            let connects = || testbed.server.run(|| TcpStream::connect(address)).is_ok();
            await_listening(Path::new(&format!("{name} at {address}")), connects, || server.try_wait())?;
            Ok((server, address.into(), None))
        }
    }
}

/// Starts what attaches to the server, if it is to be attached to. It has the core of the network work under packing: a
/// third one, or else the fleet's, whose pauses are left out. On the server's own core it would add to the latencies what
/// it does not add on a machine with more cores.
fn start_attacher(
    contender: &Contender,
    testbed: &Testbed,
    cores: CoreAssignment,
    server: u32,
) -> Result<Option<ExperimentProcess>, Error> {
    let Contender::Program { attached: Some(latency_budget), .. } = contender else { return Ok(None) };
    let role = ProcessRole::Attach(AttachSpec {
        pid: server,
        interface: SERVER_INTERFACE.to_owned(),
        latency_budget: *latency_budget,
        core: cores.packing,
    });
    let mut attacher = ExperimentProcess::start(&role, Some(&testbed.server))?;
    attacher.attached()?;
    Ok(Some(attacher))
}

/// Has the server's queue polled by a real-time kernel thread on the server's core, as Lull's vanilla policy does on a
/// device without interrupts: the same for servers that know nothing of policies.
fn interrupt_by_thread(testbed: &Testbed, core: u32) -> Result<(), Error> {
    let set = || -> io::Result<()> {
        let mut netdev = Netdev::open()?;
        for napi in host::interface(SERVER_INTERFACE)
            .map_err(io::Error::other)?
            .queues
            .into_iter()
            .filter_map(|queue| queue.napi)
        {
            netdev.set_napi(napi.id, NapiSetting::Threaded, 1)?;
            let thread = netdev.napi(napi.id)?.pid.and_then(|pid| i32::try_from(pid).ok());
            if let Some(thread) = thread.and_then(rustix::process::Pid::from_raw) {
                Cpus::one(core).pin(Some(thread))?;
                host::scheduler::set_fifo_priority(thread, host::scheduler::INTERRUPT_THREAD_PRIORITY)?;
            }
        }
        Ok(())
    };
    Ok(testbed.server.run(set)?)
}
