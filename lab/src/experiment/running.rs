//! A contender that runs: a server in its own testbed, and the fleet that stays connected to it.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use loadgen::Workload;
use policies::controller::{QueueMode, QueueSettings};
use policies::counters::{PerfCounters, Snapshot};
use policies::host::Interface;
use policies::netlink::netdev::Netdev;
use policies::{Policy, host};

use super::bed::Bed;
use super::contender::Contender;
use super::host::{HostReading, IdleTime, ServerCores, fleet_turn};
use super::plan::Experiment;
use super::server_command::{ServerCommand, with_reply_length};
use crate::Error;
use crate::cores::CoreAssignment;
use crate::fleet::{FleetConfig, FleetLoad, FleetMeasurement, FleetPacing, FleetRequests};
use crate::network::{Network, PollingConfig};
use crate::peers::{EchoServerSpec, RequestShape};
use crate::processes::{ExperimentProcess, NOT_ATTACHED, ProcessRole, RunningPolicy, ServerReady};
use crate::rounds::Turn;
use crate::testbed::{Receiver, SERVER_ADDRESS, Testbed, fleet_address};

/// How far the seeds of a contender's fleets are apart: contenders have seeds that follow one another.
const OTHER_FLEET: u64 = 1000;
/// How long a server may take until it accepts connections.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// A contender that runs. Dropping it ends its processes and removes its testbed.
#[derive(Debug)]
pub(super) struct RunningContender {
    // The fleets end before the server, and both before their testbed.
    fleets: Vec<ExperimentProcess>,
    attacher: Option<ExperimentProcess>,
    server: ExperimentProcess,
    testbed: Testbed,
    interface: Interface,
    /// Cycles, instructions and cache misses of the only worker's core, if the machine counts them.
    perf: Option<PerfCounters>,
    cores: ServerCores,
    /// Whether what receives is set here, and not by the server's policy.
    sets_receiver: bool,
    adapts: bool,
    /// How many programs on the fleet's core attach to servers of other contenders.
    other_attachers: usize,
    pub(super) policy: Option<RunningPolicy>,
}

impl RunningContender {
    pub(super) fn start(
        contender: &Contender,
        bed: &Bed,
        experiment: &Experiment,
        seed: u64,
    ) -> Result<Self, Error> {
        let (testbed, cores) = (bed.testbed()?, &bed.cores);
        let memory = match &experiment.requests {
            FleetRequests::Memcached(workload) => workload_memory(workload),
            FleetRequests::Text { .. } => 0,
        };
        let packs = contender.runs(Policy::Packing);
        let first = experiment.receivers.first().copied().unwrap_or_default();
        let receivers = |packs: bool| if packs { vec![cores.packing] } else { cores.servers.clone() };
        first.prepare(&testbed, &receivers(packs))?;
        let (server, address, policy) = start_server(contender, &testbed, bed, memory)?;
        let interface =
            testbed.server.run(|| host::interface(&testbed.interface).map_err(io::Error::other))?;
        // As it runs: on a kernel without kernel-thread, vanilla does.
        let polled = policy.as_ref().is_some_and(|policy| policy.ran == Policy::KernelThread.name());
        // A thread that polls all the time needs no interrupt.
        let model = if polled { Receiver::Fifo } else { first };
        let sets_receiver = !polled && first != Receiver::Interrupt;
        let receivers = receivers(packs || polled);
        let server_cores = ServerCores { cores: cores.clone(), workers: bed.workers(), receivers, model };
        keep_receiver(sets_receiver, &server_cores, &testbed, server.child.id())?;
        let fleets = start_fleets(experiment, &testbed, address, bed, seed)?;
        // A server without connections has no queue that could be attached to.
        let attacher = start_attacher(contender, &testbed, cores, server.child.id())?;
        let attached = experiment.contenders.iter().filter(|other| other.is_attached()).count();
        let others = attached - usize::from(contender.is_attached());
        Ok(Self {
            fleets,
            attacher,
            server,
            testbed,
            interface,
            perf: if let [core] = bed.worker_cores()[..] { PerfCounters::start(core).ok() } else { None },
            cores: server_cores,
            sets_receiver,
            adapts: contender.polls(),
            other_attachers: if cores.packing_is_shared() { others } else { 0 },
            policy,
        })
    }

    /// What receives in the next turns.
    pub(super) fn receive_by(&mut self, receiver: Receiver) {
        if self.sets_receiver {
            self.cores.model = receiver;
        }
    }

