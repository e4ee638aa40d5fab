//! The result of one step.

use std::fmt;

use serde::Serialize;

use crate::knob::{Knob, Value};
use crate::policy::Policy;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Outcome {
    /// The knob had the target value before.
    Already,
    /// The knob was set, and reads back as the target value.
    Set,
    /// The driver refused the target, and took a smaller value: its limit, if that is known.
    AtLimit {
        value: String,
        /// The kernel's error for the target.
        refusal: String,
    },
    /// The knob was set, and the driver rounded the value up or down.
    Rounded { value: String },
    /// An interrupt's affinity was set, and takes effect with the next interrupt: without interrupt
    /// remapping the kernel moves an interrupt only while it handles it (`irq_move_masked_irq`).
    Pending {
        /// The CPUs that the interrupt goes to until then.
        still: String,
    },
    /// The knob could not be set.
    Failed { reason: String },
    /// The knob was set, but reads back as another value.
    ReadsBack { value: String },
}

impl Outcome {
    /// Whether the knob has its target value, a value that the device takes, or what the driver
    /// rounded the target to.
    pub fn is_ok(&self) -> bool {
        !matches!(self, Outcome::Failed { .. } | Outcome::ReadsBack { .. })
    }
}

#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Applied {
    #[serde(flatten)]
    pub knob: Knob,
    pub target: Value,
    pub policy: Policy,
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl Applied {
    #[cfg(test)]
    pub(crate) fn of(knob: Knob, target: Value, outcome: Outcome) -> Self {
        Self { knob, target, policy: Policy::Vanilla, outcome }
    }

    /// Whether the policy can't run because this step failed: kernel threads that poll all the time
    /// must poll, on their core, as ordinary threads. Otherwise the rest of the policy would keep
    /// interrupts away from the workers' cores for nothing, or the thread would keep a core from
    /// its worker.
    pub(super) fn ends_policy(&self) -> bool {
        self.policy.has_polling_threads() && self.knob.is_of_napi_thread() && !self.outcome.is_ok()
    }
}

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { knob, target, .. } = self;
        let consequence = knob.consequence_of_failure(self.policy);
        match &self.outcome {
            Outcome::Already => write!(f, "{knob} is {target} already"),
            Outcome::Set => write!(f, "{knob} set to {target}"),
            Outcome::Pending { still } => {
                write!(f, "{knob} set to {target}, effective with its next interrupt (until then: {still})")
            }
            Outcome::AtLimit { value, refusal } => {
                write!(f, "{knob} set to {value}: the device refused {target} ({refusal})")
            }
            Outcome::Rounded { value } => write!(f, "{knob} set to {value} ({target} asked)"),
            Outcome::Failed { reason } => {
                write!(f, "{knob} could not be set to {target}: {reason}; without it, {consequence}")
            }
            Outcome::ReadsBack { value } => {
                write!(f, "{knob} was set to {target} but reads back {value}; without it, {consequence}")
            }
        }
    }
}
