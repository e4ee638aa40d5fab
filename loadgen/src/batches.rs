//! How sure a run's figures are: intervals from batches that are long enough to be independent.

use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::tally::{Samples, Timeline};

/// A figure of a run with its interval.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Estimate {
    /// The mean over the batches.
    pub mean: f64,
    /// The interval's lower end, at 95 % confidence.
    pub low: f64,
    /// The interval's upper end.
    pub high: f64,
    /// How many batches it is made of.
    pub batches: usize,
}

impl Estimate {
    /// Half of the interval's width over the mean.
    pub fn relative(&self) -> f64 {
        (self.high - self.low) / 2.0 / self.mean.abs().max(f64::MIN_POSITIVE)
    }
}

/// What a figure is made of in a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Figure {
    /// Requests a second.
    Rate,
    /// A quantile of the latency, in microseconds.
    Quantile(f64),
}

const CONFIDENCE: f64 = 0.95;
/// With fewer batches an interval says little.
const FEWEST: usize = 8;
/// One batch must not tell of the next: above this they are made longer.
const CORRELATED: f64 = 0.3;

/// The estimate of a figure, by the method of batch means (Law, *Simulation Modeling and Analysis*, chapter
/// 9); `None` where the run is too short.
pub(crate) fn estimate(
    timeline: &Timeline,
    pieces: std::ops::Range<u32>,
    piece_seconds: f64,
    figure: Figure,
) -> Option<Estimate> {
    let count = pieces.len();
    let mut length = 1;
    while count / length >= FEWEST {
        // A batch that has no such quantile, because too little happened in it, would count as fast.
        let enough = match figure {
            Figure::Rate => 0,
            Figure::Quantile(share) => (1.0 / (1.0 - share).max(1e-9)).ceil() as u64,
        };
        let values: Option<Vec<f64>> = (0..count / length)
            .map(|batch| {
                let first = pieces.start + (batch * length) as u32;
                let mut all = Samples::default();
                for samples in (first..first + length as u32).filter_map(|piece| timeline.piece(piece)) {
                    all.add(samples.clone());
                }
                (all.requests() >= enough).then(|| match figure {
                    Figure::Rate => all.requests() as f64 / (piece_seconds * length as f64),
                    Figure::Quantile(share) => all.latency().quantile(share) as f64 / 1e3,
                })
            })
            .collect();
        if let Some(values) = values
            && (correlation(&values) < CORRELATED || count / (length * 2) < FEWEST)
        {
            return of(&values);
        }
        length *= 2;
    }
    None
}

/// The interval of a mean, of values that don't depend on each other.
pub(crate) fn of(values: &[f64]) -> Option<Estimate> {
    let count = values.len() as f64;
    let spread = StudentsT::new(0.0, 1.0, count - 1.0).ok()?;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let half = spread.inverse_cdf(0.5 + CONFIDENCE / 2.0) * (variance / count).sqrt();
    Some(Estimate { mean, low: mean - half, high: mean + half, batches: values.len() })
}

/// How much one value tells of the next, -1 to 1.
fn correlation(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let variance: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let product: f64 = values.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum();
    if variance > 0.0 { product / variance } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn the_interval_of_known_values_is_the_textbooks() {
        // Student's t for 4 degrees of freedom at 97.5 % is 2.776.
        let estimate = of(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert!((estimate.mean - 3.0).abs() < 1e-9);
        assert!((estimate.high - (3.0 + 2.776_445 * 0.5_f64.sqrt())).abs() < 1e-4, "{estimate:?}");
        assert_eq!(of(&[1.0]), None);
    }

    #[test]
    fn nineteen_of_twenty_intervals_hold_the_truth() {
        let mut random = SmallRng::seed_from_u64(11);
        let held = (0..1000)
            .filter(|_| {
                let values: Vec<f64> = (0..20).map(|_| random.random::<f64>()).collect();
                let estimate = of(&values).unwrap();
                estimate.low <= 0.5 && 0.5 <= estimate.high
            })
            .count();
        assert!((930..970).contains(&held), "{held}");
    }

    #[test]
    fn batches_in_which_too_little_happened_make_no_estimate() {
        use crate::tally::{Class, Cut, Measure, Tally};
        use std::time::{Duration, Instant};
        let origin = Instant::now();
        let mut tally = Tally::new(origin, Cut::of(Duration::from_secs(2)));
        let mut timeline = Timeline::default();
        for step in 0..200 {
            let moment = origin + Duration::from_millis(step * 10);
            tally.record(moment, Measure::Latency(Class::Read), Duration::from_micros(500));
        }
        timeline.add(&mut tally.take());
        let estimate = |figure| estimate(&timeline, 0..20, 0.1, figure);
        assert_eq!(estimate(Figure::Rate).map(|it| it.mean.round()), Some(100.0));
        assert_eq!(estimate(Figure::Quantile(0.9)).map(|it| it.mean.round()), Some(500.0));
        assert_eq!(estimate(Figure::Quantile(0.99)), None);
    }

    #[test]
    fn what_depends_on_what_came_before_is_seen() {
        let slow: Vec<f64> = (0..100).map(|index| (f64::from(index) / 10.0).sin()).collect();
        assert!(correlation(&slow) > 0.9);
        assert!(correlation(&[1.0, -1.0, 1.0, -1.0]) < 0.0);
    }
}
