//! Intervals of percentiles over all rounds.
//!
//! A percentile of one short turn is decided by a few requests. So the latencies of all rounds are
//! pooled, and the interval is that of a bootstrap over rounds. Of few rounds it is approximate: it
//! covers less than it says.

use loadgen::medians::{Interval, median, median_interval};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::turn::LEAST_ROUNDS;

const RESAMPLES: usize = 400;

/// The latencies of a round: ends of buckets in ns, ascending, with the requests in each.
type Buckets<'a> = &'a [(u64, u64)];

/// The buckets of all rounds: end, round and requests.
struct Pool(Vec<(u64, usize, u64)>);

impl Pool {
    fn new(rounds: &[Buckets<'_>]) -> Self {
        let buckets = rounds
            .iter()
            .enumerate()
            .flat_map(|(round, buckets)| buckets.iter().map(move |&(end, count)| (end, round, count)));
        let mut pool: Vec<_> = buckets.collect();
        pool.sort_unstable();
        Self(pool)
    }

    /// In µs, of a sample of as many rounds.
    fn p99(&self, sample: &[usize]) -> f64 {
        let mut times = vec![0; sample.len()];
        sample.iter().for_each(|&round| times[round] += 1);
        let total: u64 = self.0.iter().map(|(_, round, count)| count * times[*round]).sum();
        let rank = (total as f64 * 0.99).ceil() as u64;
        let mut seen = 0;
        let found = self.0.iter().find(|(_, round, count)| {
            seen += count * times[*round];
            seen >= rank && seen > 0
        });
        found.map_or(f64::NAN, |(end, ..)| *end as f64 / 1e3)
    }
}

/// The 99th percentile over the rounds, µs.
pub(super) fn p99(rounds: &[Buckets<'_>]) -> Interval {
    let pool = Pool::new(rounds);
    bootstrap([rounds.len()], |[sample]| pool.p99(sample))
}

/// A contender's 99th percentile over the reference's. Each resample has the same rounds of both.
pub(super) fn p99_ratio(rounds: &[Buckets<'_>], reference: &[Buckets<'_>]) -> Interval {
    let (pool, reference) = (Pool::new(rounds), Pool::new(reference));
    bootstrap([rounds.len()], |[sample]| pool.p99(sample) / reference.p99(sample))
}

/// The 99th percentile over the rounds of a run, over that of the rounds of another one.
pub(crate) fn p99_of_runs(run: &[Buckets<'_>], other: &[Buckets<'_>]) -> Interval {
    let (one, two) = (Pool::new(run), Pool::new(other));
    bootstrap([run.len(), other.len()], |[run, other]| one.p99(run) / two.p99(other))
}

/// The median of the values of a run over the median of those of another one.
pub(crate) fn ratio_of_runs(run: &[f64], other: &[f64]) -> Interval {
    let median_of = |values: &[f64], sample: &[usize]| {
        median(&sample.iter().map(|index| values[*index]).collect::<Vec<_>>())
    };
    bootstrap([run.len(), other.len()], |[one, two]| median_of(run, one) / median_of(other, two))
}

/// An interval over resamples of as many rounds as each size says, drawn independently. Its count is
/// that of the smallest.
fn bootstrap<const N: usize>(sizes: [usize; N], figure: impl Fn([&[usize]; N]) -> f64) -> Interval {
    let rounds = sizes.into_iter().min().unwrap_or(0);
    let mut random = SmallRng::seed_from_u64(rounds as u64);
    let of = |samples: [Vec<usize>; N]| figure(samples.each_ref().map(Vec::as_slice));
    let mut resample = || of(sizes.map(|size| (0..size).map(|_| random.random_range(0..size)).collect()));
    let resamples = if rounds > 0 { RESAMPLES } else { 0 };
    let mut values: Vec<f64> = (0..resamples).map(|_| resample()).filter(|it| it.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let mut interval = median_interval(&[]);
    if !values.is_empty() {
        let [low, high] = [1, 39].map(|part| values[values.len() * part / 40]);
        interval.median = of(sizes.map(|size| (0..size).collect()));
        (interval.low, interval.high) = (low, high);
        interval.confidence = if rounds >= LEAST_ROUNDS { 0.95 } else { 0.0 };
        interval.count = rounds;
    }
    interval
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
    fn two_runs_are_resampled_by_themselves_and_their_rounds_not_paired() {
        // In pairs the second run is always a tenth lower; its values vary by more.
        let run: Vec<f64> = (0..12).map(|round| 100.0 + 10.0 * f64::from(round % 4)).collect();
        let other: Vec<f64> = run.iter().map(|value| value * 0.9).collect();
        let ratio = ratio_of_runs(&run, &other);
        assert!((ratio.median - 1.0 / 0.9).abs() < 1e-9 && ratio.count == 12, "{ratio:?}");
        assert!(ratio.low < 1.05 && ratio.high > 1.15, "{ratio:?}");
        assert!(!ratio_of_runs(&run, &other[..5]).reaches_target());
        assert_eq!(ratio_of_runs(&run, &[]).count, 0);
        let rounds = [&[(10_000, 1000)][..]; 6];
        assert_eq!(p99_of_runs(&rounds, &[&[(20_000, 10)][..]; 8]).median, 0.5);
    }

    #[test]
    fn few_rounds_have_no_interval_and_none_no_value() {
        assert!(!p99(&[&[(10_000, 5)][..]; 5]).reaches_target());
        assert_eq!(p99(&[]).count, 0);
        assert_eq!(p99(&[&[][..]]).count, 0);
    }
}
