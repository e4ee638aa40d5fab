//! Why the controller chose a mode.

use std::fmt;

use crate::json::json_variants;

/// Why the controller chose a mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// Nothing was measured yet.
    Start,
    /// The values were set once, and nobody adapts them.
    Fixed,
    /// Fewer than two packets come in a poll interval, or none of the queue's sockets is open.
    FewPackets,
    /// Two packets or more come in a poll interval.
    ManyPackets,
    /// The server's core is busy all the time while the queue is polled.
    Saturated,
    /// The worker could not poll its queue, or the watchdog of an attached one saw harm: the log
    /// says why.
    Failed,
    /// Who sets the queue's values has ended, or does not answer: the controller can't choose
    /// others.
    Unsupervised,
}

json_variants!(
    Reason, "reason": Start = "start" {}, Fixed = "fixed" {}, FewPackets = "few-packets" {},
    ManyPackets = "many-packets" {}, Saturated = "saturated" {}, Failed = "failed" {},
    Unsupervised = "unsupervised" {}
);

impl Reason {
    /// The name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Start => "start",
            Reason::Fixed => "fixed",
            Reason::FewPackets => "few-packets",
            Reason::ManyPackets => "many-packets",
            Reason::Saturated => "saturated",
            Reason::Failed => "failed",
            Reason::Unsupervised => "unsupervised",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Start => "nothing measured yet",
            Reason::Fixed => "fixed",
            Reason::FewPackets => "few packets come",
            Reason::ManyPackets => "many packets come",
            Reason::Saturated => "the core is saturated",
            Reason::Failed => "polling has failed",
            Reason::Unsupervised => "its supervisor has ended or does not answer",
        })
    }
}
