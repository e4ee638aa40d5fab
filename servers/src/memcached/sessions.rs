//! The memcached server without sockets, for another network stack: a client's bytes go in, and replies come out.
//!
//! Store, protocols and statistics are those of [`Server`](super::Server). Accepting connections, sending and receiving
//! are the caller's.
//!
//! ```
//! use servers::memcached::Config;
//! use servers::memcached::sessions::{SessionProgress, Sessions};
//!
//! let sessions = Sessions::new(&Config::default())?;
//! let mut session = sessions.open();
//! let mut replies = Vec::new();
//! // The second request is not complete yet.
//! session.execute(b"set a 0 0 5\r\nhello\r\nget ", &mut replies);
//! let progress = session.execute(b"a\r\n", &mut replies);
//! assert_eq!(progress, SessionProgress::AwaitsInput);
//! assert_eq!(replies, b"STORED\r\nVALUE a 0 5\r\nhello\r\nEND\r\n");
//! # Ok::<(), servers::memcached::StartError>(())
//! ```

use std::fmt;

use super::config::Config;
use super::context::ServerContext;
use super::error::StartError;
use super::session::{Session, SessionStep};

#[derive(Debug)]
pub struct Sessions {
    context: ServerContext,
}

pub struct ClientSession<'a> {
    session: Session<'a>,
    /// Input that does not form a complete request yet, or waits for replies to be sent.
    incomplete: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionProgress {
    AwaitsInput,
    /// Its replies, 64 KiB or more, to be sent. There is input left: call [`ClientSession::execute`] again, with more or
    /// with none.
    AwaitsSending,
    /// Nothing: the connection is to be closed when the replies are sent.
    Closes,
}

impl Sessions {
    /// An empty store. Of `config` its memory, limits and protocol are used; nothing listens.
    ///
    /// # Errors
    /// If a file that `config` names can't be read.
    pub fn new(config: &Config) -> Result<Self, StartError> {
        Ok(Self { context: ServerContext::new(config, 1)? })
    }

    /// A session for a new connection. All sessions belong to one thread.
    pub fn open(&self) -> ClientSession<'_> {
        ClientSession {
            session: Session::new(&self.context, self.context.counters.worker(0)),
            incomplete: Vec::new(),
        }
    }
}

impl ClientSession<'_> {
    /// Executes the complete requests of `input`, after what earlier input has left, and appends the replies to `replies`.
    pub fn execute(&mut self, input: &[u8], replies: &mut Vec<u8>) -> SessionProgress {
        self.session.renew_turn();
        self.session.update_clock();
        self.session.counters.bytes_read.add(input.len() as u64);
        // The caller's buffer, so that replies are written once.
        let mut before = std::mem::take(replies);
        if before.is_empty() {
            self.session.lend_buffer(std::mem::take(&mut before));
        }
        let (used, progress) = if self.incomplete.is_empty() {
            let (used, progress) = run(&mut self.session, input);
            self.incomplete.extend_from_slice(&input[used..]);
            (0, progress)
        } else {
            self.incomplete.extend_from_slice(input);
            run(&mut self.session, &self.incomplete)
        };
        self.incomplete.drain(..used);
        if self.incomplete.is_empty() {
            self.incomplete = Vec::new();
        }
        let earlier = before.len();
        *replies = before;
        while self.session.has_replies() {
            let mut buffer = self.session.take_buffer();
            if replies.is_empty() {
                *replies = buffer;
            } else {
                replies.append(&mut buffer);
            }
            if let Some(large) = self.session.take_large_value() {
                replies.extend_from_slice(large.bytes());
            }
        }
        if replies.is_empty() && replies.capacity() == 0 {
            // Lent, and not written to.
            *replies = self.session.take_buffer();
        }
        self.session.count_sent(replies.len() - earlier);
        progress
    }
}

/// Executes complete requests until the input is used up or replies must be sent. Returns how many bytes they took.
fn run(session: &mut Session<'_>, input: &[u8]) -> (usize, SessionProgress) {
    let mut used = 0;
    loop {
        let (more, step) = session.feed(&input[used..]);
        used += more;
        match step {
            SessionStep::NeedInput => return (used, SessionProgress::AwaitsInput),
            SessionStep::Send => return (used, SessionProgress::AwaitsSending),
            // `stats policy` is about the workers of Lull's runtime, which need not be there.
            SessionStep::Close | SessionStep::RefreshPolicy => return (used, SessionProgress::Closes),
            // Whose turn it is, is the caller's to decide.
            SessionStep::Yield => {}
        }
    }
}

impl fmt::Debug for ClientSession<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientSession").field("incomplete", &self.incomplete.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions() -> Sessions {
        Sessions::new(&Config { memory: 32 << 20, ..Config::default() }).unwrap()
    }

    #[test]
    fn replies_are_the_same_however_the_input_is_cut() {
        let input = b"set key 7 0 3\r\nabc\r\nget key\r\nmg key v\r\nget none\r\n";
        let expected = b"STORED\r\nVALUE key 7 3\r\nabc\r\nEND\r\nVA 3\r\nabc\r\nEND\r\n";
        for size in 1..=input.len() {
            let sessions = sessions();
            let (mut session, mut replies) = (sessions.open(), Vec::new());
            for chunk in input.chunks(size) {
                assert_eq!(session.execute(chunk, &mut replies), SessionProgress::AwaitsInput);
            }
            assert_eq!(replies, expected, "{size}");
        }
    }

    #[test]
    fn much_to_reply_is_to_be_sent_before_more_is_executed() {
        let sessions = sessions();
        let (mut session, mut replies) = (sessions.open(), Vec::new());
        let value = vec![b'x'; 40 << 10];
        session.execute(&[b"set big 0 0 40960\r\n", &value[..], b"\r\n"].concat(), &mut replies);
        assert_eq!(replies, b"STORED\r\n");
        replies.clear();
        let mut progress = session.execute(&b"get big\r\n".repeat(10), &mut replies);
        let mut received = 0;
        while progress == SessionProgress::AwaitsSending {
            assert!(replies.len() < 256 << 10, "{}", replies.len());
            received += replies.len();
            replies.clear();
            progress = session.execute(b"", &mut replies);
        }
        assert_eq!(received + replies.len(), 10 * (b"VALUE big 0 40960\r\n\r\nEND\r\n".len() + value.len()));
    }

    #[test]
    fn quit_closes_after_the_replies_before_it() {
        let sessions = sessions();
        let (mut session, mut replies) = (sessions.open(), Vec::new());
        assert_eq!(session.execute(b"get a\r\nquit\r\nget a\r\n", &mut replies), SessionProgress::Closes);
        assert_eq!(replies, b"END\r\n");
    }
}
