//! The comparison of runtimes on loopback: every server under every load.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde::Serialize;

use crate::Error;
use crate::engine::{
    CoreAssignment, Figure, LoadKind, LoadPlan, Measured, Results, Runner, Turn, time_limit,
};
use crate::experiment_process::{EchoLoadReady, EchoServerReady, ExperimentProcess, ProcessRole};
use crate::peers::{EchoLoadSpec, EchoMeasurement, EchoServerSpec, Peer, PeerService, RequestShape};

#[derive(Debug, Clone, Serialize)]
pub struct PeerComparisonConfig {
    /// What the servers do with a request.
    pub service: PeerService,
    pub rounds: usize,
    /// Seconds of load before each measurement.
    pub warm_up: f64,
    pub duration: f64,
    pub shapes: Vec<RequestShape>,
    pub connections: Vec<usize>,
    /// The number of idle connections whose memory is measured.
    pub idle: usize,
}

impl PeerComparisonConfig {
    /// All loads, or a part of them that takes half a minute if `quick`.
    pub fn new(service: PeerService, quick: bool) -> Self {
        let small = RequestShape::SMALL;
        let pipelined = RequestShape { depth: 16, ..small };
        let large = RequestShape { request: 1024, reply: 1024, depth: 1 };
        let shapes = match service.shape() {
            Some(only) => vec![only],
            None if quick => vec![small, pipelined],
            None => vec![small, large, pipelined],
        };
        Self {
            service,
            // Six are the fewest that give an interval.
            rounds: if quick { 6 } else { 12 },
            warm_up: if quick { 0.1 } else { 0.2 },
            duration: if quick { 0.3 } else { 0.7 },
            shapes,
            connections: if quick { vec![64] } else { vec![1, 64, 1024] },
            idle: if quick { 2000 } else { 10_000 },
        }
    }

    pub fn steps(&self) -> usize {
        self.peers().len() * (1 + self.rounds * self.shapes.len() * self.connections.len())
    }

    pub fn peers(&self) -> Vec<Peer> {
        Peer::ALL.into_iter().filter(|peer| self.service.runs_on(*peer)).collect()
    }
}

/// Measures all servers under all loads. Calls `progress` before each turn.
pub fn compare_peers(
    config: &PeerComparisonConfig,
    cores: CoreAssignment,
    progress: &mut dyn FnMut(&str),
) -> Result<Results, Error> {
    let (service, peers) = (config.service, config.peers());
    let mut runner = Runner::new(cores, progress);
    let mut idle = Vec::new();
    for &peer in &peers {
        runner.begin(&format!("{}, idle", peer.name()));
        idle.push(idle_bytes(service, peer, cores, config.idle)?);
    }
    let names: Vec<String> = peers.iter().map(|peer| peer.name().to_owned()).collect();
    let seconds = (config.warm_up + config.duration) * (peers.len() * config.rounds) as f64;
    for &shape in &config.shapes {
        for &connections in &config.connections {
            let load = |server| EchoLoadSpec {
                server,
                core: cores.client,
                service,
                shape,
                connections,
                warm_up: config.warm_up,
                duration: config.duration,
            };
            let name = format!("{shape}, {connections} connections");
            let (at, limit) = (connections as f64, time_limit(seconds));
            let plan = LoadPlan::new(name, LoadKind::Closed, at, config.rounds, limit);
            runner.measure(plan, &names, |index| measure(service, peers[index], cores, shape, load))?;
        }
    }
    let others: Vec<usize> = (0..peers.len()).filter(|index| peers[*index].is_other_runtime()).collect();
    let mut results = runner.finish(&others);
    for load in &mut results.loads {
        for (row, bytes) in load.rows.iter_mut().zip(&idle) {
            row.figures.insert(Figure::ConnectionBytes, Measured::once(*bytes));
        }
    }
    Ok(results)
}

pub(super) fn start_server(
    service: PeerService,
    peer: Peer,
    cores: CoreAssignment,
    shape: RequestShape,
) -> Result<(ExperimentProcess, EchoServerReady), Error> {
    let role = ProcessRole::EchoServer(EchoServerSpec {
        peer,
        core: cores.server,
        service,
        shape,
        address: Ipv4Addr::LOCALHOST,
        network: None,
        work: Duration::ZERO,
    });
    let mut server = ExperimentProcess::start(&role, None)?;
    let ready: EchoServerReady = server.receive()?;
    service.check(ready.address)?;
    Ok((server, ready))
}

/// Starts a load, and waits until it is measured, or until idle connections are open.
pub(super) fn start_load(spec: EchoLoadSpec) -> Result<ExperimentProcess, Error> {
    let mut load = ExperimentProcess::start(&ProcessRole::EchoLoad(spec), None)?;
    let EchoLoadReady {} = load.receive()?;
    Ok(load)
}

/// Measures a server under a load.
fn measure(
    service: PeerService,
    peer: Peer,
    cores: CoreAssignment,
    shape: RequestShape,
    load: impl FnOnce(SocketAddr) -> EchoLoadSpec,
) -> Result<Turn, Error> {
    let (server, ready) = start_server(service, peer, cores, shape)?;
    let mut client = start_load(load(ready.address))?;
    let counter = ready.allocation_count;
    let (cpu, allocations) = (server.cpu_nanos()?, server.allocations(counter)?);
    let measured: EchoMeasurement = client.receive()?;
    let cpu = server.cpu_nanos()? - cpu;
    let replies = measured.replies.max(1) as f64;
    let allocations = server.allocations(counter)? - allocations;
    Ok(Turn::new([
        (Figure::Throughput, measured.replies as f64 / measured.seconds),
        (Figure::P99, measured.p99_us),
        (Figure::CpuPerRequest, cpu as f64 / 1e3 / replies),
        (Figure::Allocations, allocations as f64 / replies),
        (Figure::LoadBusy, measured.busy * 100.0),
    ]))
}

/// Resident memory of a server per idle connection, in bytes.
fn idle_bytes(
    service: PeerService,
    peer: Peer,
    cores: CoreAssignment,
    connections: usize,
) -> Result<f64, Error> {
    let shape = service.shape().unwrap_or(RequestShape::SMALL);
    let (server, ready) = start_server(service, peer, cores, shape)?;
    let (server_address, core, warm_up, duration) = (ready.address, cores.client, 0.0, 0.0);
    let open = |connections| {
        let server = server_address;
        start_load(EchoLoadSpec { server, core, service, shape, connections, warm_up, duration })
    };
    // What the server allocates once, for its first connection, doesn't count.
    let _first = open(1)?;
    let before = server.resident_bytes()?;
    let _idle = open(connections)?;
    let grown = server.resident_bytes()?.saturating_sub(before);
    Ok(grown as f64 / connections as f64)
}
