//! How long events waited, as a histogram.

use std::time::Duration;

/// Buckets for each doubling of a delay: a median is found to some percent.
const PER_OCTAVE: u32 = 16;
/// Below 256 ns all delays are in the first bucket.
const FIRST_OCTAVE: u32 = 8;
/// From 4 ms on all delays are in the last bucket.
const OCTAVES: u32 = 14;
const BUCKETS: usize = (PER_OCTAVE * OCTAVES) as usize;
/// Into how many parts events are divided that have waited for between two times. Odd, so that one
/// of them is the middle.
const PARTS: u32 = 5;

/// How long events waited until they were processed. Events may count in part, where it is not sure
/// what they waited for.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use policies::controller::Delays;
///
/// let mut delays = Delays::default();
/// delays.add([Duration::from_micros(18), Duration::from_micros(22)], 60.0);
/// // Those that came during a pause of the machine.
/// delays.add([Duration::ZERO, Duration::from_millis(2)], 40.0);
/// let median = delays.median().as_secs_f64() * 1e6;
/// assert!((19.0..22.0).contains(&median), "{median} µs");
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Delays {
    counts: [f32; BUCKETS],
}

impl Default for Delays {
    fn default() -> Self {
        Self { counts: [0.0; BUCKETS] }
    }
}

impl Delays {
    /// Adds events that have waited for between two times: some as long as the one, some as long as
    /// the other, and as many for any time between them.
    pub fn add(&mut self, [from, to]: [Duration; 2], events: f32) {
        // Most waits bring one event or none.
        if events <= 0.0 {
            return;
        }
        if from == to {
            return self.add_at(from, events);
        }
        let part = to.saturating_sub(from) / (2 * PARTS);
        (0..PARTS).for_each(|index| self.add_at(from + part * (2 * index + 1), events / PARTS as f32));
    }

    fn add_at(&mut self, delay: Duration, events: f32) {
        let nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX).max(1 << FIRST_OCTAVE);
        let octave = nanos.ilog2();
        let part = (nanos >> (octave - PER_OCTAVE.ilog2())) as u32 % PER_OCTAVE;
        let bucket = (octave - FIRST_OCTAVE) * PER_OCTAVE + part;
        self.counts[(bucket as usize).min(BUCKETS - 1)] += events;
    }

    /// Adds those of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (count, other) in self.counts.iter_mut().zip(&other.counts) {
            *count += other;
        }
    }

    /// For how long half of the events have waited at most: what the clients' median has of it.
    /// Pauses of the machine, in which few events come, hardly change it. Zero without events.
    pub fn median(&self) -> Duration {
        let half = self.counts.iter().sum::<f32>() / 2.0;
        let mut below = 0.0;
        for (bucket, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0.0) {
            if below + count >= half {
                let start = |bucket: u32| {
                    let octave = u64::from(PER_OCTAVE + bucket % PER_OCTAVE);
                    octave << (bucket / PER_OCTAVE + FIRST_OCTAVE - PER_OCTAVE.ilog2())
                };
                let (from, to) = (start(bucket as u32), start(bucket as u32 + 1));
                let share = f64::from((half - below) / count);
                return Duration::from_nanos(from + ((to - from) as f64 * share) as u64);
            }
            below += count;
        }
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_within_a_bucket_of_the_event_in_the_middle() {
        for middle in [300, 1_000, 5_300, 20_000, 77_000, 1_234_567] {
            let mut delays = Delays::default();
            for nanos in 1..=2 * middle {
                if nanos % (middle / 100) == 0 {
                    delays.add([Duration::from_nanos(nanos); 2], 1.0);
                }
            }
            let median = delays.median().as_nanos() as f64;
            let off = median / middle as f64;
            assert!((0.87..1.13).contains(&off), "{median} of {middle}");
        }
        let mut delays = Delays::default();
        assert_eq!(delays.median(), Duration::ZERO);
        delays.add([Duration::ZERO; 2], 1.0);
        assert!(delays.median() < Duration::from_nanos(300));
        delays.add([Duration::from_secs(1); 2], 2.0);
        assert!(delays.median() > Duration::from_millis(3));
    }

    #[test]
    fn events_that_count_in_part_and_those_of_another_histogram_count() {
        let (mut delays, mut other) = (Delays::default(), Delays::default());
        let micros = |time| [Duration::from_micros(time); 2];
        delays.add(micros(10), 0.4);
        delays.add(micros(100), 0.6);
        other.add(micros(10), 0.3);
        assert!(delays.median() > Duration::from_micros(90));
        delays.merge(&other);
        assert!(delays.median() < Duration::from_micros(12));
    }

    #[test]
    fn events_that_have_waited_for_between_two_times_are_spread_over_them() {
        let mut delays = Delays::default();
        delays.add([Duration::ZERO, Duration::from_micros(200)], 60.0);
        delays.add([Duration::ZERO, Duration::from_micros(50)], 40.0);
        // 40 + 15 of 100 have waited for 50 µs at most.
        let median = delays.median().as_micros();
        assert!((38..60).contains(&median), "{median} µs");
    }
}
