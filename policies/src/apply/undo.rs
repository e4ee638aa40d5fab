//! The journal of a guard, from which the host is restored once.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::Error;
use crate::journal::{Journal, JournalDir, RestoreReport, restore_journal};

/// A journal and its file. The slot of a [`Guard`](super::Guard) is empty after the restore.
#[derive(Debug)]
pub(super) struct Undo {
    /// `None` if the journal is empty and could not be written.
    pub(super) path: Option<PathBuf>,
    pub(super) journal: Journal,
}

impl Undo {
    /// Writes the journal. Knobs may be set only after it records their old values.
    pub(super) fn write(&mut self, directory: &JournalDir) -> Result<(), Error> {
        match directory.write(&self.journal) {
            Ok(path) => self.path = Some(path),
            // Without a change there is nothing to restore: a process without write permission can run
            // on an interface that was configured for it.
            Err(_) if self.journal.entries.is_empty() && self.journal.is_own() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Restores the host and removes the journal; `None` if that was done before.
///
/// Lock order: the journal directory, then the slot, as in `apply`. A signal that arrives during `apply`
/// waits for it.
pub(super) fn restore_once(
    directory: &JournalDir,
    undo: &Mutex<Option<Undo>>,
) -> Option<Result<RestoreReport, Error>> {
    let _locked = directory.lock();
    let mut slot = lock(undo);
    let Undo { path, journal } = slot.take()?;
    let report = restore_journal(&journal);
    if report.failed() {
        // The journal stays, so that a later restore can try again.
        return Some(Ok(report));
    }
    let Some(path) = path else { return Some(Ok(report)) };
    Some(directory.remove(&path).map(|()| report))
}
