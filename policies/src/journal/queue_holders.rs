//! The running processes that hold queues of an interface.

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

/// The running processes that hold queues of an interface.
///
/// # Errors
/// [`Error::Journal`] if the journals can't be read.
pub fn queue_holders(interface: &str, journals: &JournalDir) -> Result<Vec<QueueHolder>, Error> {
    let journals = journals.read()?.into_iter().map(|(_, journal)| journal);
    Ok(journals
        .filter(|journal| journal.interface == interface && journal.lifetime == Lifetime::Process)
        .filter(|journal| !journal.is_abandoned())
        .map(|journal| QueueHolder {
            pid: journal.writer.pid,
            policy: journal.policy,
            queues: journal.queues.iter().copied().collect(),
        })
        .collect())
}
