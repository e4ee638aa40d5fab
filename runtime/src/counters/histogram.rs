//! Histograms of times, whose buckets are powers of two.

use std::array;
use std::time::Duration;

use super::Counter;

/// The first bucket is of times up to 2^8 ns.
const FIRST_EXPONENT: u32 = 8;
/// The last bucket with a bound is of times up to 2^30 ns; one more takes what is longer.
const LAST_EXPONENT: u32 = 30;
const BUCKETS: usize = (LAST_EXPONENT - FIRST_EXPONENT) as usize + 2;

/// Which bucket counts a time: the first whose bound is not below it.
fn bucket_of(nanos: u64) -> usize {
    let exponent = u64::BITS - nanos.saturating_sub(1).leading_zeros();
    (exponent.saturating_sub(FIRST_EXPONENT) as usize).min(BUCKETS - 1)
}

/// What one thread records times in. It costs two additions in memory of that thread, and no locked
/// instruction.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    counts: [Counter; BUCKETS],
    sum: Counter,
}

impl Recorder {
    /// Only for the thread that writes the histogram.
    pub(crate) fn record(&self, nanos: u64) {
        self.counts[bucket_of(nanos)].add(1);
        self.sum.add(nanos);
    }

    pub(crate) fn read(&self) -> Histogram {
        Histogram { counts: array::from_fn(|bucket| self.counts[bucket].get()), sum_ns: self.sum.get() }
    }
}

/// A histogram of times since the worker started. The bounds of its buckets are the powers of two
/// from 256 ns to 1.07 s (2^8 to 2^30 ns); a last bucket counts what took longer.
///
/// It is read while the worker writes it: a time may be counted already and not yet be part of the
/// sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Histogram {
    /// How many times each bucket has counted, in the order of the bounds. The counts are not
    /// cumulative.
    counts: [u64; BUCKETS],
    /// The sum of the times, in nanoseconds.
    sum_ns: u64,
}

impl Histogram {
    /// The buckets from the shortest times to the longest: the longest time that the bucket counts
    /// (`None` for the last, which has no bound), and its count. A time is in one bucket only.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> {
        let bound = |bucket: usize| {
            (bucket + 1 < BUCKETS).then(|| Duration::from_nanos(1 << (FIRST_EXPONENT as usize + bucket)))
        };
        self.counts.into_iter().enumerate().map(move |(bucket, count)| (bound(bucket), count))
    }

    /// How many times were recorded.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of the times.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_first_bucket_whose_bound_it_does_not_exceed() {
        for nanos in [0, 1, 255, 256, 257, 511, 512, 513, 1_000_000, 1 << 30, (1 << 30) + 1, u64::MAX] {
            let recorder = Recorder::default();
            recorder.record(nanos);
            let histogram = recorder.read();
            let expected = histogram
                .buckets()
                .position(|(bound, _)| bound.is_none_or(|bound| u128::from(nanos) <= bound.as_nanos()))
                .unwrap();
            let counted: Vec<usize> = (0..BUCKETS).filter(|&bucket| histogram.counts[bucket] == 1).collect();
            assert_eq!(counted, [expected], "{nanos} ns");
            assert_eq!((histogram.count(), histogram.sum()), (1, Duration::from_nanos(nanos)));
        }
    }

    #[test]
    fn bounds_double_from_256_ns_to_a_second_and_the_last_bucket_has_none() {
        let histogram = Histogram::default();
        let bounds: Vec<_> = histogram.buckets().map(|(bound, _)| bound).collect();
        assert_eq!(bounds.len(), BUCKETS);
        assert_eq!(bounds[0], Some(Duration::from_nanos(256)));
        assert!(bounds.windows(2).all(|pair| match (pair[0], pair[1]) {
            (Some(bound), Some(next)) => next == 2 * bound,
            (Some(bound), None) => bound == Duration::from_nanos(1 << 30),
            (None, _) => false,
        }));
    }
}
