//! A session's state and its buffer of replies.

use std::sync::Arc;

use super::pending_input::PendingInput;
use crate::memcached::config::Protocol;
use crate::memcached::context::ServerContext;
use crate::memcached::dump_slot::DumpTicket;
use crate::memcached::stats::counters::WorkerCounters;
use crate::memcached::stats::prefixes::KeyEvent;
use crate::memcached::store::{LargeValue, Store, StoredValue, WalkPosition};

/// Replies are sent when the input is used up, or when this many bytes are buffered. Together with the largest
/// item, this bounds the memory that a client which never reads can take.
pub const SEND_AT: usize = 64 << 10;
/// Large values up to this size, in bytes, are copied into the reply buffer; others are sent from their pages.
const MAX_COPIED: usize = 32 << 10;

/// Why [`Session::feed`] returned.
#[derive(Debug, PartialEq, Eq)]
pub enum SessionStep {
    /// The input holds no further complete request.
    NeedInput,
    /// Replies must be sent before more requests are executed.
    Send,
    /// The client's turn is over: other connections should run.
    Yield,
    /// The connection closes once the replies are sent.
    Close,
}

/// How the execution of a request ended.
pub enum RequestOutcome {
    /// It is complete and took this many bytes of input.
    Done(usize),
    /// It was not received completely. It is executed again with more input.
    Incomplete,
    /// The reply buffer is full. The request continues once replies are sent.
    BufferFull,
    /// The connection closes; the request took this many bytes of input.
    Close(usize),
}

/// A list of keys that is being sent.
pub struct KeyDump<'a> {
    pub ticket: DumpTicket<'a>,
    pub position: WalkPosition,
    /// What was listed up to now.
    pub keys: u32,
    pub bytes: usize,
}

/// A list of counted prefixes of keys that is being sent.
pub struct PrefixDump {
    /// The last prefix that was listed.
    pub last: Box<[u8]>,
    /// How many parts were written, at least 1.
    pub parts: u32,
}

/// One client's conversation.
pub struct Session<'a> {
    pub context: &'a ServerContext,
    pub counters: &'a WorkerCounters,
    pub protocol: Option<Protocol>,
    /// Whether the client has authenticated, or need not.
    pub authenticated: bool,
    pub(super) pending: PendingInput,
    /// Replies that were not sent yet.
    pub replies: Vec<u8>,
    /// A value that is sent after `replies`, and the bytes that follow it.
    large_value: Option<Arc<LargeValue>>,
    large_value_trailer: &'static [u8],
    /// Bytes at the start of the input that are known to contain no line end.
    pub scanned: usize,
    /// Bytes of the current get's keys that were executed.
    pub keys_done: usize,
    /// The list of keys that is being sent. Boxed, as few connections have one.
    pub dump: Option<Box<KeyDump<'a>>>,
    /// The `stats detail dump` that is being sent. Boxed, as few connections have one.
    pub prefix_dump: Option<Box<PrefixDump>>,
    /// Whether other commands than gets are refused.
    pub gets_only: bool,
    /// Requests until the turn is over.
    pub(super) turn_requests_left: u32,
    /// The current second of the store's clock.
    pub now: u32,
}

impl<'a> Session<'a> {
    pub fn new(context: &'a ServerContext, counters: &'a WorkerCounters) -> Self {
        let config = &context.config;
        let mut session = Self {
            context,
            counters,
            protocol: config.protocol,
            authenticated: !config.requires_authentication(),
            pending: PendingInput::Request,
            replies: Vec::new(),
            large_value: None,
            large_value_trailer: &[],
            scanned: 0,
            keys_done: 0,
            dump: None,
            prefix_dump: None,
            gets_only: false,
            turn_requests_left: config.requests_per_turn.max(1),
            now: 0,
        };
        session.update_clock();
        session
    }

