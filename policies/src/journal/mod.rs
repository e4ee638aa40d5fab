//! Journals in `/run/lull`: the old values of knobs, written before anything is changed, and restored
//! when the process that wrote them has ended.

mod directory;
mod entry;
mod epoll_entry;
pub(crate) mod file_lock;
mod found;
#[cfg(fuzzing)]
pub mod fuzzing;
mod left;
mod listener_entry;
mod lock;
mod queue_holders;
mod record;
mod restore;
mod restore_outcome;
#[cfg(test)]
mod tests;

pub use directory::JournalDir;
pub(crate) use directory::JournalFile;
pub(crate) use entry::Entry;
#[cfg(test)]
pub(crate) use entry::OwnedValues;
pub(crate) use epoll_entry::EpollEntry;
pub(crate) use found::FoundJournal;
pub use left::LeftJournal;
pub(crate) use listener_entry::ListenerEntry;
pub(crate) use queue_holders::unreadable_journals;
pub use queue_holders::{JournalsOfProcess, QueueHolder, journals_of, queue_holders};
pub use record::Lifetime;
pub(crate) use record::{Journal, Originals};
pub use restore::{Recovery, RestoreReport, recover, restore_all, restore_ended};
pub(crate) use restore::{restore_journal, restore_where};
pub use restore_outcome::RestoreOutcome;
