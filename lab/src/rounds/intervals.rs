//! Intervals: of percentiles over all rounds, and whether one keeps a bound.
//!
//! A percentile of one short turn is decided by a few requests. So the latencies of all rounds are
//! pooled, and the interval is that of a bootstrap over rounds. Of few rounds it is approximate: it
//! covers less than it says.

use loadgen::medians::{Interval, median_interval};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

const RESAMPLES: usize = 400;
/// Fewer rounds give no interval.
const LEAST_ROUNDS: usize = 6;

/// The latencies of a round.
type Buckets<'a> = &'a [(u64, u64)];

struct Pool {
    ends: Vec<u64>,
    rounds: Vec<Vec<u64>>,
}

impl Pool {
    fn new(rounds: &[Buckets<'_>]) -> Self {
        let mut ends: Vec<u64> = rounds.iter().flat_map(|round| round.iter().map(|(end, _)| *end)).collect();
        ends.sort_unstable();
        ends.dedup();
        let counts = |round: &Buckets<'_>| {
            let mut counts = vec![0; ends.len()];
            for (end, count) in *round {
                if let Ok(index) = ends.binary_search(end) {
                    counts[index] += count;
                }
            }
            counts
        };
        Self { rounds: rounds.iter().map(counts).collect(), ends }
    }

    fn p99(&self, rounds: &[usize]) -> f64 {
        let mut sums = vec![0; self.ends.len()];
        for &round in rounds {
            sums.iter_mut().zip(&self.rounds[round]).for_each(|(sum, count)| *sum += count);
        }
        let total: u64 = sums.iter().sum();
        let rank = (total as f64 * 0.99).ceil() as u64;
        let mut seen = 0;
        let at = sums.iter().position(|count| {
            seen += count;
            seen >= rank && seen > 0
        });
        at.map_or(f64::NAN, |index| self.ends[index] as f64 / 1e3)
    }
}

/// The 99th percentile over the rounds, µs.
pub(super) fn p99(rounds: &[Buckets<'_>]) -> Interval {
    let pool = Pool::new(rounds);
    bootstrap(rounds.len(), |sample| pool.p99(sample))
}

/// A contender's 99th percentile over the reference's. Each resample has the same rounds of both.
pub(super) fn p99_ratio(rounds: &[Buckets<'_>], reference: &[Buckets<'_>]) -> Interval {
    let (pool, reference) = (Pool::new(rounds), Pool::new(reference));
    bootstrap(rounds.len(), |sample| pool.p99(sample) / reference.p99(sample))
}

fn bootstrap(rounds: usize, figure: impl Fn(&[usize]) -> f64) -> Interval {
    let mut random = SmallRng::seed_from_u64(rounds as u64);
    let mut resample = || figure(&(0..rounds).map(|_| random.random_range(0..rounds)).collect::<Vec<_>>());
    let resamples = if rounds > 0 { RESAMPLES } else { 0 };
    let mut values: Vec<f64> = (0..resamples).map(|_| resample()).filter(|it| it.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let mut interval = median_interval(&[]);
    if !values.is_empty() {
        let all: Vec<usize> = (0..rounds).collect();
        let [low, high] = [1, 39].map(|part| values[values.len() * part / 40]);
        (interval.median, interval.low, interval.high) = (figure(&all), low, high);
        interval.confidence = if rounds >= LEAST_ROUNDS { 0.95 } else { 0.0 };
        interval.count = rounds;
    }
    interval
}

/// Whether measurements say that a bound is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    Kept,
    Broken,
    /// The interval contains the bound, or there are too few rounds for an interval.
    Undecided,
}

policies::names!(Bound, "outcome": Kept = "kept", Broken = "broken", Undecided = "undecided");

impl Bound {
    pub(crate) fn of(interval: &Interval, bound: f64) -> Self {
        match interval {
            _ if !interval.reaches_target() => Self::Undecided,
            _ if interval.high <= bound => Self::Kept,
            _ if interval.low > bound => Self::Broken,
            _ => Self::Undecided,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_pooled_by_their_requests_and_not_by_their_percentiles() {
        // 1 % of all requests are slow, but all of them in one of ten rounds.
        let fast: Buckets<'_> = &[(10_000, 1000)];
        let slow: Buckets<'_> = &[(10_000, 850), (900_000, 150)];
        let mut rounds = vec![fast; 9];
        rounds.push(slow);
        let found = p99(&rounds);
        assert_eq!((found.median, found.low, found.high), (900.0, 10.0, 900.0), "{found:?}");
        assert!(found.reaches_target() && found.count == 10);
        let equal = p99_ratio(&rounds, &rounds);
        assert_eq!((equal.low, equal.median, equal.high), (1.0, 1.0, 1.0));
    }

    #[test]
    fn few_rounds_have_no_interval_and_none_no_value() {
        assert!(!p99(&[&[(10_000, 5)][..]; 5]).reaches_target());
        assert_eq!(p99(&[]).count, 0);
        assert_eq!(p99(&[&[][..]]).count, 0);
    }

    #[test]
    fn an_interval_that_contains_the_bound_and_few_rounds_decide_nothing() {
        let of = |values: &[f64]| Bound::of(&median_interval(values), 1.1);
        assert_eq!(of(&[1.0; 6]), Bound::Kept);
        assert_eq!(of(&[1.2; 6]), Bound::Broken);
        assert_eq!(of(&[1.0, 1.05, 1.08, 1.12, 1.2, 1.3]), Bound::Undecided);
        assert_eq!(of(&[1.0; 5]), Bound::Undecided);
    }
}
