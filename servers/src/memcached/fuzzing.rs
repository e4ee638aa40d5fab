//! Entry points for fuzzing. Compiled with `--cfg fuzzing` only.

use super::config::Config;
use super::context::ServerContext;
use super::protocol::classic::parse;
use super::protocol::meta::parse::{MetaRequest, MetaVerb};
use super::protocol::tokens::{KEY_MAX, tokens};
use super::session::{Session, SessionStep};

/// Parses a line as a classic command and as each meta command.
///
/// # Panics
/// If a parsed line violates an invariant.
pub fn parse_line(line: &[u8]) {
    for terminator in [1, 2] {
        let _ = parse::parse(line, terminator, false);
    }
    for verb in [MetaVerb::Get, MetaVerb::Set, MetaVerb::Delete, MetaVerb::Arithmetic, MetaVerb::Debug] {
        if let Ok(request) = MetaRequest::parse(verb, line) {
            assert!(!request.key().is_empty() && request.key().len() <= KEY_MAX);
        }
    }
    let length: usize = tokens(line).map(<[u8]>::len).sum();
    assert_eq!(length, line.iter().filter(|byte| **byte != b' ').count());
}

/// Feeds chunks of input to a session of an empty server. Returns the replies, and whether the connection
/// stays open.
///
/// # Panics
/// If the session has a fault.
pub fn converse<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> (Vec<u8>, bool) {
    let config = Config { memory: 16 << 20, ..Config::default() };
    let context = ServerContext::new(&config, 1).expect("the configuration names no files");
    let mut session = Session::new(&context, context.counters.worker(0));
    let (mut unread, mut replies) = (Vec::new(), Vec::new());
    for chunk in chunks {
        unread.extend_from_slice(chunk);
        loop {
            let (used, step) = session.feed(&unread);
            unread.drain(..used);
            while session.has_replies() {
                replies.append(&mut session.take_buffer());
                let large = session.take_large_value();
                large.iter().for_each(|large| replies.extend_from_slice(large.bytes()));
            }
            match step {
                SessionStep::NeedInput => break,
                SessionStep::Send | SessionStep::Yield => {}
                SessionStep::Close => return (replies, false),
            }
        }
    }
    (replies, true)
}
