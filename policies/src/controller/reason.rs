//! Why the controller chose a mode.

use std::fmt;

use crate::json::{InJson, Json, json_object};

/// A mode beside plain interrupts at the same load, in percent of theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Comparison {
    /// CPU time for an event.
    pub cpu: u16,
    /// How long an event waits until it is processed, in the median.
    pub delay: u16,
}

json_object!(Comparison { cpu, delay });

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} % of their CPU time and {} % of their delay", self.cpu, self.delay)
    }
}

/// Why the controller chose a mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "kebab-case", tag = "reason"))]
#[non_exhaustive]
pub enum Reason {
    /// Nothing was measured yet.
    Start,
    /// The values were set once, and nobody adapts them.
    Fixed,
    /// Too few packets come, or none of the queue's sockets is open.
    Idle,
    /// Interrupts are measured, because polling has to be compared with them at this load.
    Measures,
    /// Polling can't pay at this load: it would poll more often than interrupts wake, or delay
    /// events for longer than they do.
    CannotPay,
    /// The worker could not poll its queue, or the watchdog of an attached one saw harm: the log
    /// says why.
    Failed,
    /// Who sets the queue's values has ended, or does not answer: the controller can't choose
    /// others.
    Unsupervised,
    /// Polling is tried for some windows.
    Tries,
    /// Polling takes less CPU time or delay than interrupts, within the budgets.
    Pays(Comparison),
    /// Polling was tried at this load, and took too much.
    DidNotPay(Comparison),
}

impl InJson for Reason {
    fn to_json(&self) -> Json {
        let json = Json::object().with("reason", &self.name().to_owned());
        self.comparison().into_iter().fold(json, |json, comparison| json.and(comparison.to_json()))
    }

    fn from_json(json: &Json) -> Option<Self> {
        let without = [
            Self::Start,
            Self::Fixed,
            Self::Idle,
            Self::Measures,
            Self::CannotPay,
            Self::Failed,
            Self::Unsupervised,
            Self::Tries,
        ];
        let name: String = json.field("reason")?;
        let comparison = || Comparison::from_json(json);
        match name.as_str() {
            "pays" => comparison().map(Self::Pays),
            "did-not-pay" => comparison().map(Self::DidNotPay),
            name => without.into_iter().find(|reason| reason.name() == name),
        }
    }
}

impl Reason {
    /// The name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Start => "start",
            Reason::Fixed => "fixed",
            Reason::Idle => "idle",
            Reason::Measures => "measures",
            Reason::CannotPay => "cannot-pay",
            Reason::Failed => "failed",
            Reason::Unsupervised => "unsupervised",
            Reason::Tries => "tries",
            Reason::Pays(_) => "pays",
            Reason::DidNotPay(_) => "did-not-pay",
        }
    }

    /// Polling beside interrupts, as it was measured last, if the choice is based on that.
    pub fn comparison(self) -> Option<Comparison> {
        match self {
            Reason::Pays(comparison) | Reason::DidNotPay(comparison) => Some(comparison),
            _ => None,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Start => write!(f, "nothing measured yet"),
            Reason::Fixed => write!(f, "fixed"),
            Reason::Idle => write!(f, "too few packets come"),
            Reason::Measures => write!(f, "interrupts are measured at this load"),
            Reason::CannotPay => write!(f, "polling can't pay at this load"),
            Reason::Failed => write!(f, "polling has failed"),
            Reason::Unsupervised => write!(f, "its supervisor has ended or does not answer"),
            Reason::Tries => write!(f, "polling is tried at this load"),
            Reason::Pays(beside) => write!(f, "beside interrupts {beside}"),
            Reason::DidNotPay(beside) => write!(f, "polling was tried: beside interrupts {beside}"),
        }
    }
}
