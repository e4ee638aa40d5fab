//! Journals in `/run/lull`: the old values of knobs, written before anything is changed, and
//! restored when the process that wrote them has ended.

mod container;
mod directory;
#[cfg(feature = "tools")]
mod drift;
mod entries;
pub(crate) mod files;
mod found;
#[cfg(fuzzing)]
pub mod fuzzing;
mod record;
mod restore;
mod summary;
#[cfg(test)]
mod tests;

pub use directory::JournalDir;
pub(crate) use directory::JournalFile;
#[cfg(feature = "tools")]
pub use drift::{Drift, drift};
pub(crate) use entries::Entry;
#[cfg(test)]
pub(crate) use entries::OwnedValues;
pub use entries::RestoreOutcome;
#[cfg(feature = "tools")]
pub(crate) use entries::{EpollEntry, ListenerEntry};
pub(crate) use found::FoundJournal;
pub use found::LeftJournal;
pub use record::Lifetime;
pub(crate) use record::{Journal, Originals};
pub use restore::{Recovery, RestoreReport, recover, restore, restore_preview};
pub(crate) use restore::{restore_journal, restore_where};
pub use summary::{JournalSummary, JournalsOfProcess, journals_of, summaries, summaries_everywhere};
