//! Confidence intervals of a run's figures by the method of batch means: batches are long enough to
//! be uncorrelated.

use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::stats::timeline::Timeline;

/// A figure of a run with its 95 % confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct Estimate {
    pub mean: f64,
    pub low: f64,
    pub high: f64,
    pub batches: usize,
}

impl Estimate {
    /// Half of the interval's width divided by the mean.
    pub fn relative_precision(&self) -> f64 {
        (self.high - self.low) / 2.0 / self.mean.abs().max(f64::MIN_POSITIVE)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Figure {
    Rate,
    /// A quantile of the latency, in microseconds.
    Quantile(f64),
}

const CONFIDENCE: f64 = 0.95;
/// With fewer batches the interval would be too uncertain.
const MIN_BATCHES: usize = 8;
/// The largest autocorrelation of batches. If it is exceeded, batches are made longer.
const MAX_CORRELATION: f64 = 0.3;

/// Estimates a figure: its value over the whole run, with an interval from the variance of batches
/// (sectioning; Law, *Simulation Modeling and Analysis*, chapter 9). Returns `None` if the run is
/// too short, or if batches of any length are correlated.
pub(crate) fn estimate(
    timeline: &Timeline,
    intervals: std::ops::Range<u32>,
    interval_seconds: f64,
    figure: Figure,
) -> Option<Estimate> {
    let count = intervals.len();
    // A batch with too few requests for the quantile would look fast.
    let min_requests = match figure {
        Figure::Rate => 0,
        Figure::Quantile(share) => (3.0 / (1.0 - share).max(1e-9)).ceil() as u64,
    };
    let figure_of = |intervals: std::ops::Range<u32>| {
        let seconds = interval_seconds * intervals.len() as f64;
        match figure {
            Figure::Rate => {
                let intervals = intervals.filter_map(|interval| timeline.interval(interval));
                let replies: u64 = intervals.map(|stats| stats.counts.replies).sum();
                Some(replies as f64 / seconds)
            }
            Figure::Quantile(share) => {
                let latency = timeline.latency(intervals);
                (latency.len() >= min_requests).then(|| latency.value_at_quantile(share) as f64 / 1e3)
            }
        }
    };
    let whole = figure_of(intervals.clone())?;
    let mut length = 1;
    while count / length >= MIN_BATCHES {
        let batches = (0..count / length).map(|batch| {
            let first = intervals.start + (batch * length) as u32;
            figure_of(first..first + length as u32)
        });
        let values: Option<Vec<f64>> = batches.collect();
        // What chance gives few batches is accepted, and widens the interval.
        if let Some(values) = values
            && autocorrelation(&values) < MAX_CORRELATION.max(2.0 / (values.len() as f64).sqrt())
        {
            let spread = correlated_estimate(&values)?;
            // Because of rare events a quantile of the run can differ from the mean of the batches'
            // quantiles: widen the interval by that difference.
            let half = ((spread.high - spread.low) / 2.0).max((whole - spread.mean).abs());
            // No figure is negative.
            return Some(Estimate {
                mean: whole,
                low: (whole - half).max(0.0),
                high: whole + half,
                ..spread
            });
        }
        length *= 2;
    }
    None
}

/// The mean of independent values, with its interval. Returns `None` for fewer than two values.
pub(crate) fn mean_estimate(values: &[f64]) -> Option<Estimate> {
    let count = values.len() as f64;
    let spread = StudentsT::new(0.0, 1.0, count - 1.0).ok()?;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let half = spread.inverse_cdf(0.5 + CONFIDENCE / 2.0) * (variance / count).sqrt();
    Some(Estimate { mean, low: mean - half, high: mean + half, batches: values.len() })
}

/// The mean of values that may be correlated: the interval of independent ones, wider by the factor
/// that a series of first order needs, sqrt((1 + r) / (1 - r)).
fn correlated_estimate(values: &[f64]) -> Option<Estimate> {
    let estimate = mean_estimate(values)?;
    // Of independent values the measured one is too small by that on average.
    let bias = 1.0 / values.len() as f64;
    let correlation = (autocorrelation(values) + bias).clamp(0.0, 0.9);
    let half = (estimate.high - estimate.mean) * ((1.0 + correlation) / (1.0 - correlation)).sqrt();
    Some(Estimate { low: estimate.mean - half, high: estimate.mean + half, ..estimate })
}

fn autocorrelation(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let variance: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let product: f64 = values.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum();
    // Equal values differ only by rounding errors.
    let rounding = mean.powi(2) * values.len() as f64 * f64::EPSILON;
    if variance > rounding { product / variance } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::stats::recorder::Recorder;
    use crate::stats::{Metric, Slicing};

    #[test]
    fn the_interval_of_known_values_matches_students_t() {
        // Student's t for 4 degrees of freedom at 97.5 % is 2.776.
        let estimate = mean_estimate(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert!((estimate.mean - 3.0).abs() < 1e-9);
        assert!((estimate.high - (3.0 + 2.776_445 * 0.5_f64.sqrt())).abs() < 1e-4, "{estimate:?}");
        assert_eq!(mean_estimate(&[1.0]), None);
    }

    /// A run of two seconds with a request each `gap` microseconds, of this latency in microseconds.
    fn timeline(gap: u64, latency: impl Fn(u64) -> u64) -> Timeline {
        let origin = Instant::now();
        let mut recorder = Recorder::new(origin, Slicing::new(Duration::from_secs(2)), Vec::new());
        for at in (0..2_000_000).step_by(gap as usize) {
            let moment = origin + Duration::from_micros(at);
            recorder.record(moment, Metric::Read, Duration::from_micros(latency(at)));
            recorder.counts(moment).replies += 1;
        }
        let mut timeline = Timeline::default();
        timeline.add(recorder.take());
        timeline
    }

    #[test]
    fn batches_with_too_few_requests_give_no_estimate() {
        let timeline = timeline(10_000, |_| 500);
        let estimate = |figure| estimate(&timeline, 0..20, 0.1, figure);
        assert_eq!(estimate(Figure::Rate).map(|it| it.mean.round()), Some(100.0));
        assert_eq!(estimate(Figure::Quantile(0.5)).map(|it| it.mean.round()), Some(500.0));
        assert_eq!(estimate(Figure::Quantile(0.99)), None);
    }

    #[test]
    fn a_rare_stall_counts_in_the_estimate_as_it_does_in_the_run() {
        // In one of twenty tenths of a second every request takes 80 ms.
        let timeline = timeline(100, |at| if (700_000..800_000).contains(&at) { 80_000 } else { 100 });
        let p99 = estimate(&timeline, 0..20, 0.1, Figure::Quantile(0.99)).unwrap();
        assert!((79_000.0..81_000.0).contains(&p99.mean) && p99.low < 10_000.0, "{p99:?}");
    }

    #[test]
    fn correlated_batches_have_an_interval_that_holds_more_often() {
        use rand::{RngExt, SeedableRng};
        let mut random = rand::rngs::SmallRng::seed_from_u64(1);
        let mut held = [0, 0];
        for _ in 0..1000 {
            let mut last = 0.0;
            let values: Vec<f64> = (0..66)
                .map(|_| {
                    let noise: f64 = (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0;
                    last = 0.5 * last + noise;
                    last
                })
                .skip(50)
                .collect();
            let estimates = [mean_estimate(&values), correlated_estimate(&values)];
            for (held, estimate) in held.iter_mut().zip(estimates.map(Option::unwrap)) {
                *held += u32::from((estimate.low..estimate.high).contains(&0.0));
            }
        }
        assert!(held[0] < 800 && held[1] > 880, "of 1000 intervals {held:?} hold the mean");
    }

    #[test]
    fn autocorrelation_is_detected() {
        let slow: Vec<f64> = (0..100).map(|index| (f64::from(index) / 10.0).sin()).collect();
        assert!(autocorrelation(&slow) > 0.9);
        assert!(autocorrelation(&[1.0, -1.0, 1.0, -1.0]) < 0.0);
    }
}
