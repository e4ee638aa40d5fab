//! How sure a run's figures are: intervals from batches that are long enough to be independent.

use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::tally::{Samples, Timeline};

/// A figure of a run with its interval.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Estimate {
    /// The figure of the whole run.
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

/// The estimate of a figure: that of the whole run, with an interval from how much batches differ (sectioning;
/// Law, *Simulation Modeling and Analysis*, chapter 9). `None` where the run is too short, or where batches of
/// any length still tell of each other.
pub(crate) fn estimate(
    timeline: &Timeline,
    pieces: std::ops::Range<u32>,
    piece_seconds: f64,
    figure: Figure,
) -> Option<Estimate> {
    let count = pieces.len();
    // A batch that has no such quantile, because too little happened in it, would count as fast.
    let enough = match figure {
        Figure::Rate => 0,
        Figure::Quantile(share) => (3.0 / (1.0 - share).max(1e-9)).ceil() as u64,
    };
    let of_some = |pieces: std::ops::Range<u32>| {
        let seconds = piece_seconds * pieces.len() as f64;
        match figure {
            Figure::Rate => {
                let answered = pieces.filter_map(|piece| timeline.piece(piece)).map(Samples::answered);
                Some(answered.sum::<u64>() as f64 / seconds)
            }
            Figure::Quantile(share) => {
                let latency = timeline.latency(pieces);
                (latency.count() >= enough).then(|| latency.quantile(share) as f64 / 1e3)
            }
        }
    };
    let whole = of_some(pieces.clone())?;
    let mut length = 1;
    while count / length >= FEWEST {
        let batches = (0..count / length).map(|batch| {
            let first = pieces.start + (batch * length) as u32;
            of_some(first..first + length as u32)
        });
        let values: Option<Vec<f64>> = batches.collect();
        if let Some(values) = values
            && correlation(&values) < CORRELATED.max(2.0 / (values.len() as f64).sqrt())
        {
            let spread = of(&values)?;
            // A quantile of the whole is not the mean of the batches' where something happens but rarely: the
            // interval is no narrower than what they differ by.
            let half = ((spread.high - spread.low) / 2.0).max((whole - spread.mean).abs());
            // Nothing that is looked at can be below 0.
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
    // Values that are all alike differ by rounding only.
    let rounding = mean.powi(2) * values.len() as f64 * f64::EPSILON;
    if variance > rounding { product / variance } else { 0.0 }
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
        use crate::measures::{Class, Measure};
        use crate::tally::{Cut, Tally};
        use std::time::{Duration, Instant};
        let origin = Instant::now();
        let mut tally = Tally::new(origin, Cut::of(Duration::from_secs(2)), Vec::new());
        let mut timeline = Timeline::default();
        for step in 0..200 {
            let moment = origin + Duration::from_millis(step * 10);
            tally.record(moment, Measure::Latency(Class::Read), Duration::from_micros(500));
        }
        timeline.add(tally.take());
        let estimate = |figure| estimate(&timeline, 0..20, 0.1, figure);
        assert_eq!(estimate(Figure::Rate).map(|it| it.mean.round()), Some(100.0));
        assert_eq!(estimate(Figure::Quantile(0.5)).map(|it| it.mean.round()), Some(500.0));
        assert_eq!(estimate(Figure::Quantile(0.99)), None);
    }

    #[test]
    fn a_rare_stall_is_in_the_middle_of_the_interval_as_it_is_in_the_run() {
        use crate::measures::{Class, Measure};
        use crate::tally::{Cut, Tally};
        use std::time::{Duration, Instant};
        let origin = Instant::now();
        let mut tally = Tally::new(origin, Cut::of(Duration::from_secs(2)), Vec::new());
        let mut timeline = Timeline::default();
        // One tenth of a second of twenty in which all takes 80 ms: a twentieth of the requests.
        for step in 0..20_000_u64 {
            let moment = origin + Duration::from_micros(step * 100);
            let latency = Duration::from_micros(if (7000..8000).contains(&step) { 80_000 } else { 100 });
            tally.record(moment, Measure::Latency(Class::Read), latency);
        }
        timeline.add(tally.take());
        let p99 = estimate(&timeline, 0..20, 0.1, Figure::Quantile(0.99)).unwrap();
        assert!((79_000.0..81_000.0).contains(&p99.mean) && p99.low < 10_000.0, "{p99:?}");
    }

    #[test]
    fn what_depends_on_what_came_before_is_seen() {
        let slow: Vec<f64> = (0..100).map(|index| (f64::from(index) / 10.0).sin()).collect();
        assert!(correlation(&slow) > 0.9);
        assert!(correlation(&[1.0, -1.0, 1.0, -1.0]) < 0.0);
    }
}
