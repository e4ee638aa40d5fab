//! Several servers against each other: in turns, so that what the machine does meanwhile hits all alike.

use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use crate::address::Address;
use crate::agents::Crew;
use crate::batches::{Estimate, of};
use crate::config::Config;
use crate::error::Error;
use crate::progress::Progress;

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
    let mut turns: Vec<Vec<Turn>> = vec![Vec::new(); servers.len()];
    let (mut left_out, mut invalid, mut failures, mut broken) = (0, None, 0, None);
    'rounds: for round in 0..rounds {
        let mut this = vec![None; servers.len()];
        for place in 0..servers.len() {
            let index = if round % 2 == 0 { place } else { servers.len() - 1 - place };
            let server = &servers[index];
            let config = Config {
                servers: vec![server.clone()],
                seed: config.seed.wrapping_add(round as u64 * 1000),
                ..config.clone()
            };
            let name = format!("round {} of {rounds}, {server}", round + 1);
            let report = match crew.run(&config, stop, |seen| progress(&name, seen)).await {
                Ok(report) => report,
                // The first tells of what can't be done at all.
                Err(error) if round == 0 => return Err(error),
                Err(error) => {
                    broken = Some(error);
                    break 'rounds;
                }
            };
            failures += report.errors + report.wrong + report.unanswered;
            this[index] = Some(Turn { qps: report.qps, p50: report.latency.p50, p99: report.latency.p99 })
                .filter(|_| report.invalid.is_none());
            invalid = report.invalid.or(invalid);
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
        // A round is a comparison, or it is none.
        match this.into_iter().collect::<Option<Vec<Turn>>>() {
            Some(this) => this.into_iter().zip(&mut turns).for_each(|(turn, all)| all.push(turn)),
            None => left_out += 1,
        }
    }
    let servers = servers.iter().zip(&turns).enumerate().map(|(index, (server, own))| Contender {
        server: server.clone(),
        median: Turn {
            qps: median(own, |turn| turn.qps),
            p50: median(own, |turn| turn.p50),
            p99: median(own, |turn| turn.p99),
        },
        ratio: (index > 0).then(|| Ratio {
            qps: ratio(own, &turns[0], |turn| turn.qps),
            p50: ratio(own, &turns[0], |turn| turn.p50),
            p99: ratio(own, &turns[0], |turn| turn.p99),
        }),
        turns: own.clone(),
    });
    Ok(Comparison { servers: servers.collect(), left_out, invalid, failures, error: broken })
}

fn median(turns: &[Turn], figure: impl Fn(&Turn) -> f64) -> f64 {
    let mut figures: Vec<f64> = turns.iter().map(figure).collect();
    figures.sort_unstable_by(f64::total_cmp);
    let middle = |at: usize| figures.get(at).copied().unwrap_or(0.0);
    match figures.len() {
        0 => 0.0,
        count => (middle((count - 1) / 2) + middle(count / 2)) / 2.0,
    }
}

/// The geometric mean of the rounds' ratios, with its 95 % interval; `None` below two rounds.
fn ratio(own: &[Turn], first: &[Turn], figure: impl Fn(&Turn) -> f64) -> Option<Estimate> {
    let logarithms: Vec<f64> =
        own.iter().zip(first).map(|(own, first)| (figure(own) / figure(first)).ln()).collect();
    let sure = logarithms.iter().all(|logarithm| logarithm.is_finite());
    let Estimate { mean, low, high, batches } = of(&logarithms).filter(|_| sure)?;
    Some(Estimate { mean: mean.exp(), low: low.exp(), high: high.exp(), batches })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(rates: &[f64]) -> Vec<Turn> {
        rates.iter().map(|&qps| Turn { qps, p50: 1.0, p99: 0.0 }).collect()
    }

    #[test]
    fn a_ratio_that_holds_in_each_round_is_sure_however_rounds_differ() {
        let (first, own) = (turns(&[100.0, 50.0, 200.0]), turns(&[201.0, 99.0, 400.0]));
        let found = ratio(&own, &first, |turn| turn.qps).unwrap();
        assert!((1.99..2.01).contains(&found.mean) && found.low > 1.95 && found.high < 2.05, "{found:?}");
        assert_eq!(ratio(&own, &first, |turn| turn.p99).map(|it| it.mean), None);
        assert_eq!(ratio(&own[..1], &first, |turn| turn.qps).map(|it| it.mean), None);
        assert_eq!((median(&first, |turn| turn.qps), median(&first[..2], |turn| turn.qps)), (100.0, 75.0));
    }
}