    pub fn store(&self) -> &'a Store {
        &self.context.store
    }

    pub fn is_authenticated(&self) -> bool {
        self.authenticated
    }

    /// Reads the store's clock and executes a delayed flush that is due.
    pub fn update_clock(&mut self) {
        self.now = self.store().clock().now();
        self.store().flush_if_due(self.now);
    }

    /// The current second of the store's clock.
    pub fn now(&self) -> u32 {
        self.now
    }

    /// Counts an event for the statistics of key prefixes.
    pub fn count_key(&self, key: &[u8], event: KeyEvent) {
        self.context.prefix_counts.count(key, event);
    }

    /// Takes the buffered replies.
    pub fn take_buffer(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.replies)
    }

    /// Appends the next part of `stats detail dump` to `out`, without the last line. Returns the part's number, from 0, and
    /// whether it was the last.
    pub fn write_prefix_part(&mut self, out: &mut Vec<u8>) -> (u32, bool) {
        let dump = self.prefix_dump.take();
        let (last, number) = dump.as_ref().map_or((None, 0), |dump| (Some(&*dump.last), dump.parts));
        let last = self.context.prefix_counts.write_part(last, out);
        self.prefix_dump = last.map(|last| Box::new(PrefixDump { last, parts: number.saturating_add(1) }));
        (number, self.prefix_dump.is_none())
    }

    /// Provides an empty buffer for replies.
    pub fn lend_buffer(&mut self, buffer: Vec<u8>) {
        debug_assert!(buffer.is_empty());
        if self.replies.is_empty() {
            self.replies = buffer;
        }
    }

    /// Takes the large value to send after the buffered replies, which must have been taken before. Buffers
    /// the bytes that follow the value.
    pub fn take_large_value(&mut self) -> Option<Arc<LargeValue>> {
        debug_assert!(self.replies.is_empty());
        self.replies.extend_from_slice(std::mem::take(&mut self.large_value_trailer));
        self.large_value.take()
    }

    /// Counts bytes that were sent.
    pub fn count_sent(&self, bytes: usize) {
        self.counters.bytes_written.add(bytes as u64);
    }

    /// Counts a turn that ended with requests left.
    pub fn count_yield(&self) {
        self.counters.conn_yields.add(1);
    }

    /// Whether there is anything to send.
    pub fn has_replies(&self) -> bool {
        !self.replies.is_empty() || self.large_value.is_some()
    }

    /// Whether replies must be sent before more are buffered.
    pub fn is_buffer_full(&self) -> bool {
        self.large_value.is_some() || self.replies.len() >= SEND_AT
    }

    /// Counts an event other than a request towards the turn. Returns whether the turn is over.
    pub fn spend_turn(&mut self) -> bool {
        self.turn_requests_left = self.turn_requests_left.saturating_sub(1);
        self.turn_requests_left == 0
    }

    /// Begins a new turn.
    pub fn renew_turn(&mut self) {
        self.turn_requests_left = self.context.config.requests_per_turn.max(1);
    }

    /// Makes room for what [`Session::write_value`] copies of a value, and `more` bytes.
    pub fn reserve_for(replies: &mut Vec<u8>, value: &StoredValue<'_>, more: usize) {
        match value {
            StoredValue::Large(large) if large.bytes().len() > MAX_COPIED => replies.reserve(more),
            // Twice as much could stay allocated while the client does not read.
            value if value.bytes().len() > MAX_COPIED => replies.reserve_exact(value.bytes().len() + more),
            value => replies.reserve(value.bytes().len() + more),
        }
    }

    /// Appends a value and its `trailer` to the replies. A value that is too large to copy is returned
    /// instead, to be passed to [`Session::queue_large_value`] once the store is unlocked.
    pub fn write_value(
        replies: &mut Vec<u8>,
        value: StoredValue<'_>,
        trailer: &'static [u8],
    ) -> Option<(Arc<LargeValue>, &'static [u8])> {
        match value {
            StoredValue::Large(large) if large.bytes().len() > MAX_COPIED => {
                return Some((Arc::clone(large), trailer));
            }
            value => {
                replies.extend_from_slice(value.bytes());
                replies.extend_from_slice(trailer);
            }
        }
        None
    }

    /// Sends a large value and its trailer after the buffered replies.
    pub fn queue_large_value(&mut self, large: Option<(Arc<LargeValue>, &'static [u8])>) {
        if let Some((large, trailer)) = large {
            (self.large_value, self.large_value_trailer) = (Some(large), trailer);
        }
    }

    /// Appends a reply unless the command said `noreply`.
    pub fn reply(&mut self, noreply: bool, reply: &[u8]) {
        if !noreply {
            self.replies.extend_from_slice(reply);
        }
    }

    /// Discards the next `bytes` of input.
    pub fn discard_input(&mut self, bytes: usize) {
        if bytes > 0 {
            self.pending = PendingInput::Discard(bytes);
        }
    }

    /// Removes all items now, or after a delay in the protocol's terms. False if `flush_all` is not allowed.
    pub fn flush(&mut self, delay: i64) -> bool {
        self.counters.cmd_flush.add(1);
        if !self.context.config.flush_allowed {
            return false;
        }
        // As in memcached: a delay of 0 or a time in the past means now.
        let at = self.store().clock().expiry(delay);
        self.store().flush((delay > 0 && at > self.now).then_some(at));
        true
    }
}
