//! Compares servers in interleaved rounds, so that changes of the machine affect all of them.

use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use crate::agents::coordinator::Coordinator;
use crate::config::Config;
use crate::error::Error;
use crate::stats::batch_means::{Estimate, mean_estimate};
use crate::stats::medians::median;
use crate::stats::progress::Progress;
use crate::transport::address::Address;

/// A server's figures in one round, or their medians.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Figures {
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
    pub qps: Option<Estimate>,
    pub p50: Option<Estimate>,
    /// 99th percentile.
    pub p99: Option<Estimate>,
}

#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ComparedServer {
    pub server: Address,
    pub turns: Vec<Figures>,
    pub median: Figures,
    /// Its figures relative to the first server's; `None` for the first server.
    pub ratio: Option<Ratio>,
}

#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Comparison {
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
    let (mut invalid, mut failures, mut left_out, mut broken) = (None, 0, 0, None);
    let mut valid: Vec<Vec<Figures>> = Vec::new();
    'rounds: for round in 0..rounds {
        let mut turns = vec![None; servers.len()];
        for position in 0..servers.len() {
            let index = if round.is_multiple_of(2) { position } else { servers.len() - 1 - position };
            let config = Config {
                servers: vec![servers[index].clone()],
                seed: config.seed.wrapping_add(round as u64 * 1000),
                ..config.clone()
            };
            let name = format!("round {} of {rounds}, {}", round + 1, servers[index]);
            let report = match coordinator.run(&config, stop, |latest| progress(&name, latest)).await {
                Ok(report) => report,
                // An error in the first round is one of the configuration.
                Err(error) if round == 0 => return Err(error),
                Err(error) => {
                    broken = Some(error);
                    break 'rounds;
                }
            };
            failures += report.errors + report.wrong + report.unanswered;
            let figures = Figures { qps: report.qps, p50: report.latency.p50, p99: report.latency.p99 };
            turns[index] = report.invalid.is_none().then_some(figures);
            invalid = report.invalid.or(invalid);
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
        // A round compares all servers or none.
        match turns.into_iter().collect() {
            Some(turns) => valid.push(turns),
            None => left_out += 1,
        }
    }
    let median_of = |index: usize, figure: fn(&Figures) -> f64| {
        median(&valid.iter().map(|round| figure(&round[index])).collect::<Vec<_>>())
    };
    let ratio_of = |index: usize, figure: fn(&Figures) -> f64| {
        mean_ratio(&valid.iter().map(|round| figure(&round[index]) / figure(&round[0])).collect::<Vec<_>>())
    };
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
        turns: valid.iter().map(|round| round[index]).collect(),
    });
    Ok(Comparison { servers: servers.collect(), left_out, invalid, failures, error: broken })
}

/// The geometric mean of ratios, with its 95 % interval; `None` for fewer than two, or if one is zero or not finite.
fn mean_ratio(ratios: &[f64]) -> Option<Estimate> {
    let logarithms: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    let valid = logarithms.iter().all(|logarithm| logarithm.is_finite());
    let Estimate { mean, low, high, batches } = mean_estimate(&logarithms).filter(|_| valid)?;
    Some(Estimate { mean: mean.exp(), low: low.exp(), high: high.exp(), batches })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_that_holds_in_each_round_has_a_narrow_interval_though_rounds_differ() {
        let ratios = [201.0 / 100.0, 99.0 / 50.0, 400.0 / 200.0];
        let found = mean_ratio(&ratios).unwrap();
        assert!((1.99..2.01).contains(&found.mean) && found.low > 1.95 && found.high < 2.05, "{found:?}");
        assert_eq!(mean_ratio(&[f64::NAN; 3]), None);
        assert_eq!(mean_ratio(&ratios[..1]), None);
    }
}
