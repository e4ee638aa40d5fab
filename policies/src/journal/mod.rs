//! Journals in `/run/lull`: the old values of knobs, written before anything is changed, and restored
//! when the process that wrote them has ended.

mod directory;
mod entry;
mod epoll_entry;
mod listener_entry;
mod lock;
mod queue_holders;
mod record;
mod restore;

pub use directory::JournalDir;
#[cfg(test)]
pub(crate) use entry::{Entry, OwnedValues};
pub(crate) use epoll_entry::EpollEntry;
pub(crate) use listener_entry::ListenerEntry;
pub use queue_holders::{QueueHolder, queue_holders};
pub(crate) use record::Journal;
pub use record::Lifetime;
pub use restore::{RestoreOutcome, RestoreReport, recover, restore_all};
pub(crate) use restore::{restore_journal, restore_where};
