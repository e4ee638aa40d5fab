//! An applied plan that restores the host when it is dropped, once, from its journal.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::adapted_queue::{AdaptedQueue, QueueDelegate};
use super::outcome::{Applied, Outcome, write_verified};
use crate::controller::QueueSettings;
use crate::error::Error;
use crate::host::device::Device;
use crate::host::machine::has_net_admin;
use crate::host::net_namespace::NetNamespace;
use crate::journal::{Journal, JournalDir, JournalFile, Lifetime, RestoreReport, restore_journal};
use crate::knob::{Knob, Value};
use crate::plan::Plan;
use crate::signals::{self, Registration};

/// A plan that has been applied.
///
/// Dropping the guard restores the old values. So do SIGINT and SIGTERM, and after SIGKILL the next
/// [`apply`](crate::apply) or [`recover`](crate::recover).
#[derive(Debug)]
#[must_use = "dropping the guard restores the host at once"]
pub struct Guard {
    pub(super) plan: Plan,
    pub(super) applied: Vec<Applied>,
    pub(super) directory: JournalDir,
    pub(super) undo: Arc<Mutex<Option<Undo>>>,
    pub(super) signals: Option<Registration>,
}

impl Guard {
    /// The steps that were carried out, in order.
    pub fn applied(&self) -> &[Applied] {
        &self.applied
    }

    /// The plan in effect: the given one, or the one made after the number of queues was changed.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Restores what is left of the old values, and removes the journal.
    pub(crate) fn restore_now(&self) {
        restore_or_log(&self.directory, &self.undo);
    }

    pub(crate) fn directory(&self) -> &JournalDir {
        &self.directory
    }

    /// Keeps the host as it is. The journal stays, for `policies restore`.
    pub fn keep(mut self) -> Vec<Applied> {
        if let Some(file) = lock(&self.undo).take().and_then(|undo| undo.file) {
            file.keep_locked();
        }
        std::mem::take(&mut self.applied)
    }

    /// Keeps the host as it is, until `policies restore` or a reboot, also if it was to be restored
    /// when this process ends.
    ///
    /// # Errors
    /// [`Error::Journal`] if the journal can't be replaced. The host is restored then.
    pub fn keep_for_host(self) -> Result<(), Error> {
        let locked = self.directory.lock()?;
        let mut slot = lock(&self.undo);
        if let Some(undo) = slot.as_mut() {
            let before = undo.file.as_ref().map(|file| file.path.clone());
            undo.journal.lifetime = Lifetime::Host;
            undo.write(&self.directory)?;
            // Both at once would restore twice, to the same values.
            if let Some(before) =
                before.filter(|path| undo.file.as_ref().is_some_and(|file| file.path != *path))
            {
                self.directory.remove(&before)?;
            }
        }
        drop(slot);
        drop(locked);
        drop(self.keep());
        Ok(())
    }

    /// Restores the old values now; `None` if a signal has restored them already.
    ///
    /// # Errors
    /// [`Error::Journal`] if the journal can't be removed. A knob that can't be restored is not an
    /// error; see [`RestoreReport::failed`].
    pub fn restore(self) -> Option<Result<RestoreReport, Error>> {
        restore_once(&self.directory, &self.undo)
    }

    /// From now on the journal stays for another process if this one ends without the privilege to
    /// restore.
    pub(crate) fn leave_to_delegate(&self) {
        if let Some(undo) = &mut *lock(&self.undo) {
            undo.has_delegate = true;
        }
    }

    /// Sets the selected knobs again that have lost their value, and returns them with the value
    /// that they had. Another process may have set them, or the device lost them when its link was
    /// reopened.
    ///
    /// With `only_if_reset`, a knob is set again only if it has its value from before the policy.
    pub(crate) fn reapply(
        &mut self,
        select: impl Fn(&Knob) -> bool,
        only_if_reset: bool,
    ) -> Vec<(Applied, Option<Value>)> {
        let device = Device::new(&self.plan.interface, self.plan.ifindex);
        // Held to the end: after a signal has restored a knob, it must not be set again.
        let undo = lock(&self.undo);
        let Some(Undo { journal, .. }) = &*undo else { return Vec::new() };
        let original = |knob: &Knob| {
            journal.entries.iter().find(|entry| entry.knob == *knob).and_then(|entry| entry.old.clone())
        };
        let mut reapplied = Vec::new();
        for applied in self.applied.iter().filter(|applied| select(&applied.knob)) {
            let expected = match &applied.outcome {
                Outcome::AtLimit { value, .. } | Outcome::Rounded { value } => value.clone(),
                Outcome::Already | Outcome::Set | Outcome::Pending { .. } => applied.target.to_string(),
                // It could not be set before.
                Outcome::Failed { .. } | Outcome::ReadsBack { .. } => continue,
            };
            let current = applied.knob.read(&device).ok();
            let unchanged = current.as_ref().is_none_or(|current| current.to_string() == expected);
            // A knob that had its target value before the policy has no entry; any other value of
            // it may be what the device resets it to.
            let original = original(&applied.knob);
            if unchanged || (only_if_reset && original.is_some() && current != original) {
                continue;
            }
            let mut again = applied.clone();
            // What the device makes of the target is known, and need not be searched again.
            let target = match (&applied.outcome, expected.parse()) {
                (Outcome::AtLimit { .. } | Outcome::Rounded { .. }, Ok(value)) => Value::Number(value),
                _ => applied.target.clone(),
            };
            (again.outcome, _) = write_verified(&applied.knob, &target, &device);
            reapplied.push((again, current));
        }
        reapplied
    }

