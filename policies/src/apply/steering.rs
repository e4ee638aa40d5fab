//! Listeners of other processes, which a program of ours makes choose by receive queue.

use std::io;
use std::sync::{Arc, Mutex};

use super::undo::{Undo, lock, restore_or_log};
use crate::error::Error;
use crate::host::Interface;
use crate::host::identity::ProcessIdentity;
use crate::host::net_namespace::NetNamespace;
use crate::journal::{Journal, JournalDir, Lifetime, ListenerEntry};
use crate::pidfd::Descriptors;
use crate::policy::Policy;
use crate::signals::{self, Registration};
use crate::socket_options::steer_by_queue;

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
        let namespace = NetNamespace::current().map_err(Error::kernel("open the network namespace"))?;
        let (undone, journals) = (Arc::clone(&undo), directory.clone());
        let restore = move || {
            if let Err(error) = namespace.run(|| restore_or_log(&journals, &undone)) {
                tracing::error!("cannot enter the network namespace to restore it: {error}");
            }
        };
        let signals = signals::on_termination(restore).map_err(Error::kernel("watch for signals"))?;
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
