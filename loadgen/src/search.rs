//! Searches the highest rate that keeps a latency percentile below a bound.

use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use crate::agents::Coordinator;
use crate::config::{Config, Loop};
use crate::error::Error;
use crate::invalid_value::InvalidValue;
use crate::report::merge::random_deviation;
use crate::stats::batch_means::Estimate;
use crate::stats::timeline::Progress;
use crate::workload::arrival::Arrival;

/// The goal of a search: `95:1000` requires that 95 % of the requests take less than 1000 µs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Goal {
    /// Percentile, between 0 and 100 (exclusive).
    pub percentile: f64,
    /// Upper bound of the percentile, µs.
    pub bound_us: f64,
}

impl FromStr for Goal {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let goal = text.split_once(':').and_then(|(percentile, bound)| {
            Some(Self { percentile: percentile.parse().ok()?, bound_us: bound.parse().ok()? })
        });
        goal.filter(|goal| goal.percentile > 0.0 && goal.percentile < 100.0)
            .filter(|goal| goal.bound_us > 0.0 && goal.bound_us.is_finite())
            .ok_or_else(|| {
                const EXPECTED: &str = "a goal; write PERCENTILE:MICROSECONDS, for example 99:500 for a 99th percentile below 500 µs";
                InvalidValue::new(text, EXPECTED)
            })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Verdict {
    /// Yes: the confidence interval is below the bound.
    Below,
    /// No: the confidence interval is above the bound.
    Above,
    /// Yes by the mean. The interval contains the bound, even after repeated runs.
    BelowByMean,
    /// No by the mean. The interval contains the bound, even after repeated runs.
    AboveByMean,
    /// No: the rate was not reached, or requests failed.
    NotReached,
    /// Unknown: too few requests for the percentile. A longer measurement is needed.
    TooFew,
    /// Unknown: every run was invalid, because the generator is the bottleneck.
    Invalid,
}

impl Verdict {
    fn is_below(self) -> bool {
        matches!(self, Verdict::Below | Verdict::BelowByMean)
    }
}

#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct RateTrial {
    pub rate: f64,
    /// Measured rate, in requests per second.
    pub qps: f64,
    /// The percentile, µs. `None` if it could not be estimated.
    pub latency: Option<Estimate>,
    pub runs: usize,
    pub verdict: Verdict,
}

#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct SearchResult {
    pub goal: Goal,
    /// The rate of the closed loop, in requests per second.
    pub peak: f64,
    /// The highest rate that reached the goal; `None` if none did.
    pub rate: Option<f64>,
    /// The lowest rate that didn't reach the goal; `None` if all did.
    pub failed: Option<f64>,
    pub tried: Vec<RateTrial>,
}

/// Maximum number of runs at a rate whose interval contains the bound.
const MAX_RUNS: usize = 4;
/// The search ends when the lowest failing rate is at most this factor above the highest successful
/// one.
const RESOLUTION: f64 = 1.02;
/// Maximum number of rates. Bisecting from the peak to a hundredth of it takes fewer.
const MAX_TRIALS: usize = 12;
/// Share of the rate that has to be reached.
const REACHED: f64 = 0.98;

/// Searches by bisection. Each rate is measured until its interval is on one side of the bound.
///
/// # Errors
/// As [`run`](crate::run()).
pub async fn search(
    coordinator: &mut Coordinator,
    config: &Config,
    goal: Goal,
    stop: &AtomicBool,
    mut progress: impl FnMut(&str, Progress),
) -> Result<SearchResult, Error> {
    let arrival = match config.pacing {
        Loop::Open { arrival, .. } => arrival,
        _ => Arrival::EXPONENTIAL,
    };
    let closed = Config { pacing: Loop::Closed, skip: false, moderate: false, ..config.clone() };
    let peak = coordinator.run(&closed, stop, |latest| progress("closed loop", latest)).await?.qps;
    let (mut low, mut high) = (0.0, peak);
    let mut result = SearchResult { goal, peak, rate: None, failed: None, tried: Vec::new() };
    while result.tried.len() < MAX_TRIALS
        && high > low * RESOLUTION
        && peak > 0.0
        && !stop.load(Ordering::Relaxed)
    {
        // Try the peak itself first, which reaches many goals.
        let rate = if result.tried.is_empty() { high } else { (low + high) / 2.0 };
        let config = Config { pacing: Loop::Open { rate, arrival }, ..config.clone() };
        let trial = try_rate(coordinator, &config, rate, goal, stop, &mut progress).await?;
        if stop.load(Ordering::Relaxed) {
            break;
        }
        if trial.verdict.is_below() {
            (low, result.rate) = (rate, Some(rate));
        } else {
            (high, result.failed) = (rate, Some(rate));
        }
        let too_few = trial.verdict == Verdict::TooFew;
        result.tried.push(trial);
        if too_few {
            // A lower rate has even fewer requests.
            break;
        }
    }
    Ok(result)
}

