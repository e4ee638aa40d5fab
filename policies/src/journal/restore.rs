//! Restores old values from journals.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use super::directory::JournalDir;
use super::entries::{Entry, EpollEntry, OwnedValues, RestoreOutcome};
use super::found::{FoundJournal, LeftJournal, UnreadableJournal};
use super::record::{Journal, Lifetime};
use crate::controller::QueueSettings;
use crate::error::Error;
use crate::host::device::Device;
use crate::host::net_namespace::NetNamespace;
use crate::host::process::network_namespace;
use crate::host::wait_for_queues;
use crate::knob::{Knob, Value};
use crate::netlink::route;
use crate::policy::Policy;

#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct RestoreReport {
    /// The interface's name when the policy was applied.
    pub interface: String,
    pub policy: Policy,
    pub knobs: Vec<(Knob, RestoreOutcome)>,
    /// The epoll instances and listeners of other processes, as `process 812, epoll instance 5`.
    pub others: Vec<(String, RestoreOutcome)>,
}

impl RestoreReport {
    /// Whether any knob, epoll instance or listener could not be restored.
    pub fn failed(&self) -> bool {
        self.failures().next().is_some()
    }

    /// What could not be restored and why, one line each.
    pub fn failures(&self) -> impl Iterator<Item = String> {
        let knobs = self.knobs.iter().map(|(knob, outcome)| (knob.to_string(), outcome));
        let others = self.others.iter().map(|(other, outcome)| (other.clone(), outcome));
        knobs
            .chain(others)
            .filter(|(_, outcome)| outcome.is_failure())
            .map(|(what, outcome)| format!("{}: {what}: {outcome}", self.interface))
    }
}

#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Recovery {
    pub reports: Vec<RestoreReport>,
    /// The journals that could not be read, restored or removed.
    pub left: Vec<LeftJournal>,
}

impl Recovery {
    /// Whether anything is left that should have been restored.
    pub fn failed(&self) -> bool {
        !self.left.is_empty() || self.reports.iter().any(RestoreReport::failed)
    }
}

/// Restores what ended processes left set in this network namespace, and in those of the processes
/// that they had attached to. A journal that can't be read does not keep the others from being
/// restored.
///
/// # Errors
/// [`Error::Journal`] if the directory of journals can't be read, or if it can't be locked and
/// something is to be restored. A journal or a knob that can't be restored is not an error; see
/// [`Recovery::failed`].
pub fn recover(directory: &JournalDir) -> Result<Recovery, Error> {
    restore_everywhere(directory, None, FoundJournal::is_abandoned)
}

/// Restores what ended processes left set and, unless only that of `ended` ones is asked for, what
/// `policies apply` set; on one interface or on all. Also in the network namespaces of the processes
/// that ended processes had attached to. Settings of running processes stay.
///
/// # Errors
/// As [`recover`].
pub fn restore(directory: &JournalDir, interface: Option<&str>, ended: bool) -> Result<Recovery, Error> {
    let index = index_of(interface);
    restore_everywhere(directory, index, |found| is_selected(found, interface, index, ended))
}

/// What [`restore`] would do now. Changes nothing, and needs no privilege but for journals of other
/// network namespaces.
///
/// # Errors
/// [`Error::Journal`] if the directory of journals can't be read.
pub fn restore_preview(
    directory: &JournalDir,
    interface: Option<&str>,
    ended: bool,
) -> Result<Recovery, Error> {
    let (index, own) = (index_of(interface), network_namespace());
    let contents = directory.read_all()?;
    let unreadable =
        contents.unreadable.iter().filter(|it| it.is_held != Some(true) && it.may_concern(own, index));
    let mut recovery = Recovery {
        reports: Vec::new(),
        left: unreadable.map(|unreadable| unreadable.left.clone()).collect(),
    };
    let is_chosen = |it: &&FoundJournal| is_there(it, own) && is_selected(it, interface, index, ended);
    for FoundJournal { journal, path, .. } in contents.journals.iter().filter(is_chosen) {
        if journal.namespace == own {
            recovery.reports.push(preview(journal));
            continue;
        }
        let Some(namespace) = NetNamespace::find(journal.namespace) else { continue };
        match namespace.run(|| preview(journal)) {
            Ok(report) => recovery.reports.push(report),
            Err(error) => recovery.left.push(LeftJournal::new(path, not_entered(&error), "look as root")),
        }
    }
    Ok(recovery)
}