    /// Sets the values with which the controller drives a queue, unless the host has been restored.
    /// They become the targets that [`Guard::reapply`] keeps. `delegate` sets them if this process
    /// may not.
    ///
    /// # Errors
    /// If the plan does not adapt the queue, if the queue has no NAPI, or the kernel's or the
    /// delegate's error.
    pub(crate) fn set_queue(
        &mut self,
        queue: u32,
        settings: &QueueSettings,
        delegate: Option<&mut QueueDelegate>,
    ) -> io::Result<()> {
        let adapted = AdaptedQueue::new(self.plan.ifindex, queue, settings);
        let mut targets = Vec::new();
        for (knob, _, number) in adapted.values() {
            let position = self.applied.iter().position(|applied| applied.knob == knob);
            let position =
                position.ok_or_else(|| io::Error::other(format!("the policy does not set {knob}")))?;
            targets.push((position, number));
        }
        let device = Device::new(&self.plan.interface, self.plan.ifindex);
        // Held to the end: a restore must not come between these values.
        let undo = lock(&self.undo);
        if undo.is_none() {
            return Ok(());
        }
        match (adapted.write(&device), delegate) {
            (Err(error), Some(delegate)) if error.kind() == io::ErrorKind::PermissionDenied => {
                delegate(&adapted)?
            }
            (result, _) => result?,
        }
        for (position, number) in targets {
            self.applied[position].target = Value::Number(number);
        }
        Ok(())
    }

    pub(crate) fn rename_interface(&mut self, name: &str) -> Result<(), Error> {
        name.clone_into(&mut self.plan.interface);
        let _locked = self.directory.lock()?;
        let mut slot = lock(&self.undo);
        let Some(undo) = slot.as_mut() else { return Ok(()) };
        name.clone_into(&mut undo.journal.interface);
        undo.write(&self.directory)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Unregistered first, so that a signal does not start a second restore.
        self.signals.take();
        restore_or_log(&self.directory, &self.undo);
    }
}

/// A journal and its file. The slot of a [`Guard`](super::Guard) is empty after the restore.
#[derive(Debug)]
pub(super) struct Undo {
    /// `None` if the journal is empty and could not be written.
    pub(super) file: Option<JournalFile>,
    pub(super) journal: Journal,
    /// Whether another process restores what this one may not.
    pub(super) has_delegate: bool,
}

impl Undo {
    pub(super) fn new(journal: Journal) -> Self {
        Self { file: None, journal, has_delegate: false }
    }

    /// Writes the journal. Knobs may be set only after it records their old values.
    pub(super) fn write(&mut self, directory: &JournalDir) -> Result<(), Error> {
        match directory.write(&mut self.journal) {
            // The file that it replaces is unlocked after this one was locked.
            Ok(mut file) => {
                file.replace(self.file.take());
                self.file = Some(file);
            }
            // Without a change there is nothing to restore: a process without write permission can
            // run on an interface that was configured for it.
            Err(_) if self.journal.entries.is_empty() && self.journal.is_own() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Restores the host on SIGINT and SIGTERM, in the calling thread's network namespace: signals are
/// handled on a thread of any.
pub(super) fn restore_on_termination(
    directory: &JournalDir,
    undo: &Arc<Mutex<Option<Undo>>>,
) -> Result<Registration, Error> {
    let (directory, undo) = (directory.clone(), Arc::clone(undo));
    let namespace = NetNamespace::current().map_err(Error::kernel("open the network namespace"))?;
    let restore = move || {
        if let Err(error) = namespace.run(|| restore_or_log(&directory, &undo)) {
            tracing::error!("cannot enter the network namespace to restore it: {error}");
        }
    };
    signals::on_termination(restore).map_err(Error::kernel("watch for signals"))
}

/// As [`restore_once`], for those who can't return an error. Without the privilege to restore it
/// leaves the journal to the process that has it, if there is one.
pub(super) fn restore_or_log(directory: &JournalDir, undo: &Mutex<Option<Undo>>) {
    if !has_net_admin() && lock(undo).take_if(|undo| undo.has_delegate).is_some() {
        tracing::info!(
            "this process may not restore its settings; the one that sets its queues' values does"
        );
        return;
    }
    match restore_once(directory, undo) {
        Some(Ok(report)) => {
            report.failures().for_each(|failure| tracing::error!("{failure}; run `policies restore`"));
        }
        Some(Err(error)) => {
            tracing::error!("a journal of settings stays: {error}; run `policies restore`");
        }
        None => {}
    }
}

/// Restores the host and removes the journal; `None` if that was done before.
///
/// It restores also if the directory can't be locked: as long as the journal is held, no other
/// process restores or replaces these values. Then the journal stays, and that is the error.
///
/// Lock order: the journal directory, then the slot, as in `apply`. A signal that arrives during
/// `apply` waits for it.
pub(super) fn restore_once(
    directory: &JournalDir,
    undo: &Mutex<Option<Undo>>,
) -> Option<Result<RestoreReport, Error>> {
    let locked = directory.lock();
    let mut slot = lock(undo);
    // The file is held until it was removed.
    let mut undo = slot.take()?;
    let before = undo.journal.entries.clone();
    let report = restore_journal(&mut undo.journal);
    if report.failed() {
        // The journal stays, so that a later restore can try again.
        let written = if undo.journal.entries == before {
            Ok(())
        } else {
            locked.and_then(|_locked| undo.write(directory))
        };
        if written.is_err() {
            report.failures().for_each(|failure| tracing::error!("{failure}"));
        }
        return Some(written.map(|()| report));
    }
    let Undo { file, .. } = undo;
    let Some(file) = file else { return Some(Ok(report)) };
    Some(locked.and_then(|_locked| directory.remove(&file.path)).map(|()| report))
}
