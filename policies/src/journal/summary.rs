//! Journals in short, for who looks at them: which processes hold queues, or have left settings.

use std::path::PathBuf;

use super::directory::{Contents, JournalDir};
use super::found::{FoundJournal, LeftJournal};
use super::record::Lifetime;
use super::restore::is_there;
use crate::error::Error;
use crate::host::Cpus;
use crate::host::process::{ProcessStat, network_namespace};
use crate::policy::Policy;

/// A journal in short: who has set what since when.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct JournalSummary {
    pub path: PathBuf,
    /// The interface's name when the policy was applied.
    pub interface: String,
    pub ifindex: u32,
    /// Whether the interface is in another network namespace, whose server `policies attach` polls.
    pub elsewhere: bool,
    pub policy: Policy,
    pub queues: Cpus,
    /// Until when it stays applied.
    pub lifetime: Lifetime,
    pub pid: u32,
    /// Its name; `None` if it has ended, or can't be seen.
    pub process: Option<String>,
    /// Whether the process has ended without restoring what it had set for its own lifetime.
    pub is_left: bool,
    /// When it was applied, in seconds since 1970.
    pub since: u64,
    /// The number of knobs whose old value it keeps.
    pub knobs: usize,
    /// The number of epoll instances and listeners of other processes that were set.
    pub others: usize,
}

impl JournalSummary {
    /// Whether a running process holds the queues.
    #[cfg(feature = "tools")]
    pub(crate) fn is_held(&self) -> bool {
        self.lifetime == Lifetime::Process && !self.is_left
    }
}

/// The journals of this network namespace, the newest first, and those that can't be read.
pub fn summaries(journals: &JournalDir) -> Result<(Vec<JournalSummary>, Vec<LeftJournal>), Error> {
    Ok(summaries_of(journals.read()?))
}

/// Like [`summaries`], with what is set in other network namespaces to attach to servers there.
pub fn summaries_everywhere(journals: &JournalDir) -> Result<(Vec<JournalSummary>, Vec<LeftJournal>), Error> {
    let (mut contents, own) = (journals.read_all()?, network_namespace());
    contents.journals.retain(|found| is_there(found, own));
    contents.unreadable.retain(|unreadable| unreadable.may_concern(own, None));
    Ok(summaries_of(contents))
}

fn summaries_of(contents: Contents) -> (Vec<JournalSummary>, Vec<LeftJournal>) {
    let own = network_namespace();
    let summary = |found: &FoundJournal| {
        let journal = &found.journal;
        let pid = journal.writer.pid;
        let running = journal.writer.is_alive().then(|| ProcessStat::read(pid).ok()).flatten();
        JournalSummary {
            path: found.path.clone(),
            interface: journal.interface.clone(),
            ifindex: journal.ifindex,
            elsewhere: journal.namespace != own,
            policy: journal.policy,
            queues: journal.queues.iter().copied().collect(),
            lifetime: journal.lifetime,
            pid,
            process: running.map(|stat| stat.name),
            is_left: found.is_abandoned(),
            since: journal.since,
            knobs: journal.entries.len(),
            others: journal.epolls.len() + journal.listeners.len(),
        }
    };
    let unreadable = contents.unreadable.into_iter().map(|unreadable| unreadable.left);
    (contents.journals.iter().map(summary).collect(), unreadable.collect())
}

/// The journals of processes with one id, in this network namespace, for settings of a process's
/// own lifetime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct JournalsOfProcess {
    /// Whether a running process holds one. After the process that was meant has ended, it is
    /// another with its id.
    pub held: bool,
    pub left: bool,
}

/// Whether a process with this id runs and has a journal, and whether one has ended and has left a
/// journal. The lock of the journal tells them apart: the id may belong to another process by now.
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