fn not_entered(error: &io::Error) -> String {
    format!("the network namespace of an attached process can't be entered: {error}")
}

/// `index`: that of the interface, which may have been renamed since.
fn is_selected(found: &FoundJournal, interface: Option<&str>, index: Option<u32>, ended: bool) -> bool {
    let journal = &found.journal;
    let is_named = interface.is_none_or(|name| name == journal.interface || index == Some(journal.ifindex));
    is_named && (found.is_abandoned() || !ended && journal.lifetime == Lifetime::Host)
}

fn preview(journal: &Journal) -> RestoreReport {
    let (device, down) = device_of(journal);
    let would = |entry: &Entry| match before_write(entry, &device, down) {
        Ok((now, old)) => RestoreOutcome::WouldRestore { now: now.to_string(), old: old.to_string() },
        Err(outcome) => outcome,
    };
    let knobs = journal.entries.iter().rev().map(|entry| (entry.knob.clone(), would(entry)));
    let epolls = journal.epolls.iter().rev().map(|entry| (entry.to_string(), entry.preview()));
    let listeners = journal.listeners.iter().rev().map(|entry| (entry.to_string(), entry.preview()));
    RestoreReport {
        interface: journal.interface.clone(),
        policy: journal.policy,
        knobs: knobs.collect(),
        others: epolls.chain(listeners).collect(),
    }
}

fn index_of(interface: Option<&str>) -> Option<u32> {
    let name = interface?;
    route::links().ok()?.into_iter().find(|link| link.name == name).map(|link| link.index)
}

/// In the calling thread's network namespace, and in those of attached processes. A namespace that
/// has ended has nothing to restore, nor have its processes. Journals that can't be read are
/// reported only if they may be of the interface `ifindex`, if one is given.
fn restore_everywhere(
    directory: &JournalDir,
    ifindex: Option<u32>,
    select: impl Fn(&FoundJournal) -> bool + Sync,
) -> Result<Recovery, Error> {
    let own = network_namespace();
    let is_reported = |unreadable: &UnreadableJournal| {
        // A running process restores its settings itself.
        unreadable.is_held != Some(true) && unreadable.may_concern(own, ifindex)
    };
    let _locked = match directory.lock() {
        Ok(locked) => locked,
        // Another process may be applying a policy, so nothing is restored. Without privileges
        // there is mostly nothing to restore either.
        Err(error) => {
            let contents = directory.read_all()?;
            let is_selected = |found: &FoundJournal| is_there(found, own) && select(found);
            let is_left =
                contents.journals.iter().any(is_selected) || contents.unreadable.iter().any(is_reported);
            return if is_left { Err(error) } else { Ok(Recovery::default()) };
        }
    };
    let contents = directory.read_all()?;
    // The other network namespaces, each with its journals that are to be restored.
    let mut others: BTreeMap<u64, Vec<PathBuf>> = BTreeMap::new();
    let elsewhere = contents.journals.iter().filter(|it| is_there(it, own) && it.journal.namespace != own);
    for found in elsewhere.filter(|found| select(found)) {
        others.entry(found.journal.namespace).or_default().push(found.path.clone());
    }
    let mut recovery = restore_where(directory, &select)?;
    let unreadable = contents.unreadable.into_iter().filter(is_reported);
    recovery.left.extend(unreadable.map(|unreadable| unreadable.left));
    for (namespace, paths) in others {
        let Some(namespace) = NetNamespace::find(namespace) else { continue };
        match namespace.run(|| restore_where(directory, &select)) {
            Ok(restored) => {
                let restored = restored?;
                recovery.reports.extend(restored.reports);
                recovery.left.extend(restored.left);
            }
            Err(error) => {
                let reason = not_entered(&error);
                let left = paths.iter().map(|path| LeftJournal::new(path, &reason, "restore as root"));
                recovery.left.extend(left);
            }
        }
    }
    Ok(recovery)
}

/// Whether a journal is restored from here: one of this network namespace, or one that records
/// something of other processes. The namespaces in which `policies attach` runs are those of its
/// targets.
pub(super) fn is_there(found: &FoundJournal, own: u64) -> bool {
    found.journal.namespace == own || !found.journal.is_own()
}

