//! The settings of ended processes that could not be restored. A process that sets the same knob
//! takes them over: it would otherwise take what they have left for the original value, and restore
//! that.

use crate::error::Error;
use crate::journal::{Entry, FoundJournal, Journal, JournalDir};
use crate::knob::{Knob, Value};

/// What journals without an owner still record, newest first.
#[derive(Debug, Default)]
pub(super) struct LeftEntries(Vec<FoundJournal>);

impl LeftEntries {
    /// Of the journals of an interface that are selected. The directory must be locked.
    pub(super) fn read(
        directory: &JournalDir,
        ifindex: u32,
        select: impl Fn(&FoundJournal) -> bool,
    ) -> Result<Self, Error> {
        let journals = directory.read()?.journals.into_iter();
        Ok(Self(journals.filter(|found| found.journal.ifindex == ifindex && select(found)).collect()))
    }

    /// The value that a knob had before the processes that have left it at `now`; `None` if none of
    /// them has.
    pub(super) fn original_of(&self, knob: &Knob, now: &Value) -> Option<Value> {
        let entries = self.0.iter().flat_map(|found| &found.journal.entries);
        original(entries.filter(|entry| entry.knob == *knob), now)
    }

    /// Removes the entries that a journal, which has been written, has taken over. If that fails,
    /// both restore the same value.
    pub(super) fn give_to(mut self, journal: &Journal, directory: &JournalDir) {
        for found in &mut self.0 {
            let before = found.journal.entries.len();
            let is_taken = |left: &Entry| {
                journal.entries.iter().any(|entry| entry.left.is_some() && entry.knob == left.knob)
            };
            // A journal that has queues to rebuild restores the others after that again.
            if found.journal.entries.iter().any(|entry| entry.knob.rebuilds_queues() && !is_taken(entry)) {
                continue;
            }
            found.journal.entries.retain(|left| !is_taken(left));
            let result = if found.journal.entries.is_empty() && found.journal.is_own() {
                directory.remove(&found.path)
            } else if found.journal.entries.len() < before {
                directory.replace(found)
            } else {
                Ok(())
            };
            if let Err(error) = result {
                tracing::warn!("a journal whose settings another has taken over stays: {error}");
            }
        }
    }
}

/// Follows the entries of one knob, newest first, from the present value to the first.
fn original<'a>(entries: impl Iterator<Item = &'a Entry>, now: &Value) -> Option<Value> {
    entries.fold(None, |found: Option<Value>, entry| {
        let value = found.as_ref().unwrap_or(now);
        match &entry.old {
            Some(old) if entry.owns(value) => Some(old.clone()),
            _ => found,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::OwnedValues;

    fn entry(old: Option<u64>, new: u64) -> Entry {
        let number = Value::Number;
        let knob = Knob::NapiDeferHardIrqs { queue: 0 };
        Entry { knob, old: old.map(number), new: number(new), own: OwnedValues::New, left: None }
    }

    #[test]
    fn the_original_is_found_behind_all_that_was_left_and_not_behind_what_others_have_set() {
        let find = |entries: &[Entry], now| original(entries.iter(), &Value::Number(now));
        assert_eq!(find(&[entry(Some(0), 100)], 100), Some(Value::Number(0)));
        assert_eq!(find(&[entry(Some(100), 200), entry(Some(7), 100)], 200), Some(Value::Number(7)));
        // Somebody else has set it meanwhile.
        assert_eq!(find(&[entry(Some(0), 100)], 50), None);
        assert_eq!(find(&[entry(Some(50), 200), entry(Some(7), 100)], 200), Some(Value::Number(50)));
        assert_eq!(find(&[entry(None, 100)], 100), None);
        assert_eq!(find(&[], 100), None);
    }

    #[test]
    fn what_was_left_is_owned_beside_the_new_value() {
        let taken = Entry { left: Some(Value::Number(100)), ..entry(Some(0), 200) };
        assert!(taken.owns(&Value::Number(100)) && taken.owns(&Value::Number(200)));
        assert!(!taken.owns(&Value::Number(50)));
    }
}
