//! The metrics that are recorded: distributions and counts.

use serde::{Deserialize, Serialize};

use crate::stats::compact_histogram::CompactHistogram;

/// Classes of requests whose latencies are recorded separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestClass {
    Read,
    Update,
    Other,
}

/// Metrics that are distributions, in nanoseconds unless stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Metric {
    /// From when a request was due (closed loop: sent) to its response.
    Latency(RequestClass),
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

    pub(crate) fn index(self) -> usize {
        match self {
            Self::Latency(RequestClass::Read) => 0,
            Self::Latency(RequestClass::Update) => 1,
            Self::Latency(RequestClass::Other) => 2,
            Self::Service => 3,
            Self::SendLag => 4,
            Self::Queue => 5,
            Self::Connect => 6,
        }
    }
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
    pub(crate) histograms: [CompactHistogram; Metric::COUNT],
}

impl IntervalStats {
    pub(crate) fn merge(&mut self, other: Self) {
        self.counts.add(&other.counts);
        for (mine, theirs) in self.histograms.iter_mut().zip(other.histograms) {
            mine.merge(theirs);
        }
    }

    pub(crate) fn latency(&self) -> CompactHistogram {
        let mut all = self.histograms[0].clone();
        self.histograms[1..3].iter().for_each(|other| all.merge(other.clone()));
        all
    }

    /// The mean latency of all requests, in nanoseconds.
    pub(crate) fn mean_latency(&self) -> f64 {
        self.histograms[..3].iter().map(CompactHistogram::sum).sum::<f64>() / self.requests().max(1) as f64
    }

    /// Requests with a recorded latency, which includes unanswered ones.
    pub(crate) fn requests(&self) -> u64 {
        self.histograms[..3].iter().map(CompactHistogram::count).sum()
    }
}
