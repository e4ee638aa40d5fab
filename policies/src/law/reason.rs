//! Why the law chose a mode.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why the law chose a mode. Shares are in percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "reason")]
#[non_exhaustive]
pub enum Reason {
    /// Nothing was measured yet.
    Start,
    /// The values were set once, and nobody adapts them.
    Fixed,
    /// Interrupts delay least while the queue often runs empty.
    OftenIdle {
        /// The share of the time in which the worker's core is busy.
        busy: u8,
    },
    /// The queue rarely runs empty, so that a poll costs less than the interrupts that it replaces.
    StaysBusy {
        /// The share of the time in which the core would be busy under interrupts.
        busy: u8,
    },
    /// Under interrupts packets would wait longer for the core than for a poll.
    Saturated {
        /// The share of the time in which the core would be busy under interrupts.
        busy: u8,
    },
    /// The queue stays busy, but polling has cost more CPU time than interrupts lately.
    CostsMore {
        /// The share of the time in which the core is busy.
        busy: u8,
    },
    /// Packets often come within the latency budget.
    WithinBudget {
        /// The share of empty polls after which a packet comes within the budget.
        share: u8,
    },
}

impl Reason {
    /// The name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Start => "start",
            Reason::Fixed => "fixed",
            Reason::OftenIdle { .. } => "often-idle",
            Reason::StaysBusy { .. } => "stays-busy",
            Reason::Saturated { .. } => "saturated",
            Reason::CostsMore { .. } => "costs-more",
            Reason::WithinBudget { .. } => "within-budget",
        }
    }

    /// The share that the choice is based on, in percent, if it is based on one.
    pub fn percent(self) -> Option<u8> {
        match self {
            Reason::Start | Reason::Fixed => None,
            Reason::OftenIdle { busy }
            | Reason::StaysBusy { busy }
            | Reason::Saturated { busy }
            | Reason::CostsMore { busy } => Some(busy),
            Reason::WithinBudget { share } => Some(share),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Start => write!(f, "nothing measured yet"),
            Reason::Fixed => write!(f, "fixed"),
            Reason::OftenIdle { busy } => write!(f, "the core is busy {busy} % of the time"),
            Reason::StaysBusy { busy } => {
                write!(f, "interrupts would keep the core busy {busy} % of the time")
            }
            Reason::Saturated { busy: busy @ ..90 } => {
                write!(
                    f,
                    "interrupts would keep the core busy {busy} % of the time, and packets wait longer for it than for a poll"
                )
            }
            Reason::Saturated { busy } => {
                write!(f, "interrupts would saturate the core: {busy} %")
            }
            Reason::CostsMore { busy } => {
                write!(f, "the core is busy {busy} % of the time, and polling has taken more CPU time")
            }
            Reason::WithinBudget { share } => {
                write!(f, "after {share} % of empty polls a packet comes within the latency budget")
            }
        }
    }
}
