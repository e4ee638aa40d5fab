//! The comparison of runtimes: every echo server under every load, in interleaved rounds.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use loadgen::interleaved_rounds::{DistanceClass, RepeatPolicy, Round, Rounds, figures};
use loadgen::medians::{Interval, median, median_interval};
use serde::Serialize;

use super::core_assignment::CoreAssignment;
use super::steal::STEAL_LIMIT;
use super::turn_conditions::{ConditionsGuard, MeasuredRounds, classes_by_rounds, name_classes, time_limit};
use crate::Error;
use crate::experiment_process::{EchoLoadReady, EchoServerReady, ExperimentProcess, ProcessRole};
use crate::peers::{EchoLoadSpec, EchoMeasurement, EchoServerSpec, Peer, PeerService, RequestShape};

/// How much is measured.
#[derive(Debug, Clone, Serialize)]
pub struct PeerComparisonConfig {
    /// What the servers do with a request.
    pub service: PeerService,
    /// Rounds of each load; each measures every server once.
    pub rounds: usize,
    /// Seconds of load before each measurement.
    pub warm_up: f64,
    /// Seconds of a measurement.
    pub duration: f64,
    /// The sizes of requests and replies.
    pub shapes: Vec<RequestShape>,
    /// The numbers of connections.
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
            rounds: if quick { 6 } else { 7 },
            warm_up: if quick { 0.1 } else { 0.2 },
            duration: if quick { 0.3 } else { 0.7 },
            shapes,
            connections: if quick { vec![64] } else { vec![1, 64, 1024] },
            idle: if quick { 2000 } else { 10_000 },
        }
    }

    /// The number of measurements.
    pub fn steps(&self) -> usize {
        self.peers().len() * (1 + self.rounds * self.shapes.len() * self.connections.len())
    }

    /// The runtimes that have the service.
    pub fn peers(&self) -> Vec<Peer> {
        Peer::ALL.into_iter().filter(|peer| self.service.runs_on(*peer)).collect()
    }
}

/// One server under one load: medians over the rounds.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct PeerRow {
    /// The server.
    pub name: &'static str,
    /// The class of distance between the cores in which it was measured.
    pub class: DistanceClass,
    /// The number of rounds.
    pub rounds: usize,
    /// The sizes of requests and replies.
    pub workload: String,
    /// The number of connections.
    pub connections: usize,
    /// Requests per second.
    pub qps: f64,
    /// 99th percentile of the latency, µs.
    pub p99_us: f64,
    /// CPU time of the server's thread per request, µs.
    pub cpu_us_per_request: f64,
    /// CPU time per request over the lowest of the other projects' runtimes in the same round.
    pub cpu_ratio_to_best_other: Interval,
    /// Allocations of the server process per request.
    pub allocations_per_request: f64,
    /// CPU time of the client's thread over elapsed time, 0 to 1.
    pub client_busy: f64,
    /// Resident memory of the server process per idle connection, in bytes.
    pub bytes_per_idle_connection: f64,
}

/// One server measured once.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct PeerMeasurement {
    /// What the load measured.
    pub client: EchoMeasurement,
    /// CPU time of the server's thread per request, µs.
    pub cpu_us: f64,
    /// Allocations of the server process per request.
    pub allocations: f64,
}

/// What a comparison of servers measured.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct PeerResults {
    /// A row for each server and load, by class of distance; the class with most rounds first.
    pub rows: Vec<PeerRow>,
    /// Every turn under each load.
    pub runs: Vec<MeasuredRounds<PeerMeasurement>>,
}

