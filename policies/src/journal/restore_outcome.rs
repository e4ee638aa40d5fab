//! What became of one setting that was to be restored.

use std::fmt;

use serde::Serialize;

/// The result of restoring one knob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RestoreOutcome {
    /// The knob has its old value.
    Restored,
    /// Another process set the knob in the meantime, and its value was kept.
    ChangedMeanwhile {
        /// The present value.
        value: String,
    },
    /// The knob disappeared with its device, or with the knob that it depends on.
    Gone,
    /// The old value could not be written, or the device has made another one of it.
    Failed {
        /// The kernel's error, or the two values.
        reason: String,
    },
}

impl RestoreOutcome {
    pub(crate) fn is_failure(&self) -> bool {
        matches!(self, RestoreOutcome::Failed { .. })
    }

    pub(super) fn of_hidden_process() -> Self {
        let reason =
            "this process can't see it; restore as root in the PID namespace in which `policies attach` ran";
        RestoreOutcome::Failed { reason: reason.to_owned() }
    }
}

impl fmt::Display for RestoreOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RestoreOutcome::Restored => write!(f, "restored"),
            RestoreOutcome::Gone => write!(f, "gone, nothing to restore"),
            RestoreOutcome::ChangedMeanwhile { value } => {
                write!(f, "left alone, another process has set it to {value} meanwhile")
            }
            RestoreOutcome::Failed { reason } => write!(f, "NOT restored: {reason}"),
        }
    }
}
