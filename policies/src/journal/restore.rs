//! Restores old values from journals.

use std::fmt;
use std::io;

use serde::Serialize;

use super::directory::JournalDir;
use super::entry::{Entry, OwnedValues};
use super::record::{Journal, Lifetime};
use crate::error::Error;
use crate::host::device::Device;
use crate::knob::Knob;
use crate::netlink::route;
use crate::policy::Policy;

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
    /// The old value could not be written.
    Failed {
        /// The kernel's error.
        reason: String,
    },
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

/// The result of restoring one journal.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct RestoreReport {
    /// The interface's name when the policy was applied.
    pub interface: String,
    /// The policy that was removed.
    pub policy: Policy,
    /// The knobs, in the order in which they were restored.
    pub knobs: Vec<(Knob, RestoreOutcome)>,
}

impl RestoreReport {
    /// Whether any knob could not be restored.
    pub fn failed(&self) -> bool {
        self.knobs.iter().any(|(_, outcome)| matches!(outcome, RestoreOutcome::Failed { .. }))
    }
}

/// Restores what ended processes left set in this network namespace.
///
/// # Errors
/// [`Error::Journal`] if a journal can't be read or removed. A knob that can't be restored is not an
/// error; see [`RestoreReport::failed`].
pub fn recover(directory: &JournalDir) -> Result<Vec<RestoreReport>, Error> {
    let _locked = directory.lock();
    restore_where(directory, Journal::is_abandoned)
}

/// Restores what `policies apply` set and what ended processes left set, on one interface or on all.
/// Settings of running processes stay.
///
/// # Errors
/// [`Error::Journal`] if a journal can't be read or removed. A knob that can't be restored is not an
/// error; see [`RestoreReport::failed`].
pub fn restore_all(directory: &JournalDir, interface: Option<&str>) -> Result<Vec<RestoreReport>, Error> {
    let _locked = directory.lock();
    // The interface may have been renamed since.
    let index = interface
        .and_then(|name| route::links().ok()?.into_iter().find(|link| link.name == name))
        .map(|link| link.index);
    restore_where(directory, |journal| {
        interface.is_none_or(|name| name == journal.interface || index == Some(journal.ifindex))
            && (journal.lifetime == Lifetime::Host || journal.is_abandoned())
    })
}

pub(crate) fn restore_where(
    directory: &JournalDir,
    select: impl Fn(&Journal) -> bool,
) -> Result<Vec<RestoreReport>, Error> {
    let mut reports = Vec::new();
    for (path, journal) in directory.read()? {
        if !select(&journal) {
            continue;
        }
        let report = restore_journal(&journal);
        if !report.failed() {
            directory.remove(&path)?;
        }
        reports.push(report);
    }
    Ok(reports)
}

pub(crate) fn restore_journal(journal: &Journal) -> RestoreReport {
    // By index: the interface may have been renamed since the journal was written.
    let links = route::links().unwrap_or_default();
    let link = links.into_iter().find(|link| link.index == journal.ifindex);
    let down = link.as_ref().is_some_and(|link| !link.up);
    let renamed = link.map(|link| link.name);
    let device = Device::new(renamed.as_deref().unwrap_or(&journal.interface), journal.ifindex);
    // In reverse order, except that the number of queues comes first: the other knobs may belong to
    // queues that don't exist before.
    let (rebuild, rest): (Vec<&Entry>, Vec<&Entry>) =
        journal.entries.iter().rev().partition(|entry| matches!(entry.knob, Knob::Channels { .. }));
    let mut knobs = Vec::new();
    for entry in rebuild.into_iter().chain(rest) {
        knobs.push((entry.knob.clone(), restore_entry(entry, &device, down)));
    }
    RestoreReport { interface: journal.interface.clone(), policy: journal.policy, knobs }
}

impl Journal {
    /// Restores the knobs that were set, and drops the entries of the plan, which another one follows. Entries stay
    /// whose knob could not be restored, and those that have their own reason: the number of queues, and what
    /// changing it loses.
    pub(crate) fn give_up(&mut self, device: &Device, is_set: impl Fn(&Knob) -> bool) {
        for index in (0..self.entries.len()).rev() {
            let entry = &self.entries[index];
            if matches!(entry.knob, Knob::Channels { .. }) {
                continue;
            }
            let kept = is_set(&entry.knob)
                && !matches!(
                    restore_entry(entry, device, false),
                    RestoreOutcome::Restored | RestoreOutcome::Gone
                );
            if !kept && entry.owned != OwnedValues::Any {
                self.entries.remove(index);
            }
        }
    }
}

fn restore_entry(entry: &Entry, device: &Device, down: bool) -> RestoreOutcome {
    let now = match entry.knob.read(device) {
        Ok(now) => now,
        // While the link is down there are no NAPIs, but the driver may keep their settings.
        Err(error) if error.kind() == io::ErrorKind::NotFound && down && entry.knob.queue().is_some() => {
            return RestoreOutcome::Failed {
                reason: "the link is down; restore again when it is up".to_owned(),
            };
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return RestoreOutcome::Gone,
        Err(error) => return RestoreOutcome::Failed { reason: error.to_string() },
    };
    let Some(old) = &entry.old else {
        // The knob didn't exist before, and disappears with the knob that it depends on.
        return if entry.knob.depends_on_another_knob() {
            RestoreOutcome::Gone
        } else {
            RestoreOutcome::Failed { reason: "its old value could not be read".to_owned() }
        };
    };
    if now == *old {
        return RestoreOutcome::Restored;
    }
    if !entry.owns(&now) {
        return RestoreOutcome::ChangedMeanwhile { value: now.to_string() };
    }
    match entry.knob.write(device, old) {
        Ok(_) => RestoreOutcome::Restored,
        Err(error) => RestoreOutcome::Failed { reason: error.to_string() },
    }
}