    /// Runs a load for some seconds, of which nothing is counted.
    pub(super) fn settle(&mut self, pacing: FleetPacing, seconds: f64) -> Result<(), Error> {
        if seconds > 0.0 {
            self.run_fleets(&FleetLoad { pacing, warm_up: 0.0, duration: seconds })?;
        }
        Ok(())
    }

    /// The load's rates are for one worker; the fleets share those of all workers.
    fn run_fleets(&mut self, load: &FleetLoad) -> Result<FleetMeasurement, Error> {
        let pacing = load.pacing.times(self.cores.workers as f64 / self.fleets.len() as f64);
        let load = FleetLoad { pacing, ..*load };
        self.fleets.iter_mut().try_for_each(|fleet| fleet.start_load(&load))?;
        let measured: Result<_, _> = self.fleets.iter_mut().map(ExperimentProcess::measured).collect();
        Ok(FleetMeasurement::together(measured?))
    }

    pub(super) fn measure(&mut self, load: &FleetLoad) -> Result<Turn, Error> {
        keep_receiver(self.sets_receiver, &self.cores, &self.testbed, self.server.child.id())?;
        // Before and after the whole run the server is idle, so that no CPU time is attributed to
        // the wrong side.
        let before = self.read()?;
        let measurement = self.run_fleets(load)?;
        let after = self.read()?;
        let mut turn = fleet_turn(measurement, &before, &after, &self.cores, self.other_attachers);
        if !keep_receiver(self.sets_receiver, &self.cores, &self.testbed, self.server.child.id())? {
            turn.invalid = Some("the server's supervisor has changed what receives".to_owned());
        }
        Ok(turn)
    }

    fn read(&mut self) -> Result<HostReading, Error> {
        let Self { attacher, server, testbed, interface, perf, cores, adapts, .. } = self;
        let (adapts, interface) = (*adapts, &*interface);
        let counted =
            if matches!(cores.model, Receiver::Rps | Receiver::Interrupt) { cores.own() } else { Vec::new() };
        let idle = counted.into_iter().map(IdleTime::of).collect::<io::Result<_>>()?;
        let (cpu, user) = server.cpu_seconds()?;
        let snapshot = testbed.server.run(|| Snapshot::take(interface).map_err(io::Error::other))?;
        let queue = if adapts { testbed.server.run(|| queue_mode(interface))? } else { None };
        let attach = attacher.as_mut().map(|attacher| -> Result<_, Error> {
            Ok((attacher.cpu_seconds()?.0, attacher.attach_progress()?))
        });
        let (attach, retransmitted) = (attach.transpose()?, testbed.server_retransmissions()?);
        let perf = perf.as_mut().and_then(|perf| perf.read().ok());
        Ok(HostReading { cpu, user, snapshot, idle, retransmitted, queue, attach, perf })
    }
}

/// Sets what receives the queue's packets, if it is not that of the experiment. Returns whether it
/// was.
fn keep_receiver(sets: bool, cores: &ServerCores, testbed: &Testbed, server: u32) -> io::Result<bool> {
    let ServerCores { receivers, model, .. } = cores;
    let receives = !sets || model.receives(testbed, server, receivers)?;
    if !receives {
        model.receive(testbed, server, receivers)?;
    }
    Ok(receives)
}

/// Starts the fleets one after the other. They share the connections of all workers.
fn start_fleets(
    experiment: &Experiment,
    testbed: &Testbed,
    address: SocketAddr,
    bed: &Bed,
    seed: u64,
) -> Result<Vec<ExperimentProcess>, Error> {
    let SocketAddr::V4(server) = address else {
        return Err(format!("load: a fleet speaks IPv4, and the server listens on {address}").into());
    };
    let requests = with_reply_length(&experiment.requests, testbed, server)?;
    let cores = bed.fleet_cores();
    let start = |(core, number): (&u32, u8)| {
        let fleet = FleetConfig {
            server,
            link: bed.link(),
            address: fleet_address(number),
            connections: (experiment.connections * bed.workers()).div_ceil(cores.len()),
            requests: requests.clone(),
            seed: seed + u64::from(number) * OTHER_FLEET,
        };
        // The others ask for the same records.
        let role = ProcessRole::Fleet { fleet, core: *core, stores: number == 0 };
        let mut fleet = bed.start_fleet(&role, testbed)?;
        fleet.result::<()>("load")?;
        Ok(fleet)
    };
    cores.iter().zip(0..).map(start).collect()
}

