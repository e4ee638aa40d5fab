//! The measurements, in interleaved rounds.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::super::core_assignment::CoreAssignment;
use super::super::turn_conditions::{MeasuredRounds, RoundsPlan, border, name_classes};
use super::config::{ADAPTIVE, BLOCK, SPIN, STRATEGIES, WaitingConfig};
use super::message_turn::{self, Pair};
use super::messages::MessageCost;
use super::server_turn::{self, ServerCost};
use crate::Error;

/// The strategies at the memcached server, in the order of its contestants.
pub(super) const SERVER_STRATEGIES: [usize; 3] = [BLOCK, SPIN, ADAPTIVE];

/// Everything that was measured.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct WaitingMeasurements {
    /// Messages, for each pair: every turn, with the cost at each gap.
    pub messages: Vec<(Pair, MeasuredRounds<Vec<MessageCost>>)>,
    /// The memcached server, under block, spin and adaptive.
    pub server: MeasuredRounds<ServerCost>,
}

/// The number of turns without repeats, for a progress bar.
pub fn steps(config: &WaitingConfig) -> usize {
    config.rounds * (Pair::ALL.len() * STRATEGIES.len() + SERVER_STRATEGIES.len())
}

/// The shares of the time of the three pairs and of the server.
const SHARES: [f64; 4] = [0.22, 0.22, 0.22, 0.34];

/// Measures everything. Calls `progress` before each turn.
///
/// # Errors
/// If a core can't be had, or if the server or its load can't be run.
pub fn measure(
    config: &WaitingConfig,
    cores: CoreAssignment,
    mut progress: impl FnMut(&str),
) -> Result<WaitingMeasurements, Error> {
    let begun = Instant::now();
    // What a phase leaves over is the next one's.
    let limit = |phase: usize| {
        let left = config.seconds - begun.elapsed().as_secs_f64();
        let share = SHARES[phase] / SHARES[phase..].iter().sum::<f64>();
        Duration::from_secs_f64((left * share).max(0.1))
    };
    let plan = |load, limit| RoundsPlan { load, rounds: config.rounds, cores, limit };
    let names = STRATEGIES.map(|strategy| strategy.to_string());
    let mut runs = Vec::new();
    for (phase, pair) in Pair::ALL.into_iter().enumerate() {
        runs.push(plan(pair.name(), limit(phase)).measure(&names, &mut progress, |index| {
            message_turn::measure(pair, STRATEGIES[index], cores, config).map(Some)
        })?);
    }
    name_classes(&mut runs);
    let names = SERVER_STRATEGIES.map(|strategy| STRATEGIES[strategy].to_string());
    let mut server = plan("memcached", limit(Pair::ALL.len())).measure(&names, &mut progress, |index| {
        server_turn::measure(STRATEGIES[SERVER_STRATEGIES[index]], cores, config)
    })?;
    if let Some(border) = border(runs.iter().flat_map(MeasuredRounds::ranges)) {
        server.name_classes(border);
    }
    Ok(WaitingMeasurements { messages: Pair::ALL.into_iter().zip(runs).collect(), server })
}