/// Measures all servers under all loads. Calls `progress` before each turn.
///
/// # Errors
/// If a server or a load can't be run.
pub fn compare_peers(
    config: &PeerComparisonConfig,
    cores: CoreAssignment,
    mut progress: impl FnMut(&str),
) -> Result<PeerResults, Error> {
    let (service, peers) = (config.service, config.peers());
    let mut idle = Vec::new();
    for &peer in &peers {
        progress(&format!("{}, idle", peer.name()));
        idle.push(idle_bytes(service, peer, cores, config.idle)?);
    }
    let mut loads = Vec::new();
    let mut runs = Vec::new();
    let names: Vec<String> = peers.iter().map(|peer| peer.name().to_owned()).collect();
    for &shape in &config.shapes {
        for &connections in &config.connections {
            let seconds = (config.warm_up + config.duration) * (peers.len() * config.rounds) as f64;
            let mut rounds = Rounds::new(peers.len(), config.rounds)
                .repeat_above(STEAL_LIMIT, RepeatPolicy::Once)
                .time_limit(time_limit(seconds));
            while let Some(turn) = rounds.next_turn() {
                let peer = peers[turn.contestant()];
                let name = format!("{}, {shape}, {connections} connections", peer.name());
                if !turn.is_repeat() {
                    progress(&name);
                }
                let load = |server| EchoLoadSpec {
                    server,
                    core: cores.client,
                    service,
                    shape,
                    connections,
                    warm_up: config.warm_up,
                    duration: config.duration,
                };
                let guard = ConditionsGuard::begin(cores)?;
                let measurement = measure(service, peer, cores, shape, load)?;
                rounds.finish_turn(turn, Some(measurement), guard.end()?);
            }
            loads.push((shape, connections));
            runs.push(MeasuredRounds {
                load: format!("{shape}, {connections} connections"),
                contestants: names.clone(),
                finished: rounds.finish(),
            });
        }
    }
    name_classes(&mut runs);
    let mut rows = Vec::new();
    for class in classes_by_rounds(&runs) {
        for (&(shape, connections), run) in loads.iter().zip(&runs) {
            let in_class = run.finished.classes.iter().find(|it| it.class == class && !it.rounds.is_empty());
            rows.extend(
                in_class
                    .iter()
                    .flat_map(|it| peer_rows(class, &peers, (shape, connections), &it.rounds, &idle)),
            );
        }
    }
    Ok(PeerResults { rows, runs })
}

fn peer_rows(
    class: DistanceClass,
    peers: &[Peer],
    (shape, connections): (RequestShape, usize),
    rounds: &[Round<PeerMeasurement>],
    idle: &[f64],
) -> Vec<PeerRow> {
    let best_other = |round: &Round<PeerMeasurement>| {
        let others = peers.iter().enumerate().filter(|(_, peer)| peer.is_other_runtime());
        others.filter_map(|(index, _)| Some(round.value(index)?.cpu_us)).fold(f64::INFINITY, f64::min)
    };
    let row = |(index, peer): (usize, &Peer)| {
        let median_of = |figure: fn(&PeerMeasurement) -> f64| median(&figures(rounds, index, figure));
        let ratios = rounds.iter().filter_map(|round| Some(round.value(index)?.cpu_us / best_other(round)));
        PeerRow {
            name: peer.name(),
            class,
            rounds: rounds.len(),
            workload: shape.to_string(),
            connections,
            qps: median_of(|it| it.client.replies as f64 / it.client.seconds),
            p99_us: median_of(|it| it.client.p99_us),
            cpu_us_per_request: median_of(|it| it.cpu_us),
            cpu_ratio_to_best_other: median_interval(&ratios.collect::<Vec<_>>()),
            allocations_per_request: median_of(|it| it.allocations),
            client_busy: median_of(|it| it.client.busy),
            bytes_per_idle_connection: idle[index],
        }
    };
    peers.iter().enumerate().map(row).collect()
}

/// Starts a server, and waits until it listens.
fn start_server(
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

/// Measures a server under a load.
fn measure(
    service: PeerService,
    peer: Peer,
    cores: CoreAssignment,
    shape: RequestShape,
    load: impl FnOnce(SocketAddr) -> EchoLoadSpec,
) -> Result<PeerMeasurement, Error> {
    let (server, ready) = start_server(service, peer, cores, shape)?;
    let mut client = ExperimentProcess::start(&ProcessRole::EchoLoad(load(ready.address)), None)?;
    let EchoLoadReady {} = client.receive()?;
    let counter = ready.allocation_count;
    let (cpu, allocations) = (server.cpu_nanos()?, server.allocations(counter)?);
    let measured: EchoMeasurement = client.receive()?;
    let cpu = server.cpu_nanos()? - cpu;
    let replies = measured.replies.max(1) as f64;
    let allocations = (server.allocations(counter)? - allocations) as f64 / replies;
    Ok(PeerMeasurement { client: measured, cpu_us: cpu as f64 / 1e3 / replies, allocations })
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
    let open = |connections| -> Result<ExperimentProcess, Error> {
        let mut load = ExperimentProcess::start(
            &ProcessRole::EchoLoad(EchoLoadSpec {
                server: ready.address,
                core: cores.client,
                service,
                shape,
                connections,
                warm_up: 0.0,
                duration: 0.0,
            }),
            None,
        )?;
        let EchoLoadReady {} = load.receive()?;
        Ok(load)
    };
    // What the server allocates once, for its first connection, doesn't count.
    let _first = open(1)?;
    let before = server.resident_bytes()?;
    let _idle = open(connections)?;
    let grown = server.resident_bytes()?.saturating_sub(before);
    Ok(grown as f64 / connections as f64)
}