/// Restores the selected journals of the calling thread's network namespace. The directory must be
/// locked.
pub(crate) fn restore_where(
    directory: &JournalDir,
    select: impl Fn(&FoundJournal) -> bool,
) -> Result<Recovery, Error> {
    let mut recovery = Recovery::default();
    for mut found in directory.read()?.journals {
        if !select(&found) {
            continue;
        }
        let before = found.journal.entries.clone();
        let report = restore_journal(&mut found.journal);
        if !report.failed() {
            if let Err(error) = directory.remove(&found.path) {
                let remedy = "its settings were restored: remove the file";
                recovery.left.push(LeftJournal::new(&found.path, error, remedy));
            }
        } else if found.journal.entries != before
            && let Err(error) = directory.replace(&found)
        {
            let remedy =
                "not all of its settings were restored: restore again, and compare them with `policies show`";
            recovery.left.push(LeftJournal::new(&found.path, error, remedy));
        }
        recovery.reports.push(report);
    }
    Ok(recovery)
}

/// Restores a journal's settings. If some can't be restored, only their entries are left.
pub(crate) fn restore_journal(journal: &mut Journal) -> RestoreReport {
    let (device, down) = device_of(journal);
    // In reverse order, except that what rebuilds the queues comes first: the other knobs may
    // belong to queues that don't exist before, or lose their values.
    let (rebuild, rest): (Vec<usize>, Vec<usize>) =
        (0..journal.entries.len()).rev().partition(|index| journal.entries[*index].knob.rebuilds_queues());
    // Nobody may resume a suspended queue once its waits no longer poll. So first polls have to
    // complete with the interrupt enabled, and a suspension that began before has to end.
    if journal.epolls.iter().any(EpollEntry::is_set) {
        thread::sleep(stop_deferral(journal, &device));
    }
    let epolls = journal.epolls.iter().rev().map(|entry| (entry.to_string(), entry.restore()));
    let listeners = journal.listeners.iter().rev().map(|entry| (entry.to_string(), entry.restore()));
    let others = epolls.chain(listeners).collect();
    let mut knobs = Vec::new();
    for index in rebuild.into_iter().chain(rest) {
        let entry = &mut journal.entries[index];
        knobs.push((entry.knob.clone(), restore_entry(entry, &device, down)));
    }
    let failed: Vec<&Knob> =
        knobs.iter().filter(|(_, outcome)| outcome.is_failure()).map(|(knob, _)| knob).collect();
    // What was restored may be set by another process from now on. But the next try to rebuild the
    // queues may change it.
    if !failed.iter().any(|knob| knob.rebuilds_queues()) {
        journal.entries.retain(|entry| failed.contains(&&entry.knob));
    }
    RestoreReport { interface: journal.interface.clone(), policy: journal.policy, knobs, others }
}

/// The journal's device, and whether its link is down. By index: it may have been renamed since the
/// journal was written.
pub(super) fn device_of(journal: &Journal) -> (Device, bool) {
    let links = route::links().unwrap_or_default();
    let link = links.into_iter().find(|link| link.index == journal.ifindex);
    let down = link.as_ref().is_some_and(|link| !link.up);
    let renamed = link.map(|link| link.name);
    (Device::new(renamed.as_deref().unwrap_or(&journal.interface), journal.ifindex), down)
}

/// Sets the deferrals that are adapted to 0. Returns the longest time for which a queue's interrupt
/// stays masked: its suspend timeout, or the timer of its last poll.
fn stop_deferral(journal: &Journal, device: &Device) -> Duration {
    let mut longest = 0;
    for entry in journal.entries.iter().filter(|entry| entry.is_adapted()) {
        let Ok(now) = entry.knob.read(device) else { continue };
        match (&entry.knob, &now) {
            (
                Knob::NapiIrqSuspendTimeout { .. } | Knob::NapiGroFlushTimeout { .. },
                Value::Number(timeout),
            ) => longest = longest.max(*timeout),
            (Knob::NapiDeferHardIrqs { .. }, Value::Number(1..)) if entry.owns(&now) => {
                // Fails only if the queue is gone.
                let _ = entry.knob.write(device, &Value::Number(0));
            }
            _ => {}
        }
    }
    Duration::from_nanos(longest).min(QueueSettings::LONGEST_SUSPEND_TIMEOUT)
}

