//! Rounds: every server under every load, interleaved.

use std::io;

use loadgen::medians::{Interval, median, median_interval};
use loadgen::rounds::{Conditions, RepeatPolicy, Round, Rounds, TurnOutcome, figures};
use serde::Serialize;

use super::client::EchoSeen;
use super::{EchoLoad, EchoOrder, Peer, Shape};
use crate::experiment::{Cores, STEAL_LIMIT};
use crate::party::{Party, Role};

/// How much is measured.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    /// Rounds, each with every server once under every load.
    pub rounds: usize,
    /// Seconds of load before a measurement.
    pub warm_up: f64,
    /// Seconds of a measurement.
    pub duration: f64,
    /// Requests and answers.
    pub shapes: Vec<Shape>,
    /// Connections.
    pub connections: Vec<usize>,
    /// Idle connections whose memory is measured.
    pub idle: usize,
}

impl Plan {
    /// The whole of it, or what half a minute allows.
    pub fn new(quick: bool) -> Self {
        let small = Shape { request: 40, reply: 200, depth: 1 };
        let shapes = [small, Shape { request: 1024, reply: 1024, depth: 1 }, Shape { depth: 16, ..small }];
        Self {
            rounds: if quick { 3 } else { 5 },
            warm_up: if quick { 0.1 } else { 0.2 },
            duration: if quick { 0.3 } else { 0.7 },
            shapes: if quick { vec![small, shapes[2]] } else { shapes.into() },
            connections: if quick { vec![64] } else { vec![1, 64, 1024] },
            idle: if quick { 2000 } else { 10_000 },
        }
    }

    /// Measurements in all.
    pub fn steps(&self) -> usize {
        Peer::ALL.len() * (1 + self.rounds * self.shapes.len() * self.connections.len())
    }
}

/// One server under one load.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The server.
    pub name: &'static str,
    /// Requests and answers.
    pub workload: String,
    /// Connections.
    pub connections: usize,
    /// Requests a second, median.
    pub qps: f64,
    /// Latency, 99th percentile, µs, median.
    pub p99_us: f64,
    /// CPU time of the server's thread a request, µs, median.
    pub cpu_us_per_request: f64,
    /// That time over the least of the other projects' runtimes in the same round.
    pub cpu_ratio_to_best_other: Interval,
    /// Allocations of the server's process a request, median.
    pub allocations_per_request: f64,
    /// How busy the client was, 0 to 1, median.
    pub client_busy: f64,
    /// Resident memory of the server's process an idle connection.
    pub bytes_per_idle_connection: f64,
}

/// What one measurement saw.
struct Seen {
    client: EchoSeen,
    cpu_us: f64,
    allocations: f64,
}

/// Runs it all. Returns the rows, and what to know of the rounds.
pub fn run(plan: &Plan, cores: Cores, mut tick: impl FnMut(&str)) -> io::Result<(Vec<Row>, Vec<String>)> {
    let mut notes = Vec::new();
    let mut idle = Vec::new();
    for peer in Peer::ALL {
        tick(&format!("{}, idle", peer.name()));
        idle.push(idle_bytes(peer, cores, plan.idle)?);
    }
    let mut rows = Vec::new();
    for &shape in &plan.shapes {
        for &connections in &plan.connections {
            let mut rounds =
                Rounds::new(Peer::ALL.len(), plan.rounds).repeat_above(STEAL_LIMIT, RepeatPolicy::Once);
            while let Some(turn) = rounds.next_turn() {
                let peer = Peer::ALL[turn.contestant()];
                let what = format!("{}, {shape}, {connections} connections", peer.name());
                if !turn.is_repeat() {
                    tick(&what);
                }
                let load = |server| EchoLoad {
                    server,
                    core: cores.client,
                    shape,
                    connections,
                    warm_up: plan.warm_up,
                    duration: plan.duration,
                };
                let (seen, steal) = measure(peer, cores, shape, load)?;
                let outcome = rounds.finish_turn(turn, Some(seen), Conditions::with_steal(steal));
                if outcome == TurnOutcome::Repeated {
                    let percent = steal * 100.0;
                    notes.push(format!("repeated: {what}: the hypervisor stole {percent:.1} % of a core"));
                }
            }
            rows.extend(rows_of(shape, connections, &rounds.finish().rounds, &idle));
        }
    }
    Ok((rows, notes))
}

