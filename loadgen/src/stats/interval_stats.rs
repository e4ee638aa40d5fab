//! The metrics of one interval.

use serde::{Deserialize, Serialize};

use crate::stats::compact_histogram::CompactHistogram;
use crate::stats::metrics::{Counts, Metric};

/// The metrics of one interval.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct IntervalStats {
    pub(crate) counts: Counts,
    pub(crate) histograms: [CompactHistogram; Metric::COUNT],
}

impl IntervalStats {
    pub(crate) fn merge(&mut self, other: Self) {
        self.counts.add(&other.counts);
        for (mine, theirs) in self.histograms.iter_mut().zip(other.histograms) {
            mine.merge(theirs);
        }
    }

    /// The latencies of all requests.
    pub(crate) fn latency(&self) -> CompactHistogram {
        let mut all = self.histograms[0].clone();
        self.histograms[1..3].iter().for_each(|other| all.merge(other.clone()));
        all
    }

    /// The mean latency of all requests, in nanoseconds.
    pub(crate) fn mean_latency(&self) -> f64 {
        self.histograms[..3].iter().map(CompactHistogram::sum).sum::<f64>() / self.requests().max(1) as f64
    }

    /// Requests with a response.
    pub(crate) fn answered(&self) -> u64 {
        self.requests().saturating_sub(self.counts.unanswered)
    }

    /// Requests with a recorded latency, which includes unanswered ones.
    pub(crate) fn requests(&self) -> u64 {
        self.histograms[..3].iter().map(CompactHistogram::count).sum()
    }
}
