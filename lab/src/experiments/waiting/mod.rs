//! Which wait strategy answers messages soonest, and at what cost in CPU time.
//!
//! The question is the one of Damianakis, Chen and Felten, "Reducing Waiting Costs in User-Level
//! Communication" (1997): is a thread that adapts how long it spins as fast as the better of
//! spinning and blocking, and how much more does it cost than blocking? It is asked for messages
//! between two workers, between a worker and a plain thread, and for a memcached server at low
//! load.

mod messages;

use runtime::{DriverKind, WaitStrategy};
use serde::Serialize;

use messages::Pair;

use super::kernel_client::KernelClientTurn;
use crate::Error;
use crate::engine::{CoreAssignment, Figure, LoadKind, LoadPlan, Phases, Results, Runner, Turn};

const STRATEGIES: [WaitStrategy; 3] = [WaitStrategy::Block, WaitStrategy::Spin, WaitStrategy::Adaptive];
/// Ratios are to the better of block and spin.
const REFERENCES: [usize; 2] = [0, 1];
pub const ADAPTIVE: usize = 2;
const SERVER: &str = "memcached";

/// What passes between an answer and the next message, in µs: always the same, or one of several in
/// an order without a pattern.
const GAPS: [&[u64]; 6] = [&[1], &[10], &[50], &[100], &[1_000], &[1, 10, 50, 100, 1_000]];

#[derive(Debug, Clone, Serialize)]
pub struct WaitingConfig {
    pub rounds: usize,
    pub gaps: [&'static [u64]; 6],
    /// Seconds of messages at one gap before a measurement, at most.
    pub message_warm_up: f64,
    pub message_duration: f64,
    pub driver: DriverKind,
    pub rate: f64,
    pub connections: usize,
    pub server_warm_up: f64,
    pub server_duration: f64,
    /// Seconds that all may take. Rounds that have begun are finished.
    pub seconds: f64,
}

impl WaitingConfig {
    /// About five minutes, or one if `quick`; `seconds` limits it further, or lets it take longer.
    pub fn new(quick: bool, seconds: Option<f64>) -> Self {
        Self {
            rounds: if quick { 7 } else { 16 },
            gaps: GAPS,
            message_warm_up: if quick { 0.02 } else { 0.05 },
            message_duration: if quick { 0.04 } else { 0.12 },
            driver: DriverKind::Epoll,
            rate: 5_000.0,
            connections: 8,
            server_warm_up: if quick { 0.1 } else { 0.2 },
            server_duration: if quick { 0.4 } else { 1.0 },
            seconds: seconds.unwrap_or(if quick { 55.0 } else { 280.0 }),
        }
    }

    pub fn steps(&self) -> usize {
        self.rounds * (Pair::ALL.len() * GAPS.len() + 1) * STRATEGIES.len()
    }
}

/// Measures messages of each pair at each gap, and the memcached server. Calls `progress` before
/// each turn.
pub fn measure(
    config: &WaitingConfig,
    cores: CoreAssignment,
    progress: &mut dyn FnMut(&str),
) -> Result<Results, Error> {
    const SERVER_SHARE: f64 = 0.3;
    let loads: Vec<_> = Pair::ALL.into_iter().flat_map(|pair| GAPS.map(|gap| (pair, gap))).collect();
    let mut shares = vec![(1.0 - SERVER_SHARE) / loads.len() as f64; loads.len()];
    shares.push(SERVER_SHARE);
    let mut phases = Phases::new(config.seconds, &shares);
    let mut runner = Runner::new(cores, progress);
    let names = STRATEGIES.map(|strategy| strategy.to_string());
    for (pair, gap) in loads {
        let name = match gap {
            [micros] => format!("{pair}, {micros} µs"),
            _ => format!("{pair}, mixed"),
        };
        let plan = LoadPlan::new(name, LoadKind::Closed, 0.0, config.rounds, phases.next_limit()?);
        runner.measure(plan, &names, |index| messages::turn(pair, gap, STRATEGIES[index], cores, config))?;
    }
    let plan = LoadPlan::new(SERVER, LoadKind::Open, config.rate, config.rounds, phases.next_limit()?);
    runner.measure(plan, &names, |index| server_turn(STRATEGIES[index], cores, config))?;
    Ok(runner.finish(&REFERENCES))
}

/// The memcached server at low load. A turn in which requests failed does not count: the latency is
/// not that of the load asked for.
fn server_turn(wait: WaitStrategy, cores: CoreAssignment, config: &WaitingConfig) -> Result<Turn, Error> {
    let turn = KernelClientTurn {
        cores,
        driver: config.driver,
        wait,
        connections: config.connections,
        rate: Some(config.rate),
        records: 1_000,
        warm_up: config.server_warm_up,
        duration: config.server_duration,
    };
    let (report, server) = turn.measure()?;
    let failed = report.errors + report.unanswered + report.misses;
    if failed > 0 {
        return Ok(Turn::invalid(format!("{failed} requests failed")));
    }
    Ok(Turn::new([
        (Figure::P50, report.latency.p50),
        (Figure::P99, report.latency.p99),
        (Figure::CpuShare, server.cpu_seconds / server.seconds * 100.0),
    ]))
}
