//! Works out the steps that give an interface a policy. Reads the host, changes nothing.

mod note;
mod placement;
mod planner;
mod ring;
mod settings;

use crate::controller::QueueSettings;
use crate::grace_time::nanos;
use crate::knob::{Knob, Value};
use crate::policy::Policy;

pub use note::Note;
pub use settings::{Settings, SuppressionValues};

#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Step {
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub knob: Knob,
    /// The present value; `None` if it can't be read (before an earlier step, for example).
    pub current: Option<Value>,
    pub target: Value,
    pub purpose: &'static str,
    /// Why this process may not set the knob ([`may_set`](crate::may_set)); `None` if it may.
    pub forbidden: Option<String>,
}

impl Step {
    /// Whether the knob has its target value already.
    pub fn is_done(&self) -> bool {
        self.current.as_ref() == Some(&self.target)
    }
}

/// The steps that give an interface a policy.
///
/// Made by [`Plan::new`]; [`apply`](crate::apply) carries it out.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Plan {
    pub policy: Policy,
    pub interface: String,
    pub ifindex: u32,
    pub queues: Vec<u32>,
    pub settings: Settings,
    pub steps: Vec<Step>,
    /// What the policy needs and this host lacks, and what is unusual about the interface.
    pub notes: Vec<Note>,
    /// Whether the policy can't run in full, as a note says.
    pub is_prevented: bool,
}

impl Plan {
    pub(crate) fn rebuilds_queues(&self) -> bool {
        self.steps.iter().any(|step| step.knob.rebuilds_queues() && !step.is_done())
    }

    /// The bounds of a value that the controller changes while the policy runs, in the knob's unit;
    /// `None` for fixed values.
    pub(crate) fn tuning_bounds(&self, step: &Step) -> Option<(u64, u64)> {
        let adapts = self.policy.adapts(self.settings.gro_flush_timeout) && step.forbidden.is_none();
        let most = match step.knob {
            Knob::NapiDeferHardIrqs { .. } => QueueSettings::MOST_DEFERRALS,
            // No poll interval is longer than the watchdog of timed mode.
            Knob::NapiGroFlushTimeout { .. } => nanos(QueueSettings::LONGEST_WATCHDOG),
            Knob::NapiIrqSuspendTimeout { .. } => nanos(QueueSettings::LONGEST_SUSPEND_TIMEOUT),
            _ => return None,
        };
        adapts.then_some((0, most))
    }

    /// The pending steps that this process may not carry out.
    pub fn forbidden(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(|step| step.forbidden.is_some() && !step.is_done())
    }
}
