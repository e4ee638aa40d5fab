//! What a journal records: knobs, and the epoll instances and listeners of other processes. What
//! became of each when it was restored.

use std::fmt;
use std::io;

use serde_core::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value as Json, json};

use crate::epoll_params::EpollParams;
use crate::host::process::{ProcessIdentity, ProcessState};
use crate::json::{field, json_object};
use crate::knob::{Knob, Value};
use crate::pidfd::Descriptors;
use crate::socket_options::stop_steering;

/// The values of a knob that the journal's writer may have set. Only these are replaced by the old
/// value; any other was set by somebody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnedValues {
    New,
    /// Any from the old to the new value: the device may take less than was asked for.
    UpToNew,
    /// Any within bounds: the value is tuned while the policy runs.
    Within {
        least: u64,
        most: u64,
    },
    /// Any: the device rebuilds its queues and loses the old value.
    Any,
}

impl Serialize for OwnedValues {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::New => serializer.serialize_str("new"),
            Self::UpToNew => serializer.serialize_str("up-to-new"),
            Self::Within { least, most } => {
                serializer.collect_map([("within", json!({ "least": least, "most": most }))])
            }
            Self::Any => serializer.serialize_str("any"),
        }
    }
}

impl<'de> Deserialize<'de> for OwnedValues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Json::deserialize(deserializer)?;
        Ok(match json.as_str() {
            Some("new") => Self::New,
            Some("up-to-new") => Self::UpToNew,
            Some("any") => Self::Any,
            _ => {
                let bounds: Json = field(&json, "within")?;
                Self::Within { least: field(&bounds, "least")?, most: field(&bounds, "most")? }
            }
        })
    }
}

/// A knob's old and new value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) knob: Knob,
    pub(crate) old: Option<Value>,
    pub(crate) new: Value,
    pub(crate) own: OwnedValues,
    /// What the knob had when the policy was applied, if an ended process had left that and could
    /// not restore `old`.
    pub(crate) left: Option<Value>,
}

json_object!(Entry: ..knob, old, new, own; optional left);

impl Entry {
    /// Whether the journal's writer changes the value while its policy runs.
    pub(crate) fn is_adapted(&self) -> bool {
        matches!(self.own, OwnedValues::Within { .. })
    }

    /// Whether the journal's writer may have set the value, or the process from which it has taken
    /// over the knob.
    pub(crate) fn owns(&self, value: &Value) -> bool {
        if self.left.as_ref() == Some(value) {
            return true;
        }
        match (self.own, value, &self.old, &self.new) {
            (OwnedValues::Any, ..) => true,
            (OwnedValues::UpToNew, Value::Number(value), Some(Value::Number(old)), Value::Number(new)) => {
                (old.min(new)..=old.max(new)).contains(&value)
            }
            (OwnedValues::Within { least, most }, Value::Number(value), ..) => (least..=most).contains(value),
            _ => *value == self.new,
        }
    }
}

/// An epoll instance of another process, and its parameters before they were set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EpollEntry {
    pub(crate) process: ProcessIdentity,
    pub(crate) descriptor: i32,
    pub(crate) old: EpollParams,
    /// The budget of the parameters that the journal's writer sets.
    pub(crate) budget: u16,
}

json_object!(EpollEntry: process, descriptor, old, budget);

impl EpollEntry {
    /// Whether the journal's writer may have set these parameters. It sets no others. So an
    /// instance that has meanwhile got the number of one that was closed, and has its own
    /// parameters, is left alone.
    pub(crate) fn owns(&self, params: EpollParams) -> bool {
        params.prefer_busy_poll == 1 && params.busy_poll_budget == self.budget
    }

    /// Whether the instance has parameters that the journal's writer has set.
    pub(super) fn is_set(&self) -> bool {
        let now = || EpollParams::read(Descriptors::of(&self.process)?.duplicate(self.descriptor)?);
        self.process.is_alive() && now().is_ok_and(|now| now != self.old && self.owns(now))
    }

    /// Sets the old parameters again.
    pub(crate) fn restore(&self) -> RestoreOutcome {
        restore_of(&self.process, || self.try_restore())
    }

