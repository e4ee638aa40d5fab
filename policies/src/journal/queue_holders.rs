//! The processes that hold queues of an interface, or have left settings of their own.

use serde::Serialize;

use super::directory::JournalDir;
use super::record::Lifetime;
use crate::error::Error;
use crate::host::Cpus;
use crate::policy::Policy;

/// Queues of an interface on which a running process has applied a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct QueueHolder {
    /// The process id.
    pub pid: u32,
    /// The policy that the process applied.
    pub policy: Policy,
    /// The numbers of the receive queues.
    pub queues: Cpus,
}

/// The running processes that hold queues of an interface. A process whose journal can't be read is not among them.
///
/// # Errors
/// [`Error::Journal`] if the directory of journals can't be read.
pub fn queue_holders(interface: &str, journals: &JournalDir) -> Result<Vec<QueueHolder>, Error> {
    let running = journals.read()?.journals.into_iter().filter(|found| !found.is_abandoned());
    Ok(running
        .map(|found| found.journal)
        .filter(|journal| journal.interface == interface && journal.lifetime == Lifetime::Process)
        .map(|journal| QueueHolder {
            pid: journal.writer.pid,
            policy: journal.policy,
            queues: journal.queues.iter().copied().collect(),
        })
        .collect())
}

/// The journals of processes with one id, in this network namespace, for settings of a process's own lifetime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct JournalsOfProcess {
    /// Whether a running process holds one. After the process that was meant has ended, it is another with its id.
    pub held: bool,
    /// Whether a process that has ended has left one.
    pub left: bool,
}

/// Whether a process with this id runs and has a journal, and whether one has ended and has left a journal. The lock of the
/// journal tells them apart: the id may belong to another process by now.
///
/// # Errors
/// [`Error::Journal`] if the directory of journals can't be read.
pub fn journals_of(pid: u32, journals: &JournalDir) -> Result<JournalsOfProcess, Error> {
    let mut of_process = JournalsOfProcess { held: false, left: false };
    for found in journals.read()?.journals {
        if found.journal.lifetime == Lifetime::Process && found.journal.writer.has_id(pid) {
            match found.is_abandoned() {
                true => of_process.left = true,
                false => of_process.held = true,
            }
        }
    }
    Ok(of_process)
}
