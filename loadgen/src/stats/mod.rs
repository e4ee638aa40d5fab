//! What is measured: recorded by interval in each worker, merged by a collector, and estimated.

pub(crate) mod batch_means;
pub(crate) mod collector;
pub(crate) mod histogram;
pub mod medians;
pub(crate) mod recorder;
pub(crate) mod timeline;
pub(crate) mod warm_up;

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::stats::histogram::{SparseHistogram, sum};

/// Metrics that are distributions, in nanoseconds unless stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(crate) enum Metric {
    /// Latencies by class: from when a request was due (closed loop: sent) to its response.
    Read,
    Update,
    Other,
    /// From when a request was sent to its response.
    Service,
    /// From when a request was due to when the generator was able to send it.
    SendLag,
    /// Requests in flight on the connection, including the new one, whenever one is sent. A number.
    Queue,
    Connect,
}

impl Metric {
    pub(crate) const COUNT: usize = 7;
    /// The latencies, which come first.
    pub(crate) const LATENCIES: usize = 3;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Counts {
    /// Requests whose response arrived in the interval; latencies are in the interval in which
    /// their requests were due.
    pub(crate) replies: u64,
    pub(crate) hits: u64,
    /// Keys that were not found.
    pub(crate) misses: u64,
    /// `cas` requests that failed because the record had changed.
    pub(crate) conflicts: u64,
    pub(crate) errors: u64,
    pub(crate) wrong: u64,
    pub(crate) unanswered: u64,
    /// Connections that failed to connect again, or were closed or reset by the server.
    pub(crate) broken: u64,
    /// Requests that were skipped because their connection was busy.
    pub(crate) skipped: u64,
    /// Records that were stored after a miss.
    pub(crate) fills: u64,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    /// CPU time of the worker threads, in nanoseconds.
    pub(crate) cpu: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.replies += other.replies;
        self.hits += other.hits;
        self.misses += other.misses;
        self.conflicts += other.conflicts;
        self.errors += other.errors;
        self.wrong += other.wrong;
        self.unanswered += other.unanswered;
        self.broken += other.broken;
        self.skipped += other.skipped;
        self.fills += other.fills;
        self.received += other.received;
        self.sent += other.sent;
        self.cpu += other.cpu;
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct IntervalStats {
    pub(crate) counts: Counts,
    pub(crate) histograms: [SparseHistogram; Metric::COUNT],
}

impl IntervalStats {
    pub(crate) fn merge(&mut self, other: Self) {
        self.counts.add(&other.counts);
        for (mine, theirs) in self.histograms.iter_mut().zip(other.histograms) {
            mine.merge(theirs);
        }
    }

    pub(crate) fn latencies(&self) -> &[SparseHistogram] {
        &self.histograms[..Metric::LATENCIES]
    }

    /// Latencies of all requests, also of unanswered ones.
    pub(crate) fn latency(&self) -> Histogram<u64> {
        sum(self.latencies())
    }
}

/// The length of an interval in a run of up to ten minutes, and how often workers hand over what
/// they have recorded.
pub(crate) const LONGEST_INTERVAL: Duration = Duration::from_millis(100);

/// A short run is divided into shorter intervals, so that there are enough for statistics: this
/// many, but none shorter than `SHORTEST_INTERVAL`.
const FEW: u128 = 20;
const SHORTEST_INTERVAL: Duration = Duration::from_millis(5);

/// A run of hours is divided into longer intervals: this many, so that memory doesn't grow with its
/// duration.
const MANY: u128 = 6000;

/// The index of the interval that comprises the time before the measurement.
pub(crate) const BEFORE: u32 = u32::MAX;

/// How the measurement is divided into intervals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Slicing {
    pub(crate) interval: Duration,
    pub(crate) count: u32,
}

impl Slicing {
    pub(crate) fn new(duration: Duration) -> Self {
        let long = duration.as_nanos().div_ceil(LONGEST_INTERVAL.as_nanos()).min(MANY);
        let short = duration.as_nanos() / SHORTEST_INTERVAL.as_nanos();
        let count = long.max(short.min(FEW)).clamp(1, BEFORE.into()) as u32;
        Self { interval: (duration / count).max(Duration::from_nanos(1)), count }
    }

    pub(crate) fn complete_after(self, time: Duration) -> u32 {
        u32::try_from(time.as_nanos() / self.interval.as_nanos()).unwrap_or(u32::MAX).min(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_of_equal_length_and_neither_long_nor_few() {
        let slice = |micros: u64| {
            let Slicing { interval, count } = Slicing::new(Duration::from_micros(micros));
            (interval.as_micros(), count)
        };
        assert_eq!(slice(5_000_000), (100_000, 50));
        assert_eq!(slice(2_050_000), (97_619, 21));
        assert_eq!(slice(500_000), (25_000, 20));
        assert_eq!(slice(50_000), (5_000, 10));
        assert_eq!(slice(4_000), (4_000, 1));
        assert_eq!(slice(86_400_000_000), (14_400_000, 6000));
        assert_eq!(Slicing::new(Duration::ZERO).count, 1);
    }
}
