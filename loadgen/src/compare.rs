//! Several servers against each other: in turns, so that what the machine does meanwhile hits all alike.

use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use crate::address::Address;
use crate::agents::Crew;
use crate::batches::Estimate;
use crate::config::Config;
use crate::error::Error;
use crate::progress::Progress;
use crate::stats::medians::median;
use crate::stats::rounds::{self, Conditions, Round, Rounds, TurnOrder, mean_ratio, ratios};

/// What a server showed in one round.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Turn {
    /// Requests a second.
    pub qps: f64,
    /// Median latency, µs.
    pub p50: f64,
    /// 99th percentile, µs.
    pub p99: f64,
}

/// A server's figures over those of the first, by rounds; 1 is as much.
#[derive(Debug, Clone, Serialize)]
pub struct Ratio {
    /// Of requests a second.
    pub qps: Option<Estimate>,
    /// Of the median latency.
    pub p50: Option<Estimate>,
    /// Of the 99th percentile.
    pub p99: Option<Estimate>,
}

/// A server that was compared.
#[derive(Debug, Clone, Serialize)]
pub struct Contender {
    /// Which one.
    pub server: Address,
    /// What it showed, by rounds.
    pub turns: Vec<Turn>,
    /// The median of its turns.
    pub median: Turn,
    /// Its figures over the first's; `None` for the first.
    pub ratio: Option<Ratio>,
}

/// What a comparison showed.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// The servers, in the order in which they were named.
    pub servers: Vec<Contender>,
    /// Rounds that were left out because a turn's figures were invalid, and why the last one was.
    pub left_out: usize,
    /// Why the last such turn was.
    pub invalid: Option<String>,
    /// Requests that failed, over all turns.
    pub failures: u64,
    /// Why it ended before its last round.
    #[serde(skip)]
    pub error: Option<Error>,
}

/// Measures each of `servers` once a round, in an order that is turned around from round to round.
///
/// # Errors
/// As [`run`](crate::run()).
pub async fn compare(
    crew: &mut Crew,
    config: &Config,
    servers: &[Address],
    rounds: usize,
    stop: &AtomicBool,
    mut progress: impl FnMut(&str, Progress),
) -> Result<Comparison, Error> {
    let mut turns = Rounds::new(servers.len(), rounds).order(TurnOrder::Alternating);
    let (mut invalid, mut failures, mut broken) = (None, 0, None);
    while let Some(turn) = turns.next_turn() {
        let server = &servers[turn.contestant()];
        let config = Config {
            servers: vec![server.clone()],
            seed: config.seed.wrapping_add(turn.round() as u64 * 1000),
            ..config.clone()
        };
        let name = format!("round {} of {rounds}, {server}", turn.round() + 1);
        let report = match crew.run(&config, stop, |seen| progress(&name, seen)).await {
            Ok(report) => report,
            // An error in the first round is one of the configuration.
            Err(error) if turn.round() == 0 => return Err(error),
            Err(error) => {
                broken = Some(error);
                break;
            }
        };
        failures += report.errors + report.wrong + report.unanswered;
        let value = Turn { qps: report.qps, p50: report.latency.p50, p99: report.latency.p99 };
        let valid = report.invalid.is_none();
        invalid = report.invalid.or(invalid);
        if turn.is_last_of_round() && stop.load(Ordering::Relaxed) {
            break;
        }
        turns.finish_turn(turn, valid.then_some(value), Conditions::default());
    }
    // A round compares all servers or none.
    let (valid, left_out): (Vec<_>, Vec<_>) = turns.finish().rounds.into_iter().partition(Round::is_valid);
    let median_of = |index, figure: fn(&Turn) -> f64| median(&rounds::figures(&valid, index, figure));
    let ratio_of = |index, figure: fn(&Turn) -> f64| mean_ratio(&ratios(&valid, index, 0, figure));
    let servers = servers.iter().enumerate().map(|(index, server)| Contender {
        server: server.clone(),
        median: Turn {
            qps: median_of(index, |turn| turn.qps),
            p50: median_of(index, |turn| turn.p50),
            p99: median_of(index, |turn| turn.p99),
        },
        ratio: (index > 0).then(|| Ratio {
            qps: ratio_of(index, |turn| turn.qps),
            p50: ratio_of(index, |turn| turn.p50),
            p99: ratio_of(index, |turn| turn.p99),
        }),
        turns: valid.iter().filter_map(|round| round.value(index).copied()).collect(),
    });
    Ok(Comparison { servers: servers.collect(), left_out: left_out.len(), invalid, failures, error: broken })
}
