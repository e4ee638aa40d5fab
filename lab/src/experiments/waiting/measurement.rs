//! The measurements, in interleaved rounds.

use super::config::{STRATEGIES, WaitingConfig};
use super::message_turn::{self, Pair};
use super::server_turn;
use crate::Error;
use crate::engine::{CoreAssignment, LoadKind, LoadPlan, Phases, Results, Runner};

/// The name of the load on the memcached server.
pub(super) const SERVER: &str = "memcached";

/// The number of turns without repeats, for a progress bar.
pub fn steps(config: &WaitingConfig) -> usize {
    config.rounds * (Pair::ALL.len() * config.gaps.len() + 1) * STRATEGIES.len()
}

/// Measures messages of each pair at each gap, and the memcached server. Calls `progress` before each turn.
///
/// # Errors
/// If a core can't be had, or if the server or its load can't be run.
pub fn measure(
    config: &WaitingConfig,
    cores: CoreAssignment,
    progress: &mut dyn FnMut(&str),
) -> Result<Results, Error> {
    /// The server's share of the time.
    const SERVER_SHARE: f64 = 0.3;
    let loads: Vec<_> =
        Pair::ALL.into_iter().flat_map(|pair| config.gaps.iter().map(move |gap| (pair, *gap))).collect();
    let mut shares = vec![(1.0 - SERVER_SHARE) / loads.len() as f64; loads.len()];
    shares.push(SERVER_SHARE);
    let mut phases = Phases::new(config.seconds, &shares);
    let mut runner = Runner::new(cores, progress);
    let names = STRATEGIES.map(|strategy| strategy.to_string());
    for (pair, gap) in loads {
        let name = format!("{pair}, {gap}");
        let plan = LoadPlan::new(name, LoadKind::Closed, 0.0, config.rounds, phases.next_limit()?);
        runner.measure(plan, &names, |index| {
            message_turn::measure(pair, gap, STRATEGIES[index], cores, config)
        })?;
    }
    let plan = LoadPlan::new(SERVER, LoadKind::Open, config.rate, config.rounds, phases.next_limit()?);
    runner.measure(plan, &names, |index| server_turn::measure(STRATEGIES[index], cores, config))?;
    Ok(runner.finish(&[0, 1]))
}