/// How the first queue of an interface is driven now, by its NAPI's values.
fn queue_mode(interface: &Interface) -> io::Result<Option<String>> {
    let napi = interface.queues.iter().find_map(|queue| queue.napi.as_ref());
    let Some(napi) = napi.map(|napi| Netdev::open()?.napi(napi.id)).transpose()? else { return Ok(None) };
    let nanos = |value: Option<u64>| Duration::from_nanos(value.unwrap_or(0));
    let (grace, suspend) = (nanos(napi.gro_flush_timeout), nanos(napi.irq_suspend_timeout));
    let settings = QueueSettings::preset(napi.defer_hard_irqs.unwrap_or(0), grace, suspend);
    Ok(Some(match settings.mode {
        // Without a suspend timeout only timed mode defers.
        QueueMode::Grace if suspend.is_zero() => QueueMode::Timed.to_string(),
        // Whether waits poll, too, the values don't tell.
        QueueMode::Grace => format!("grace time {} µs", settings.grace_time.as_micros()),
        mode => mode.to_string(),
    }))
}

fn start_server(
    contender: &Contender,
    testbed: &Testbed,
    bed: &Bed,
    memory: u64,
) -> Result<(ExperimentProcess, SocketAddr, Option<RunningPolicy>), Error> {
    let cores = &bed.cores;
    let network = |policy, driver, polling| {
        let interface = Some(testbed.interface.clone());
        let packing_core = bed.card.is_none().then_some(cores.packing);
        Network { policy, driver, interface, workers: bed.server_workers(), packing_core, polling }
    };
    let role = match contender {
        Contender::Lull { policy, driver, polling } => ProcessRole::Server {
            network: network(*policy, *driver, *polling),
            cores: bed.worker_cores(),
            address: IpAddr::V4(SERVER_ADDRESS),
            memory,
        },
        Contender::Echo { service, peer, policy, work } => ProcessRole::EchoServer(EchoServerSpec {
            peer: *peer,
            core: cores.server(),
            service: *service,
            shape: RequestShape::SMALL,
            address: SERVER_ADDRESS,
            network: policy.map(|(policy, driver)| network(policy, driver, PollingConfig::default())),
            work: *work,
        }),
        Contender::Program { server: ServerCommand { program, arguments, name }, .. } => {
            let (program, arguments, cores) = (program.clone(), arguments.clone(), cores.servers.clone());
            let role = ProcessRole::Program { program, arguments, cores };
            let mut server = bed.start_server(&role, testbed)?;
            await_listening(name, &mut server, testbed)?;
            return Ok((server, ServerCommand::address().into(), None));
        }
    };
    let mut server = bed.start_server(&role, testbed)?;
    let ServerReady { address, policy } = server.receive()?;
    Ok((server, address, policy))
}

/// Starts what attaches to the server, if it is to be attached to. It has the core of the network
/// work under packing: a third one, or else the fleet's, whose pauses are left out. On the server's
/// own core it would add to the latencies what it does not add on a machine with more cores.
fn start_attacher(
    contender: &Contender,
    testbed: &Testbed,
    cores: &CoreAssignment,
    server: u32,
) -> Result<Option<ExperimentProcess>, Error> {
    let Contender::Program { attached: Some(poll_interval), .. } = contender else { return Ok(None) };
    let role = ProcessRole::Attach { pid: server, poll_interval: *poll_interval, core: cores.packing };
    let mut attacher = ExperimentProcess::start(&role, Some(&testbed.server))?;
    attacher.result::<()>(NOT_ATTACHED)?;
    Ok(Some(attacher))
}

/// Waits until a server of another project accepts connections.
fn await_listening(name: &str, server: &mut ExperimentProcess, testbed: &Testbed) -> Result<(), Error> {
    let address = ServerCommand::address();
    let failed = |reason: String| Err(format!("{name} at {address}: {reason}").into());
    let deadline = Instant::now() + START_TIMEOUT;
    while testbed.server.run(|| TcpStream::connect(address)).is_err() {
        if let Some(status) = server.child.try_wait()? {
            return failed(format!("exited before it listened ({status})"));
        }
        if Instant::now() > deadline {
            return failed(format!("does not listen after {} s", START_TIMEOUT.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// The memory that a server needs to keep all records of a workload, in bytes.
fn workload_memory(workload: &Workload) -> u64 {
    /// The item's header, its place in the hash table, and the rounding of sizes up to those of
    /// slabs.
    const OVERHEAD: f64 = 150.0;
    // Twice the mean, because a slab class holds what it once got.
    let record = workload.key.mean() + workload.value.mean() + OVERHEAD;
    (workload.records as f64 * record * 2.0) as u64
}