    /// What [`EpollEntry::restore`] would do.
    pub(super) fn preview(&self) -> RestoreOutcome {
        restore_of(&self.process, || {
            let would =
                RestoreOutcome::WouldRestore { now: "polls".to_owned(), old: format!("{:?}", self.old) };
            Ok(if self.is_set() { would } else { RestoreOutcome::Restored })
        })
    }

    fn try_restore(&self) -> io::Result<RestoreOutcome> {
        let epoll = match Descriptors::of(&self.process)?.duplicate(self.descriptor) {
            Ok(epoll) => epoll,
            // The process has closed it, or this number belongs to something else now.
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => return Ok(RestoreOutcome::Gone),
            Err(error) => return Err(error),
        };
        let Ok(now) = EpollParams::read(&epoll) else { return Ok(RestoreOutcome::Gone) };
        if now == self.old {
            return Ok(RestoreOutcome::Restored);
        }
        if !self.owns(now) {
            return Ok(RestoreOutcome::ChangedMeanwhile { value: format!("{now:?}") });
        }
        self.old.write(&epoll)?;
        Ok(RestoreOutcome::Restored)
    }
}

impl fmt::Display for EpollEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}, epoll instance {}", self.process.pid, self.descriptor)
    }
}

/// A listener of another process, whose reuseport group chooses by a program of the journal's
/// writer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListenerEntry {
    pub(crate) process: ProcessIdentity,
    pub(crate) descriptor: i32,
}

json_object!(ListenerEntry: process, descriptor);

impl ListenerEntry {
    /// What [`ListenerEntry::restore`] would do. Whether the group has a program is not known
    /// without removing it.
    pub(super) fn preview(&self) -> RestoreOutcome {
        restore_of(&self.process, || {
            let (now, old) = ("steered".to_owned(), "chosen by the hash".to_owned());
            Ok(RestoreOutcome::WouldRestore { now, old })
        })
    }

    /// Removes the program. The group chooses by the connection's hash again.
    pub(crate) fn restore(&self) -> RestoreOutcome {
        restore_of(&self.process, || {
            let listener = Descriptors::of(&self.process)?.duplicate(self.descriptor);
            let result = listener.and_then(|socket| stop_steering(&socket));
            match result.map_err(|error| (error.raw_os_error(), error)) {
                // Or it was not set yet, or removed by somebody else.
                Ok(()) | Err((Some(libc::ENOENT), _)) => Ok(RestoreOutcome::Restored),
                // The listener was closed, and the number may be that of something else.
                Err((Some(libc::EBADF | libc::ENOTSOCK | libc::EINVAL | libc::ENOPROTOOPT), _)) => {
                    Ok(RestoreOutcome::Gone)
                }
                Err((_, error)) => Err(error),
            }
        })
    }
}

impl fmt::Display for ListenerEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}, listener {}", self.process.pid, self.descriptor)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(tag = "outcome", rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum RestoreOutcome {
    /// The knob has its old value.
    Restored,
    /// Of a preview: the old value would be written.
    WouldRestore { now: String, old: String },
    /// Another process set the knob in the meantime, and its value was kept.
    ChangedMeanwhile { value: String },
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
}

/// The outcome of restoring something of another process.
fn restore_of(
    process: &ProcessIdentity,
    restore: impl FnOnce() -> io::Result<RestoreOutcome>,
) -> RestoreOutcome {
    match process.state() {
        ProcessState::Running => {}
        ProcessState::Ended => return RestoreOutcome::Gone,
        ProcessState::Hidden => {
            let reason = "this process can't see it; restore as root in the PID namespace in which `policies attach` ran";
            return RestoreOutcome::Failed { reason: reason.to_owned() };
        }
    }
    match restore() {
        Ok(outcome) => outcome,
        // It has ended meanwhile.
        Err(_) if !process.is_alive() => RestoreOutcome::Gone,
        Err(error) => RestoreOutcome::Failed { reason: error.to_string() },
    }
}

impl fmt::Display for RestoreOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RestoreOutcome::Restored => write!(f, "restored"),
            RestoreOutcome::WouldRestore { now, old } => write!(f, "would be restored from {now} to {old}"),
            RestoreOutcome::Gone => write!(f, "gone, nothing to restore"),
            RestoreOutcome::ChangedMeanwhile { value } => {
                write!(f, "left alone, another process has set it to {value} meanwhile")
            }
            RestoreOutcome::Failed { reason } => write!(f, "NOT restored: {reason}"),
        }
    }
}