impl Journal {
    /// Restores the knobs that were set, and drops the entries of the plan, which another one
    /// follows. Entries stay whose knob could not be restored, and those that have their own
    /// reason: the number of queues, the size of their rings, and what changing these loses.
    pub(crate) fn give_up(&mut self, device: &Device, is_set: impl Fn(&Knob) -> bool) {
        for index in (0..self.entries.len()).rev() {
            let entry = &mut self.entries[index];
            if entry.knob.rebuilds_queues() {
                continue;
            }
            // What a killed process left is restored as well, for nobody else knows the original
            // value any more.
            let kept = (is_set(&entry.knob) || entry.left.is_some())
                && !matches!(
                    restore_entry(entry, device, false),
                    RestoreOutcome::Restored | RestoreOutcome::Gone
                );
            if !kept && entry.own != OwnedValues::Any {
                self.entries.remove(index);
            }
        }
    }
}

/// The entries that follow are of queues, and have no NAPI to be set on before it is there again.
fn wait_for_rebuilt_queues(knob: &Knob, old: &Value, device: &Device) {
    let count = if *knob == Knob::RxRing { None } else { old.number() };
    // Fails only if the interface is gone, and then so are its queues.
    if let Ok(index) = device.verified_index() {
        let _ = wait_for_queues(index, count);
    }
    device.invalidate_queues();
}

/// The present value and the one to write, or the outcome of an entry that needs no write.
fn before_write(entry: &Entry, device: &Device, down: bool) -> Result<(Value, Value), RestoreOutcome> {
    let now = match entry.knob.read(device) {
        Ok(now) => now,
        // While the link is down there are no NAPIs, but the driver may keep their settings.
        Err(error) if error.kind() == io::ErrorKind::NotFound && down && entry.knob.queue().is_some() => {
            return Err(RestoreOutcome::Failed {
                reason: "the link is down; restore again when it is up".to_owned(),
            });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(RestoreOutcome::Gone),
        Err(error) => return Err(RestoreOutcome::Failed { reason: error.to_string() }),
    };
    let Some(old) = &entry.old else {
        // The knob didn't exist before, and disappears with the knob that it depends on.
        return Err(if entry.knob.depends_on_another_knob() {
            RestoreOutcome::Gone
        } else {
            RestoreOutcome::Failed { reason: "its old value could not be read".to_owned() }
        });
    };
    if now == *old {
        return Err(RestoreOutcome::Restored);
    }
    if !entry.owns(&now) {
        return Err(RestoreOutcome::ChangedMeanwhile { value: now.to_string() });
    }
    Ok((now, old.clone()))
}

fn restore_entry(entry: &mut Entry, device: &Device, down: bool) -> RestoreOutcome {
    let (now, old) = match before_write(entry, device, down) {
        Ok(values) => values,
        Err(outcome) => return outcome,
    };
    if let Err(error) = entry.knob.write(device, &old) {
        return RestoreOutcome::Failed { reason: format!("it is {now}, and can't be set to {old}: {error}") };
    }
    if entry.knob.rebuilds_queues() && !down {
        wait_for_rebuilt_queues(&entry.knob, &old, device);
    }
    let written = entry.knob.read(device);
    judge(entry, written)
}

/// The outcome of a write that the kernel took, by what the knob reads as after it.
fn judge(entry: &mut Entry, now: io::Result<Value>) -> RestoreOutcome {
    let wanted = entry.old.as_ref().map_or_else(String::new, Value::to_string);
    match now {
        Ok(now) if entry.old.as_ref() == Some(&now) => RestoreOutcome::Restored,
        Ok(now) => {
            let reason = format!("it was set to {wanted}, and is {now}");
            // The value is from here, so that the next restore tries again.
            if !entry.owns(&now) {
                entry.new = now;
                entry.own = OwnedValues::New;
            }
            RestoreOutcome::Failed { reason }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => RestoreOutcome::Gone,
        Err(error) => {
            RestoreOutcome::Failed { reason: format!("it was set to {wanted}, and can't be read: {error}") }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::ethtool::Coalescing;

    #[test]
    fn a_knob_that_is_gone_after_its_write_is_not_one_that_cannot_be_read() {
        let (old, new) = (Some(Value::Number(100)), Value::Number(32));
        let knob = Knob::Coalesce { parameter: Coalescing::RxUsecs };
        let mut entry = Entry { knob, old, new, own: OwnedValues::New, left: None };
        assert_eq!(judge(&mut entry, Err(io::ErrorKind::NotFound.into())), RestoreOutcome::Gone);
        let refused = judge(&mut entry, Err(io::ErrorKind::PermissionDenied.into()));
        assert!(matches!(refused, RestoreOutcome::Failed { .. }), "{refused:?}");
    }
}
