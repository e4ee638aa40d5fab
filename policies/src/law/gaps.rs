//! The distribution of the time from an empty wait to the next event.

use std::time::Duration;

/// Buckets a factor of two.
const PER_OCTAVE: u32 = 4;
/// Gaps below this are counted in the first bucket.
const FIRST_NANOS: u64 = 512;
/// 21 octaves: up to about 1 s.
const BUCKETS: usize = 84;
/// What one [`GapHistogram::decay`] leaves of older counts.
const DECAY: f32 = 0.75;

/// A histogram of gaps with a resolution of a quarter of an octave, in which older gaps count less.
///
/// A gap is the time from the moment when the application found its queue empty to the next event.
#[derive(Debug, Clone)]
pub struct GapHistogram {
    counts: [f32; BUCKETS],
    total: f32,
}

impl Default for GapHistogram {
    fn default() -> Self {
        Self { counts: [0.0; BUCKETS], total: 0.0 }
    }
}

impl GapHistogram {
    /// Counts a gap.
    pub fn record(&mut self, gap: Duration) {
        self.counts[bucket(gap)] += 1.0;
        self.total += 1.0;
    }

    /// Makes older gaps count three quarters of what they did.
    pub fn decay(&mut self) {
        self.counts.iter_mut().for_each(|count| *count *= DECAY);
        self.total *= DECAY;
    }

    /// How many gaps the histogram holds, after decay.
    pub fn weight(&self) -> f64 {
        self.total.into()
    }

    /// The share of gaps that are at most `limit`, from 0 to 1; 0 without gaps. Interpolates linearly within a bucket.
    pub fn share_within(&self, limit: Duration) -> f64 {
        if self.total <= 0.0 {
            return 0.0;
        }
        let last = bucket(limit);
        let below: f32 = self.counts[..last].iter().sum();
        let (low, high) = bounds(last);
        let part = ((limit.as_nanos() as f64 - low) / (high - low)).clamp(0.0, 1.0);
        ((f64::from(below) + f64::from(self.counts[last]) * part) / f64::from(self.total)).min(1.0)
    }

    /// The mean of the gaps, each cut off at `limit`: how long a spin of at most `limit` takes.
    pub fn mean_up_to(&self, limit: Duration) -> Duration {
        if self.total <= 0.0 {
            return limit;
        }
        let limit_nanos = limit.as_nanos() as f64;
        let sum: f64 = self
            .counts
            .iter()
            .enumerate()
            .map(|(index, count)| {
                let (low, high) = bounds(index);
                f64::from(*count) * (low.midpoint(high)).min(limit_nanos)
            })
            .sum();
        Duration::from_nanos((sum / f64::from(self.total)) as u64)
    }
}

/// The bucket of a gap: the octave from the highest bit, its quarter from the next two bits.
fn bucket(gap: Duration) -> usize {
    let nanos = u64::try_from(gap.as_nanos()).unwrap_or(u64::MAX).max(FIRST_NANOS);
    let octave = nanos.ilog2() - FIRST_NANOS.ilog2();
    let quarter = (nanos >> (nanos.ilog2() - PER_OCTAVE.ilog2())) as u32 & (PER_OCTAVE - 1);
    ((octave * PER_OCTAVE + quarter) as usize).min(BUCKETS - 1)
}

/// The lower and the upper bound of a bucket, in nanoseconds.
fn bounds(bucket: usize) -> (f64, f64) {
    let low = |bucket: usize| {
        let (octave, quarter) = (bucket as u32 / PER_OCTAVE, bucket as u32 % PER_OCTAVE);
        (FIRST_NANOS << octave) as f64 * (1.0 + f64::from(quarter) / f64::from(PER_OCTAVE))
    };
    (if bucket == 0 { 0.0 } else { low(bucket) }, low(bucket + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(gaps: impl IntoIterator<Item = u64>) -> GapHistogram {
        let mut histogram = GapHistogram::default();
        gaps.into_iter().for_each(|micros| histogram.record(Duration::from_micros(micros)));
        histogram
    }

    #[test]
    fn shares_are_within_the_resolution_of_the_true_ones() {
        let gaps = histogram(1..=1_000);
        for limit in [10, 50, 200, 900] {
            let share = gaps.share_within(Duration::from_micros(limit));
            let expected = limit as f64 / 1_000.0;
            assert!((share / expected - 1.0).abs() < 0.15, "{limit} µs: {share}");
        }
        assert_eq!(gaps.share_within(Duration::ZERO), 0.0);
        assert_eq!(gaps.share_within(Duration::from_secs(100)), 1.0);
    }

    #[test]
    fn gaps_at_both_ends_are_counted() {
        let mut gaps = histogram([0]);
        gaps.record(Duration::MAX);
        assert_eq!(gaps.weight(), 2.0);
        assert_eq!(gaps.share_within(Duration::from_micros(1)), 0.5);
    }

    #[test]
    fn the_mean_cuts_long_gaps_off() {
        let gaps = histogram([1_000, 1_000, 2, 2]);
        let mean = gaps.mean_up_to(Duration::from_micros(10)).as_nanos();
        assert!((5_500..=6_500).contains(&mean), "{mean} ns");
    }

    #[test]
    fn newer_gaps_outweigh_older_ones() {
        let mut gaps = histogram(std::iter::repeat_n(1_000, 100));
        for _ in 0..10 {
            gaps.decay();
            (0..10).for_each(|_| gaps.record(Duration::from_micros(5)));
        }
        assert!(gaps.share_within(Duration::from_micros(10)) > 0.8);
    }

    #[test]
    fn buckets_meet_without_a_hole() {
        for index in 0..BUCKETS - 1 {
            assert_eq!(bounds(index).1, bounds(index + 1).0);
            let middle = bounds(index + 1).0.midpoint(bounds(index + 1).1) as u64;
            assert_eq!(bucket(Duration::from_nanos(middle)), index + 1);
        }
    }
}
