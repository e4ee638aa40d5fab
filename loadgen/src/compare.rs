//! Compares servers in interleaved rounds, so that changes of the machine affect all of them.

use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use crate::agents::coordinator::Coordinator;
use crate::config::Config;
use crate::error::Error;
use crate::stats::batch_means::Estimate;
use crate::stats::interleaved_rounds::{self, Conditions, Round, Rounds, TurnOrder, mean_ratio, ratios};
use crate::stats::medians::median;
use crate::stats::progress::Progress;
use crate::transport::address::Address;

/// A server's figures in one round, or their medians.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Figures {
    /// Requests per second.
    pub qps: f64,
    /// Median latency, µs.
    pub p50: f64,
    /// 99th percentile, µs.
    pub p99: f64,
}

/// The ratios of a server's figures to those of the first server, each the geometric mean over the rounds.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Ratio {
    /// Requests per second.
    pub qps: Option<Estimate>,
    /// Median latency.
    pub p50: Option<Estimate>,
    /// 99th percentile.
    pub p99: Option<Estimate>,
}

/// One server's part of a comparison.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ComparedServer {
    /// The server.
    pub server: Address,
    /// Its figures by round.
    pub turns: Vec<Figures>,
    /// The medians of its figures.
    pub median: Figures,
    /// Its figures relative to the first server's; `None` for the first server.
    pub ratio: Option<Ratio>,
}

/// The result of a comparison.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Comparison {
    /// The servers, in the given order.
    pub servers: Vec<ComparedServer>,
    /// Rounds that were excluded because the figures of a turn were invalid.
    pub left_out: usize,
    /// Why the last such turn was invalid.
    pub invalid: Option<String>,
    /// Failed requests, over all turns.
    pub failures: u64,
    /// The error that ended the comparison early, if any.
    #[serde(skip)]
    pub error: Option<Error>,
}

/// Measures each of `servers` once per round, in alternating order.
///
/// # Errors
/// As [`run`](crate::run()), in the first round. Later errors are in [`Comparison::error`].
pub async fn compare(
    coordinator: &mut Coordinator,
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
        let report = match coordinator.run(&config, stop, |latest| progress(&name, latest)).await {
            Ok(report) => report,
            // An error in the first round is one of the configuration.
            Err(error) if turn.round() == 0 => return Err(error),
            Err(error) => {
                broken = Some(error);
                break;
            }
        };
        failures += report.errors + report.wrong + report.unanswered;
        let figures = Figures { qps: report.qps, p50: report.latency.p50, p99: report.latency.p99 };
        let valid = report.invalid.is_none();
        invalid = report.invalid.or(invalid);
        if turn.is_last_of_round() && stop.load(Ordering::Relaxed) {
            break;
        }
        turns.finish_turn(turn, valid.then_some(figures), Conditions::default());
    }
    // A round compares all servers or none.
    let (valid, left_out): (Vec<_>, Vec<_>) =
        turns.finish().into_leading().rounds.into_iter().partition(Round::is_valid);
    let median_of =
        |index, figure: fn(&Figures) -> f64| median(&interleaved_rounds::figures(&valid, index, figure));
    let ratio_of = |index, figure: fn(&Figures) -> f64| mean_ratio(&ratios(&valid, index, 0, figure));
    let servers = servers.iter().enumerate().map(|(index, server)| ComparedServer {
        server: server.clone(),
        median: Figures {
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
