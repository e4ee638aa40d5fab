//! One knob in a journal.

use serde::{Deserialize, Serialize};

use crate::knob::{Knob, Value};

/// The values of a knob that the journal's writer may have set. Only these are replaced by the old value;
/// any other was set by somebody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OwnedValues {
    /// The new value.
    New,
    /// Any from the old to the new value: the device may take less than was asked for.
    UpToNew,
    /// Any within bounds: the value is tuned while the policy runs.
    Within {
        /// The lower bound.
        least: u64,
        /// The upper bound.
        most: u64,
    },
    /// Any: the device rebuilds its queues and loses the old value.
    Any,
}

/// A knob's old and new value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    #[serde(flatten)]
    pub(crate) knob: Knob,
    pub(crate) old: Option<Value>,
    pub(crate) new: Value,
    #[serde(rename = "own")]
    pub(crate) owned: OwnedValues,
    /// What the knob had when the policy was applied, if an ended process had left that and could not restore `old`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) left: Option<Value>,
}

impl Entry {
    /// Whether the journal's writer changes the value while its policy runs.
    pub(crate) fn is_adapted(&self) -> bool {
        matches!(self.owned, OwnedValues::Within { .. })
    }

    /// Whether the journal's writer may have set the value, or the process from which it has taken over the knob.
    pub(crate) fn owns(&self, value: &Value) -> bool {
        if self.left.as_ref() == Some(value) {
            return true;
        }
        match (self.owned, value, &self.old, &self.new) {
            (OwnedValues::Any, ..) => true,
            (OwnedValues::UpToNew, Value::Number(value), Some(Value::Number(old)), Value::Number(new)) => {
                (old.min(new)..=old.max(new)).contains(&value)
            }
            (OwnedValues::Within { least, most }, Value::Number(value), ..) => (least..=most).contains(value),
            _ => *value == self.new,
        }
    }
}
