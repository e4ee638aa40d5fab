//! What a supervisor reports.

use std::fmt;

use crate::controller::QueueSettings;

/// A change of an interface under a supervised policy.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    LinkDown,
    LinkUp,
    /// The interface was removed, or moved to another network namespace.
    InterfaceGone,
    /// The interface that was gone is there again, and has the policy.
    InterfaceBack(String),
    /// It is there again, and the policy can't be applied to it. It is tried again each second.
    NotAppliedAgain {
        interface: String,
        reason: String,
    },
    Renamed(String),
    /// A knob had lost its value, and was set again or could not be.
    Reapplied {
        outcome: String,
        /// The value that the knob had in between, if it could be read.
        previous: Option<String>,
    },
    /// A worker's controller has chosen other settings for its queue, and they are set.
    QueueSettings {
        queue: u32,
        settings: QueueSettings,
    },
    /// The settings that a worker's controller has chosen can't be set. The queue keeps the values
    /// that it has.
    AdaptationStopped {
        queue: u32,
        /// Why they can't be set.
        reason: String,
    },
    /// A queue's interrupt was moved to another core.
    InterruptMoved {
        queue: u32,
        core: u32,
    },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::LinkDown => write!(f, "the link is down"),
            Change::LinkUp => write!(f, "the link is up"),
            Change::InterfaceGone => write!(f, "the interface is gone"),
            Change::InterfaceBack(name) => write!(f, "the interface is back as {name}, and has its policy"),
            Change::NotAppliedAgain { interface, reason } => {
                write!(f, "the interface is back as {interface}, without its policy: {reason}")
            }
            Change::Renamed(name) => write!(f, "the interface is now named {name}"),
            Change::Reapplied { outcome, previous: Some(previous) } => {
                write!(f, "{outcome} (it had been changed to {previous})")
            }
            Change::Reapplied { outcome, previous: None } => write!(f, "{outcome}"),
            Change::QueueSettings { queue, settings } => write!(f, "rx-{queue} is now driven by {settings}"),
            Change::AdaptationStopped { queue, reason } => {
                write!(f, "rx-{queue} keeps its values, which can't be adapted to the load: {reason}")
            }
            Change::InterruptMoved { queue, core } => write!(f, "rx-{queue} interrupt moved to core {core}"),
        }
    }
}
