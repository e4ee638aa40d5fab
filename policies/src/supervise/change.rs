//! What a supervisor reports.

use std::fmt;
use std::time::Duration;

/// A change of an interface under a supervised policy.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// The link went down.
    LinkDown,
    /// The link came up.
    LinkUp,
    /// The interface was removed, or moved to another network namespace. Supervision ends.
    InterfaceGone,
    /// The interface was renamed.
    Renamed(String),
    /// A knob had lost its value, and was set again or could not be.
    Reapplied {
        /// The knob and the result.
        outcome: String,
        /// The value that the knob had in between, if it could be read.
        previous: Option<String>,
    },
    /// The tuner chose another grace time for the present load.
    GraceTime {
        /// The receive queue's index, from 0.
        queue: u32,
        /// The new grace time.
        time: Duration,
    },
    /// The tuner stopped for a queue, whose grace time stays.
    TuningStopped {
        /// The receive queue's index, from 0.
        queue: u32,
        /// The grace time that stays.
        time: Duration,
        /// Why tuning stopped.
        reason: String,
    },
    /// A queue's interrupt was moved to another core.
    InterruptMoved {
        /// The receive queue's index, from 0.
        queue: u32,
        /// The new core.
        core: u32,
    },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::LinkDown => write!(f, "the link is down"),
            Change::LinkUp => write!(f, "the link is up"),
            Change::InterfaceGone => write!(f, "the interface is gone; its policy is no longer supervised"),
            Change::Renamed(name) => write!(f, "the interface is now named {name}"),
            Change::Reapplied { outcome, previous: Some(previous) } => {
                write!(f, "{outcome} (it had been changed to {previous})")
            }
            Change::Reapplied { outcome, previous: None } => write!(f, "{outcome}"),
            Change::GraceTime { queue, time } => {
                write!(f, "rx-{queue} grace time is now {} µs", time.as_micros())
            }
            Change::TuningStopped { queue, time, reason } => {
                write!(f, "rx-{queue} grace time stays at {} µs: {reason}", time.as_micros())
            }
            Change::InterruptMoved { queue, core } => write!(f, "rx-{queue} interrupt moved to core {core}"),
        }
    }
}
