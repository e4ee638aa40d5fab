//! What is counted, and what is a distribution.

use serde::{Deserialize, Serialize};

/// What latencies are kept apart by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Read,
    Update,
    Other,
}

/// Everything that is a distribution. Nanoseconds, but for the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measure {
    /// From when a request was due (in a closed loop, was sent) to its answer.
    Latency(Class),
    /// From when a request was sent to its answer.
    Service,
    /// From when a request was due to when the generator got to it.
    Slip,
    /// Requests under way on the connection, with each one that is sent.
    Queue,
    /// Making a connection anew.
    Connect,
    /// From when the kernel sent a request to when it received the answer.
    Wire,
    /// What else there is between writing a request and reading the answer.
    Own,
}

impl Measure {
    pub(crate) const COUNT: usize = 9;

    pub(crate) fn index(self) -> usize {
        match self {
            Self::Latency(Class::Read) => 0,
            Self::Latency(Class::Update) => 1,
            Self::Latency(Class::Other) => 2,
            Self::Service => 3,
            Self::Slip => 4,
            Self::Queue => 5,
            Self::Connect => 6,
            Self::Wire => 7,
            Self::Own => 8,
        }
    }
}

/// What is only counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Counts {
    /// Keys that were found.
    pub(crate) hits: u64,
    /// Keys that were not.
    pub(crate) misses: u64,
    /// `cas` that came too late.
    pub(crate) conflicts: u64,
    /// Requests that were answered with an error.
    pub(crate) errors: u64,
    /// Values that are not what was stored.
    pub(crate) wrong: u64,
    /// Requests that were never answered.
    pub(crate) unanswered: u64,
    /// Requests that were left out because they were late.
    pub(crate) skipped: u64,
    /// Records that were stored because they were not found.
    pub(crate) fills: u64,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    /// CPU time of the workers' threads, in nanoseconds.
    pub(crate) cpu: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
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
