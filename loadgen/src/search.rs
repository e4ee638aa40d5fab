//! The highest rate that keeps a percentile of the latency below a bound.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use crate::agents::Crew;
use crate::batches::Estimate;
use crate::config::{Config, Loop};
use crate::error::Error;
use crate::progress::Progress;
use crate::report::by_chance;
use crate::workload::Arrival;

/// What is searched for: `95:1000` is the rate at which 95 % of the requests take less than 1000 µs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Goal {
    /// The percentile, above 0 and below 100.
    pub percentile: f64,
    /// The bound on it, µs.
    pub bound_us: f64,
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.percentile, self.bound_us)
    }
}

impl FromStr for Goal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let goal = text.split_once(':').and_then(|(percentile, bound)| {
            Some(Self { percentile: percentile.parse().ok()?, bound_us: bound.parse().ok()? })
        });
        goal.filter(|goal| goal.percentile > 0.0 && goal.percentile < 100.0)
            .filter(|goal| goal.bound_us > 0.0 && goal.bound_us.is_finite())
            .ok_or_else(|| {
                format!("{text:?} is no goal; write PERCENTILE:MICROSECONDS, for example 99:500 for p99 below 500 µs")
            })
    }
}

/// What a rate showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The whole interval is below the bound.
    Below,
    /// The whole interval is above the bound.
    Above,
    /// The bound lies within the interval, as often as it was measured: decided by the mean.
    BelowByMean,
    /// Likewise.
    AboveByMean,
    /// The rate was not kept, or requests failed: there is no latency at it.
    NotReached,
    /// Too little happened in the time to tell: measure longer.
    TooFew,
    /// The figures were invalid, as often as it was measured: the generator is the limit.
    Invalid,
}

impl Verdict {
    fn is_below(self) -> bool {
        matches!(self, Verdict::Below | Verdict::BelowByMean)
    }
}

/// One rate that was tried.
#[derive(Debug, Clone, Serialize)]
pub struct Tried {
    /// Requests a second that were asked for.
    pub rate: f64,
    /// Requests a second that were answered.
    pub qps: f64,
    /// The percentile, µs.
    pub latency: Option<Estimate>,
    /// How often it was measured.
    pub runs: usize,
    /// What it showed.
    pub verdict: Verdict,
}

/// What a search found.
#[derive(Debug, Clone, Serialize)]
pub struct Found {
    /// What was searched for.
    pub goal: Goal,
    /// Requests a second of a closed loop: the search begins below.
    pub peak: f64,
    /// The highest rate that reached the goal; `None` where none did.
    pub rate: Option<f64>,
    /// The lowest rate above that which didn't; `None` where all did.
    pub failed: Option<f64>,
    /// What was tried, in order.
    pub tried: Vec<Tried>,
}

/// A rate is measured again, up to so often, where its interval holds the bound.
const RUNS: usize = 4;
/// It is found when what reaches the goal and what doesn't are so near.
const NEAR: f64 = 1.02;
/// More halvings than it ever takes from the peak to a hundredth of it.
const STEPS: usize = 12;
/// A rate that is missed by more was not reached.
const KEPT: f64 = 0.98;

/// Searches by bisection, each rate measured until its interval says on which side of the bound it is.
///
/// # Errors
/// As [`run`](crate::run()).
pub async fn search(
    crew: &mut Crew,
    config: &Config,
    goal: Goal,
    stop: &AtomicBool,
    mut progress: impl FnMut(&str, Progress),
) -> Result<Found, Error> {
    let arrival = match config.pacing {
        Loop::Open { arrival, .. } => arrival,
        _ => Arrival::EXPONENTIAL,
    };
    let closed = Config { pacing: Loop::Closed, skip: false, moderate: false, ..config.clone() };
    let peak = crew.run(&closed, stop, |seen| progress("at its peak", seen)).await?.qps;
    let (mut low, mut high) = (0.0, peak);
    let mut found = Found { goal, peak, rate: None, failed: None, tried: Vec::new() };
    while found.tried.len() < STEPS && high > low * NEAR && peak > 0.0 && !stop.load(Ordering::Relaxed) {
        // The peak itself is tried first: many goals are reached there.
        let rate = if found.tried.is_empty() { high } else { (low + high) / 2.0 };
        let config = Config { pacing: Loop::Open { rate, arrival }, ..config.clone() };
        let tried = try_rate(crew, &config, rate, goal, stop, &mut progress).await?;
        if stop.load(Ordering::Relaxed) {
            break;
        }
        if tried.verdict.is_below() {
            (low, found.rate) = (rate, Some(rate));
        } else {
            (high, found.failed) = (rate, Some(rate));
        }
        let too_few = tried.verdict == Verdict::TooFew;
        found.tried.push(tried);
        if too_few {
            // At a lower rate there is less still.
            break;
        }
    }
    Ok(found)
}

