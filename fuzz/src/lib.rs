//! A memcached server without sockets, and what its parsers promise, for the fuzz targets. It needs
//! `--cfg fuzzing`, with which the server shows these parts.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::LazyLock;
use std::task::{Context, Poll, Waker};

use servers::memcached::Config;
use servers::memcached::fuzzing::classic::{self, Command};
use servers::memcached::fuzzing::meta::{MetaRequest, MetaVerb};
use servers::memcached::fuzzing::{Condition, KEY_MAX, ServerContext, Session, SessionStep, answer, tokens};

/// A user of a server with users.
pub const USER: &str = "ann";
/// The user's password.
pub const PASSWORD: &str = "secret";
/// The file with this user.
const USERS_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/users");
/// The memory limit of a small server, in bytes: 64 segments of the least size.
const SMALL: u64 = 1 << 20;
/// The largest item of a server with small items, in bytes.
const SMALL_ITEM: usize = 2 << 10;

/// Parses a line as a classic command and as each meta command.
///
/// # Panics
/// If a parsed line violates an invariant, or a number in it is another one than for Rust's parser.
pub fn parse_line(line: &[u8]) {
    let words: Vec<&[u8]> = tokens(line).collect();
    let number = |index: usize| str::from_utf8(words.get(index)?).ok()?.parse::<i128>().ok();
    for terminator in [1, 2] {
        match classic::parse(line, terminator, false) {
            Command::Store(store) => {
                assert_eq!(store.key, words[1]);
                // Where a data block ends decides which bytes are commands.
                assert_eq!(i128::try_from(store.length).ok(), number(4));
                if let (Condition::CasMatches, Some((_, _, cas))) = (store.condition, store.numbers) {
                    assert_eq!(Some(cas.into()), number(5));
                }
            }
            Command::Delta { key, amount, .. } => {
                assert!(key.len() <= KEY_MAX);
                assert_eq!(Some(amount.into()), number(2));
            }
            Command::Touch { key, expiry, .. } => {
                assert!(key.len() <= KEY_MAX);
                assert_eq!(Some(expiry.into()), number(2));
            }
            Command::Delete { key, .. } => assert!(key.len() <= KEY_MAX),
            _ => {}
        }
    }
    for verb in [MetaVerb::Get, MetaVerb::Set, MetaVerb::Delete, MetaVerb::Arithmetic, MetaVerb::Debug] {
        if let Ok(request) = MetaRequest::parse(verb, line) {
            assert!(!request.key().is_empty() && request.key().len() <= KEY_MAX);
            if verb == MetaVerb::Set {
                assert_eq!(i128::try_from(request.length).ok(), number(2));
            }
        }
    }
    let length: usize = words.iter().map(|word| word.len()).sum();
    assert_eq!(length, line.iter().filter(|byte| **byte != b' ').count());
}

/// They are parsed from no arguments, which takes too long for each input.
static DEFAULTS: LazyLock<Config> = LazyLock::new(Config::default);

/// What a server is started with, chosen by the bits of a byte.
#[derive(Debug, Clone, Copy)]
pub struct Setup(u8);

impl Setup {
    /// All bytes are valid.
    pub fn new(bits: u8) -> Self {
        Self(bits)
    }

    fn has(self, bit: u8) -> bool {
        self.0 & 1 << bit != 0
    }

    /// Whether clients must authenticate, as [`USER`].
    pub fn users(self) -> bool {
        self.has(0)
    }

    /// Whether they may do so by SASL.
    pub fn sasl(self) -> bool {
        self.users() && !self.has(1)
    }

    /// Whether the memory limit is 1 MiB, which a few large items reach.
    pub fn is_small(self) -> bool {
        self.has(2)
    }

    /// Whether items are refused when the limit is reached, instead of evicting others.
    pub fn keeps_items(self) -> bool {
        self.has(3)
    }

    /// Whether items are at most 2 KiB.
    pub fn small_items(self) -> bool {
        self.has(4)
    }

    /// Whether items have no CAS unique.
    pub fn no_cas(self) -> bool {
        self.has(5)
    }

    /// Whether all commands are executed over UDP.
    pub fn udp_writes(self) -> bool {
        self.has(6)
    }

    fn config(self) -> Config {
        Config {
            memory: if self.is_small() { SMALL } else { 16 << 20 },
            evict: !self.keeps_items(),
            max_item: if self.small_items() { SMALL_ITEM } else { 1 << 20 },
            cas: !self.no_cas(),
            users_file: self.users().then(|| PathBuf::from(USERS_FILE)),
            sasl: self.sasl(),
            udp_all_commands: self.udp_writes(),
            ..DEFAULTS.clone()
        }
    }
}

/// An empty server without sockets.
#[derive(Debug)]
pub struct FuzzedServer {
    context: ServerContext,
}

impl FuzzedServer {
    /// A server that holds no items yet.
    pub fn new(setup: Setup) -> Self {
        Self { context: ServerContext::open(&setup.config(), 1).expect("the file of users is valid") }
    }

    /// A new connection.
    pub fn connect(&self) -> FuzzedConnection<'_> {
        let session = Session::new(&self.context, self.context.counters.worker(0));
        FuzzedConnection { session, unread: Vec::new(), open: true }
    }

    /// The datagrams that answer one.
    pub fn answer_datagram(&self, datagram: &[u8]) -> Vec<Vec<u8>> {
        let mut answering = pin!(answer(datagram, &self.context, self.context.counters.worker(0)));
        let mut context = Context::from_waker(Waker::noop());
        // It only waits to let others run, and there are none.
        loop {
            if let Poll::Ready(datagrams) = answering.as_mut().poll(&mut context) {
                return datagrams;
            }
        }
    }
}

/// A client's connection.
pub struct FuzzedConnection<'a> {
    session: Session<'a>,
    /// Input that forms no complete request yet.
    unread: Vec<u8>,
    open: bool,
}

impl FuzzedConnection<'_> {
    /// Whether the server has not closed it.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Whether the client has authenticated, or need not.
    pub fn is_authenticated(&self) -> bool {
        self.session.authenticated
    }

    /// Sends `input` in chunks and returns the replies. Nothing is sent on a connection that is
    /// closed.
    ///
    /// # Panics
    /// If the session has a fault, or `chunk_size` is 0.
    pub fn send(&mut self, input: &[u8], chunk_size: usize) -> Vec<u8> {
        let mut replies = Vec::new();
        for chunk in input.chunks(chunk_size) {
            if self.open {
                self.receive(chunk, &mut replies);
            }
        }
        replies
    }

    fn receive(&mut self, mut chunk: &[u8], replies: &mut Vec<u8>) {
        self.session.update_clock();
        // As from a socket: a large value is read directly into its memory.
        if self.unread.is_empty()
            && let Some(missing) = self.session.missing_value_bytes()
        {
            let length = missing.len().min(chunk.len());
            missing[..length].copy_from_slice(&chunk[..length]);
            self.session.value_bytes_received(length);
            chunk = &chunk[length..];
        }
        self.unread.extend_from_slice(chunk);
        loop {
            let (used, step) = self.session.feed(&self.unread);
            self.unread.drain(..used);
            while self.session.has_replies() {
                replies.append(&mut self.session.take_buffer());
                let large = self.session.take_large_value();
                large.iter().for_each(|large| replies.extend_from_slice(large.bytes()));
            }
            match step {
                SessionStep::NeedInput => break,
                SessionStep::Send | SessionStep::Yield => {}
                SessionStep::Close => {
                    self.open = false;
                    break;
                }
            }
        }
    }
}
