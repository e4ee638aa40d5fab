//! Putting back what was there, by a journal.

use std::io;

use serde::Serialize;

use crate::device::Device;
use crate::journal::{Entry, Journal};
use crate::netlink::route;
use crate::{Error, JournalDir, Knob, Lifetime, Policy};

/// What became of one knob on the way back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "restored", rename_all = "kebab-case")]
pub enum Restored {
    /// It has its old value (again).
    Restored,
    /// Someone else set it meanwhile; it was left alone.
    ChangedMeanwhile {
        /// What it has.
        value: String,
    },
    /// It went with the device, or with the knob that it hung on.
    Gone,
    /// It could not be put back.
    Failed {
        /// The kernel's word.
        reason: String,
    },
}

/// What a restore did.
#[derive(Debug, Clone, Serialize)]
pub struct RestoreReport {
    /// The interface.
    pub interface: String,
    /// The policy that was taken off.
    pub policy: Policy,
    /// Each knob, in the order in which they were put back.
    pub knobs: Vec<(Knob, Restored)>,
}

impl RestoreReport {
    /// Whether something that ought to be put back is not.
    pub fn failed(&self) -> bool {
        self.knobs.iter().any(|(_, restored)| matches!(restored, Restored::Failed { .. }))
    }
}

/// Puts back what processes that are gone left in this network namespace.
pub fn recover(directory: &JournalDir) -> Result<Vec<RestoreReport>, Error> {
    let _locked = directory.lock();
    restore_where(directory, Journal::is_abandoned)
}

/// Puts back everything that `policies apply` set and what processes that are gone left. The
/// settings of a running process are its own and stay.
pub fn restore_all(directory: &JournalDir, interface: Option<&str>) -> Result<Vec<RestoreReport>, Error> {
    let _locked = directory.lock();
    // Also by the name that it has by now.
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
        let report = put_back(&journal);
        if !report.failed() {
            directory.remove(&path)?;
        }
        reports.push(report);
    }
    Ok(reports)
}

pub(crate) fn put_back(journal: &Journal) -> RestoreReport {
    // By its index, which it keeps: it may have been renamed since its journal's writer died.
    let links = route::links().unwrap_or_default();
    let link = links.into_iter().find(|link| link.index == journal.ifindex);
    let down = link.as_ref().is_some_and(|link| !link.up);
    let renamed = link.map(|link| link.name);
    let device = Device::new(renamed.as_deref().unwrap_or(&journal.interface), journal.ifindex);
    // The last that was set is the first that is put back, but for the number of queues: the rest can
    // be put back only on the queues that there were.
    let (rebuild, rest): (Vec<&Entry>, Vec<&Entry>) =
        journal.entries.iter().rev().partition(|entry| matches!(entry.knob, Knob::Channels { .. }));
    let mut knobs = Vec::new();
    for entry in rebuild.into_iter().chain(rest) {
        knobs.push((entry.knob.clone(), put_back_one(entry, &device, down)));
    }
    RestoreReport { interface: journal.interface.clone(), policy: journal.policy, knobs }
}

fn put_back_one(entry: &Entry, device: &Device, down: bool) -> Restored {
    let now = match entry.knob.read(device) {
        Ok(now) => now,
        // A device that is down has no NAPIs, but may keep what was set on them until it is up.
        Err(error) if error.kind() == io::ErrorKind::NotFound && down && entry.knob.queue().is_some() => {
            return Restored::Failed { reason: "the link is down; restore again when it is up".to_owned() };
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Restored::Gone,
        Err(error) => return Restored::Failed { reason: error.to_string() },
    };
    let Some(old) = &entry.old else {
        // It didn't exist before: it goes with the knob that made it.
        return if entry.knob.vanishes_with_its_owner() {
            Restored::Gone
        } else {
            Restored::Failed { reason: "its old value could not be read".to_owned() }
        };
    };
    if now == *old {
        return Restored::Restored;
    }
    if !entry.owns(&now) {
        return Restored::ChangedMeanwhile { value: now.to_string() };
    }
    match entry.knob.write(device, old) {
        Ok(_) => Restored::Restored,
        Err(error) => Restored::Failed { reason: error.to_string() },
    }
}