fn rows_of(shape: Shape, connections: usize, rounds: &[Round<Seen>], idle: &[f64]) -> Vec<Row> {
    let best_other = |round: &Round<Seen>| {
        let others = Peer::ALL.iter().enumerate().filter(|(_, peer)| peer.is_other());
        others.filter_map(|(index, _)| Some(round.value(index)?.cpu_us)).fold(f64::INFINITY, f64::min)
    };
    let row = |(index, peer): (usize, &Peer)| {
        let of = |figure: fn(&Seen) -> f64| median(&figures(rounds, index, figure));
        let ratios = rounds.iter().filter_map(|round| Some(round.value(index)?.cpu_us / best_other(round)));
        Row {
            name: peer.name(),
            workload: shape.to_string(),
            connections,
            qps: of(|seen| seen.client.answers as f64 / seen.client.seconds),
            p99_us: of(|seen| seen.client.p99_us),
            cpu_us_per_request: of(|seen| seen.cpu_us),
            cpu_ratio_to_best_other: median_interval(&ratios.collect::<Vec<_>>()),
            allocations_per_request: of(|seen| seen.allocations),
            client_busy: of(|seen| seen.client.busy),
            bytes_per_idle_connection: idle[index],
        }
    };
    Peer::ALL.iter().enumerate().map(row).collect()
}

/// The server's address, and where it counts its allocations.
type Known = (std::net::SocketAddr, u64);

fn start(peer: Peer, cores: Cores, shape: Shape) -> io::Result<(Party, Known)> {
    let role = Role::Echo(EchoOrder { peer, core: cores.server, shape });
    let mut server = Party::start(&role, None)?;
    let (address, word) = server.server_ready()?;
    let counter = serde_json::from_value(word["allocations"].clone())?;
    Ok((server, (address, counter)))
}

/// The second value is the largest share of a core that the hypervisor took meanwhile.
fn measure(
    peer: Peer,
    cores: Cores,
    shape: Shape,
    load: impl FnOnce(std::net::SocketAddr) -> EchoLoad,
) -> io::Result<(Seen, f64)> {
    let (server, (address, counter)) = start(peer, cores, shape)?;
    let mut client = Party::start(&Role::EchoLoad(load(address)), None)?;
    client.hear()?;
    let (cpu, stolen, allocations) = (server.cpu_nanos()?, steal()?, server.allocations(counter)?);
    let seen: EchoSeen = serde_json::from_value(client.hear()?)?;
    let cpu = server.cpu_nanos()? - cpu;
    let stolen = (steal()? - stolen) / seen.seconds;
    let answers = seen.answers.max(1) as f64;
    let allocations = (server.allocations(counter)? - allocations) as f64 / answers;
    Ok((Seen { client: seen, cpu_us: cpu as f64 / 1e3 / answers, allocations }, stolen))
}

/// Seconds that the hypervisor has taken from this machine's cores.
fn steal() -> io::Result<f64> {
    use procfs::CurrentSI;
    let stat = procfs::KernelStats::current().map_err(io::Error::other)?;
    Ok(stat.total.steal.unwrap_or(0) as f64 / procfs::ticks_per_second() as f64)
}

fn idle_bytes(peer: Peer, cores: Cores, connections: usize) -> io::Result<f64> {
    let shape = Shape { request: 40, reply: 200, depth: 1 };
    let (server, (address, _)) = start(peer, cores, shape)?;
    // Once through, so that what is made for the first connection is not counted.
    let idle = |connections| EchoLoad {
        server: address,
        core: cores.client,
        shape,
        connections,
        warm_up: 0.0,
        duration: 0.0,
    };
    let mut few = Party::start(&Role::EchoLoad(idle(1)), None)?;
    few.hear()?;
    let before = server.resident_bytes()?;
    let mut many = Party::start(&Role::EchoLoad(idle(connections)), None)?;
    many.hear()?;
    let grown = server.resident_bytes()?.saturating_sub(before);
    Ok(grown as f64 / connections as f64)
}