async fn try_rate(
    crew: &mut Crew,
    config: &Config,
    rate: f64,
    goal: Goal,
    stop: &AtomicBool,
    progress: &mut impl FnMut(&str, Progress),
) -> Result<Tried, Error> {
    let name = format!("at {rate:.0}/s");
    let mut seen: Vec<(f64, Option<Estimate>)> = Vec::new();
    loop {
        let config = Config { seed: config.seed.wrapping_add(seen.len() as u64 * 1000), ..config.clone() };
        let report = crew.run(&config, stop, |seen| progress(&name, seen)).await?;
        let missed = report.qps < rate * KEPT - by_chance(rate, report.seconds);
        let fault = if missed || report.has_failures() {
            Some(Verdict::NotReached)
        } else {
            report.invalid.as_ref().map(|_| Verdict::Invalid)
        };
        // What a spoilt run shows says nothing of the rate.
        let latency = report.quantile(goal.percentile / 100.0).filter(|_| fault.is_none());
        seen.push((report.qps, latency));
        let runs = seen.len();
        let latency = together(seen.iter().filter_map(|(_, latency)| *latency));
        let verdict = verdict(fault, latency, goal.bound_us, runs >= RUNS);
        if let Some(verdict) = verdict.or(stop.load(Ordering::Relaxed).then_some(Verdict::NotReached)) {
            let qps = seen.iter().map(|(qps, _)| qps).sum::<f64>() / runs as f64;
            return Ok(Tried { rate, qps, latency, runs, verdict });
        }
    }
}

/// The estimate that several make, each from batches of its own: their mean, and as much narrower as there
/// are more of them.
fn together(estimates: impl Iterator<Item = Estimate>) -> Option<Estimate> {
    let all: Vec<Estimate> = estimates.collect();
    let count = all.len() as f64;
    let mean = all.iter().map(|one| one.mean).sum::<f64>() / count;
    // Variances of independent means add up. Runs may differ by more than their batches do.
    let within = all.iter().map(|one| ((one.high - one.low) / 2.0).powi(2)).sum::<f64>().sqrt() / count;
    let between = all.iter().map(|one| (one.mean - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    let half = within.max(2.0 * (between / count).sqrt());
    let batches = all.iter().map(|one| one.batches).sum();
    (!all.is_empty()).then_some(Estimate { mean, low: mean - half, high: mean + half, batches })
}

/// `None` where another run may tell.
fn verdict(fault: Option<Verdict>, latency: Option<Estimate>, bound: f64, last: bool) -> Option<Verdict> {
    match latency {
        _ if fault.is_some() => fault.filter(|_| last),
        Some(estimate) if estimate.high < bound => Some(Verdict::Below),
        Some(estimate) if estimate.low > bound => Some(Verdict::Above),
        Some(estimate) if last && estimate.mean < bound => Some(Verdict::BelowByMean),
        Some(_) if last => Some(Verdict::AboveByMean),
        Some(_) => None,
        None => last.then_some(Verdict::TooFew),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(mean: f64, half: f64) -> Estimate {
        Estimate { mean, low: mean - half, high: mean + half, batches: 10 }
    }

    #[test]
    fn goals_parse_as_mutilate_has_them_and_nonsense_is_refused() {
        assert_eq!("95:1000".parse(), Ok(Goal { percentile: 95.0, bound_us: 1000.0 }));
        assert_eq!("99.9:250".parse::<Goal>().unwrap().to_string(), "99.9:250");
        for text in ["", "95", "0:5", "100:5", "95:0", "95:x", "nan:5"] {
            assert!(text.parse::<Goal>().unwrap_err().contains("99:500"), "{text}");
        }
    }

    #[test]
    fn a_rate_is_measured_again_until_its_interval_is_on_one_side() {
        assert_eq!(verdict(None, Some(estimate(90.0, 5.0)), 100.0, false), Some(Verdict::Below));
        assert_eq!(verdict(None, Some(estimate(110.0, 5.0)), 100.0, false), Some(Verdict::Above));
        assert_eq!(verdict(None, Some(estimate(97.0, 5.0)), 100.0, false), None);
        assert_eq!(verdict(None, Some(estimate(97.0, 5.0)), 100.0, true), Some(Verdict::BelowByMean));
        assert_eq!(verdict(None, Some(estimate(103.0, 5.0)), 100.0, true), Some(Verdict::AboveByMean));
        assert_eq!(
            verdict(Some(Verdict::Invalid), Some(estimate(10.0, 5.0)), 100.0, true),
            Some(Verdict::Invalid)
        );
        assert_eq!(verdict(Some(Verdict::NotReached), None, 100.0, false), None);
    }

    #[test]
    fn four_equal_runs_are_twice_as_sure() {
        let all = together([estimate(100.0, 8.0); 4].into_iter()).unwrap();
        assert_eq!((all.mean, all.low, all.high, all.batches), (100.0, 96.0, 104.0, 40));
        // Runs that differ are not.
        let apart = together([estimate(50.0, 5.0), estimate(150.0, 5.0)].into_iter()).unwrap();
        assert!(apart.low < 10.0 && apart.high > 190.0, "{apart:?}");
        assert_eq!(together(std::iter::empty()), None);
    }
}
