//! The journal of a guard, from which the host is restored once.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::Error;
use crate::host::capabilities::has_net_admin;
use crate::journal::{Journal, JournalDir, JournalFile, RestoreReport, restore_journal};

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
            Ok(file) => self.file = Some(file),
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