async fn try_rate(
    coordinator: &mut Coordinator,
    config: &Config,
    rate: f64,
    goal: Goal,
    stop: &AtomicBool,
    progress: &mut impl FnMut(&str, Progress),
) -> Result<RateTrial, Error> {
    let name = format!("{rate:.0}/s");
    let mut results: Vec<(f64, Option<Estimate>)> = Vec::new();
    loop {
        let seed = config.seed.wrapping_add(results.len() as u64 * 1000);
        let config = Config { seed, ..config.clone() };
        let report = coordinator.run(&config, stop, |latest| progress(&name, latest)).await?;
        let missed = report.qps < rate * REACHED - random_deviation(rate, report.seconds);
        let fault = if missed || report.has_failures() {
            Some(Verdict::NotReached)
        } else {
            report.invalid.as_ref().map(|_| Verdict::Invalid)
        };
        // The latencies of a faulty run don't characterize the rate.
        let latency = report.quantile(goal.percentile / 100.0).filter(|_| fault.is_none());
        results.push((report.qps, latency));
        let runs = results.len();
        let latency = combine(results.iter().filter_map(|(_, latency)| *latency));
        let verdict = verdict(fault, latency, goal.bound_us, runs >= MAX_RUNS);
        if let Some(verdict) = verdict.or(stop.load(Ordering::Relaxed).then_some(Verdict::NotReached)) {
            let qps = results.iter().map(|(qps, _)| qps).sum::<f64>() / runs as f64;
            return Ok(RateTrial { rate, qps, latency, runs, verdict });
        }
    }
}

/// Combines the estimates of independent runs to their mean, with a correspondingly narrower
/// interval.
fn combine(estimates: impl Iterator<Item = Estimate>) -> Option<Estimate> {
    let all: Vec<Estimate> = estimates.collect();
    let count = all.len() as f64;
    let mean = all.iter().map(|one| one.mean).sum::<f64>() / count;
    // Variances of independent means add up. But runs may differ more than their batches do.
    let within = all.iter().map(|one| ((one.high - one.low) / 2.0).powi(2)).sum::<f64>().sqrt() / count;
    let between = all.iter().map(|one| (one.mean - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    let half = within.max(2.0 * (between / count).sqrt());
    let batches = all.iter().map(|one| one.batches).sum();
    (!all.is_empty()).then_some(Estimate { mean, low: mean - half, high: mean + half, batches })
}

/// The verdict, or `None` if another run is needed. `last` is set if no further run is allowed.
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
    fn goals_have_the_syntax_of_mutilate_and_invalid_ones_are_rejected() {
        assert_eq!("95:1000".parse(), Ok(Goal { percentile: 95.0, bound_us: 1000.0 }));
        assert_eq!("99.9:250".parse(), Ok(Goal { percentile: 99.9, bound_us: 250.0 }));
        for text in ["", "95", "0:5", "100:5", "95:0", "95:x", "nan:5"] {
            assert!(text.parse::<Goal>().unwrap_err().to_string().contains("99:500"), "{text}");
        }
    }

    #[test]
    fn a_rate_is_measured_until_its_interval_is_on_one_side_of_the_bound() {
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
    fn four_equal_runs_halve_the_interval() {
        let all = combine([estimate(100.0, 8.0); 4].into_iter()).unwrap();
        assert_eq!((all.mean, all.low, all.high, all.batches), (100.0, 96.0, 104.0, 40));
        // Runs that differ don't.
        let different = combine([estimate(50.0, 5.0), estimate(150.0, 5.0)].into_iter()).unwrap();
        assert!(different.low < 10.0 && different.high > 190.0, "{different:?}");
        assert_eq!(combine(std::iter::empty()), None);
    }
}
