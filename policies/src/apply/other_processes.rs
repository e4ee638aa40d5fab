//! What is set on other processes: epoll instances that poll a guard's queues, and listeners that
//! choose by receive queue.

use std::io;
use std::sync::{Arc, Mutex};

use super::guard::{Guard, Undo, lock, restore_on_termination, restore_or_log};
use crate::epoll_params::EpollParams;
use crate::error::Error;
use crate::host::Interface;
use crate::host::process::ProcessIdentity;
use crate::journal::{EpollEntry, Journal, JournalDir, Lifetime, ListenerEntry, RestoreOutcome};
use crate::pidfd::Descriptors;
use crate::policy::Policy;
use crate::signals::Registration;
use crate::socket_options::steer_by_queue;

/// Sets the parameters of other processes' epoll instances, and records the old ones first. Where
/// the guard restores its queues, it restores the instances, too.
#[derive(Debug, Clone)]
pub(crate) struct EpollJournal {
    directory: JournalDir,
    undo: Arc<Mutex<Option<Undo>>>,
}

impl Guard {
    pub(crate) fn epoll_journal(&self) -> EpollJournal {
        EpollJournal { directory: self.directory.clone(), undo: Arc::clone(&self.undo) }
    }
}

impl EpollJournal {
    /// Records an instance with its present parameters.
    ///
    /// # Errors
    /// If the guard has restored its queues, or the journal can't be locked or written.
    pub(crate) fn record(
        &self,
        process: &ProcessIdentity,
        descriptor: i32,
        old: EpollParams,
        budget: u16,
    ) -> io::Result<()> {
        let _locked = self.directory.lock().map_err(io::Error::other)?;
        let mut slot = lock(&self.undo);
        let undo = slot.as_mut().ok_or_else(restored)?;
        undo.journal.epolls.retain(|entry| (&entry.process, entry.descriptor) != (process, descriptor));
        undo.journal.epolls.push(EpollEntry { process: process.clone(), descriptor, old, budget });
        undo.write(&self.directory).map_err(io::Error::other)
    }

    /// Sets the parameters of a recorded instance, if it has those of before or those that were set
    /// here: otherwise the process has opened another instance with that number. Returns whether it
    /// was set.
    ///
    /// # Errors
    /// If the guard has restored its queues or the instance is not recorded, and the kernel's
    /// errors.
    pub(crate) fn set(
        &self,
        process: &ProcessIdentity,
        descriptor: i32,
        params: EpollParams,
    ) -> io::Result<bool> {
        // Held to the end: a restore must not come between.
        let slot = lock(&self.undo);
        let undo = slot.as_ref().ok_or_else(restored)?;
        let mut entries = undo.journal.epolls.iter();
        let entry = entries
            .find(|entry| (&entry.process, entry.descriptor) == (process, descriptor))
            .ok_or_else(|| io::Error::other("the epoll instance is not in the journal"))?;
        let epoll = Descriptors::of(process)?.duplicate(descriptor)?;
        let now = EpollParams::read(&epoll)?;
        if now != entry.old && !entry.owns(now) {
            return Ok(false);
        }
        params.write(&epoll)?;
        Ok(true)
    }

    /// Restores an instance, and drops it from the journal unless that failed.
    pub(crate) fn give_back(&self, process: &ProcessIdentity, descriptor: i32) -> RestoreOutcome {
        let locked = self.directory.lock();
        let mut slot = lock(&self.undo);
        let Some(undo) = slot.as_mut() else { return RestoreOutcome::Restored };
        let is_it = |entry: &EpollEntry| (&entry.process, entry.descriptor) == (process, descriptor);
        let Some(entry) = undo.journal.epolls.iter().find(|entry| is_it(entry)) else {
            return RestoreOutcome::Gone;
        };
        let outcome = entry.restore();
        if !outcome.is_failure() {
            undo.journal.epolls.retain(|entry| !is_it(entry));
            if let Err(error) = locked.and_then(|_locked| undo.write(&self.directory)) {
                // Restoring it again changes nothing.
                tracing::warn!("an epoll instance stays in the journal: {error}");
            }
        }
        outcome
    }
}

fn restored() -> io::Error {
    io::Error::other("the queue's settings were restored")
}

/// Steers groups of listeners, and journals them first. Dropping it removes the programs, as do
/// SIGINT and SIGTERM.
#[derive(Debug)]
pub(crate) struct Steering {
    directory: JournalDir,
    undo: Arc<Mutex<Option<Undo>>>,
    signals: Option<Registration>,
}

impl Steering {
    /// For connections that come through an interface.
    pub(crate) fn new(interface: &Interface, directory: &JournalDir) -> Result<Self, Error> {
        let journal = Journal::new(
            Policy::KernelPolling,
            &interface.name,
            interface.index,
            Lifetime::Process,
            Vec::new(),
        );
        let undo = Arc::new(Mutex::new(Some(Undo::new(journal))));
        let signals = restore_on_termination(directory, &undo)?;
        Ok(Self { directory: directory.clone(), undo, signals: Some(signals) })
    }

    /// Makes the group of a listener choose the listener by the packet's queue, modulo `listeners`.
    ///
    /// # Errors
    /// If the journal can't be locked or written, the process has ended, or the listener is in no
    /// group.
    pub(crate) fn steer(&self, process: &ProcessIdentity, descriptor: i32, listeners: u32) -> io::Result<()> {
        let _locked = self.directory.lock().map_err(io::Error::other)?;
        let mut slot = lock(&self.undo);
        let undo = slot.as_mut().ok_or_else(|| io::Error::other("the listeners were restored"))?;
        undo.journal.listeners.push(ListenerEntry { process: process.clone(), descriptor });
        if let Err(error) = undo.write(&self.directory) {
            // It is not steered, and may have a program of somebody else.
            undo.journal.listeners.pop();
            return Err(io::Error::other(error));
        }
        steer_by_queue(&Descriptors::of(process)?.duplicate(descriptor)?, &[], listeners, false)
    }
}

impl Drop for Steering {
    fn drop(&mut self) {
        // Unregistered first, so that a signal does not start a second restore.
        self.signals.take();
        restore_or_log(&self.directory, &self.undo);
    }
}
