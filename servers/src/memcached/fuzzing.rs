//! What fuzzing reaches of the parsers and sessions.

use super::command;
use super::meta::Meta;
use super::session::{Session, Step};
use super::settings::Config;
use super::shared::Shared;

/// Parses a line in every way there is.
pub fn parse_line(line: &[u8]) {
    for ending in [1, 2] {
        let _ = command::parse(line, ending, false);
    }
    for verb in *b"gsdae" {
        if let Ok(meta) = Meta::parse(verb, line) {
            assert!(!meta.key().is_empty() && meta.key().len() <= command::KEY_MAX);
        }
    }
    let words: usize = command::words(line).map(<[u8]>::len).sum();
    assert_eq!(words, line.iter().filter(|byte| **byte != b' ').count());
}

/// What a server without items answers to input in pieces, and whether it stays open.
///
/// # Panics
/// Where the input or the session is at fault: that is what it is for.
pub fn converse<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> (Vec<u8>, bool) {
    let config = Config { memory: 16 << 20, ..Config::default() };
    let shared = Shared::new(&config, 1).expect("without files nothing can fail");
    let mut session = Session::new(&shared, shared.stats.worker(0));
    let (mut unread, mut answers) = (Vec::new(), Vec::new());
    for part in parts {
        unread.extend_from_slice(part);
        loop {
            let (used, step) = session.feed(&unread);
            unread.drain(..used);
            while session.has_answers() {
                answers.append(&mut session.take_buffer());
                let large = session.take_large();
                large.iter().for_each(|large| answers.extend_from_slice(large.bytes()));
            }
            match step {
                Step::More => break,
                Step::Send | Step::Yield => {}
                Step::Close => return (answers, false),
            }
        }
    }
    (answers, true)
}
