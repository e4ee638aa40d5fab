//! Entry points for fuzzing. Compiled with `--cfg fuzzing` only.

use std::path::Path;

use super::directory::sequence_of;
use super::found::{self, Content, Found, FoundJournal};
use super::record::{Journal, VERSION};
use crate::json::InJson;

/// Reads the content of a journal's file, of this boot and of no known one. Nothing is restored.
///
/// # Panics
/// If a journal is not the same when it is written and read again, or takes a value for its own
/// that it has not recorded.
pub fn read_journal(name: &str, text: &[u8], boot: &str) {
    let path = Path::new("/run/lull").join(name);
    let _ = sequence_of(name);
    for is_held in [false, true] {
        let content = Content { text: text.to_vec(), is_held };
        match found::parse(&path, content, boot) {
            Found::Journal(found) => check(&found),
            Found::Unreadable(unreadable) => {
                assert_eq!(unreadable.is_held, Some(is_held));
                // What can be of any interface can be of a given one only if its name does not say
                // otherwise.
                assert!(unreadable.may_concern(1, None) || !unreadable.may_concern(1, Some(1)));
                assert!(!unreadable.into_error().to_string().is_empty());
            }
            Found::Outdated => assert!(!is_held && !boot.is_empty()),
            Found::Gone => panic!("a file that was read is there"),
        }
    }
}

fn check(found: &FoundJournal) {
    let _ = found.is_abandoned();
    let journal = &found.journal;
    for entry in &journal.entries {
        // A value that is set and has not been changed since is restored.
        assert!(entry.is_adapted() || entry.owns(&entry.new), "{entry:?}");
        let _ = (entry.knob.to_string(), entry.new.to_string());
    }
    let written = format!("{:?}", journal.to_json());
    let again = Journal::read(written.as_bytes()).expect("what was written can be read");
    assert_eq!(format!("{:?}", again.to_json()), written);
    assert!(written.starts_with(&format!("{{\"version\": {VERSION},")));
}
