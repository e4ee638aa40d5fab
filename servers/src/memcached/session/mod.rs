//! A session: one client's conversation, independent of its socket. Bytes go in, replies come out.
//!
//! [`Session::feed`] finds the protocol and lets its file execute a request: `text`, `meta` or
//! `binary`. Each parses with `protocol`, works on the item in the store, and writes the reply.

mod binary;
mod data_block;
mod key_dump;
mod meta;
pub mod stats;
#[cfg(test)]
mod tests;
mod text;

use std::sync::Arc;

use async_lock::SemaphoreGuard;

use crate::memcached::clock::EXPIRED;
use crate::memcached::config::Protocol;
use crate::memcached::context::ServerContext;
use crate::memcached::mutation::StoreRequest;
use crate::memcached::protocol::binary::REQUEST_MAGIC;
use crate::memcached::protocol::store_reply::StoreReply;
use crate::memcached::stats::counters::WorkerCounters;
use crate::memcached::store::{BufferReservation, LargeValue, OutOfMemory, Store, StoredValue, WalkPosition};

/// Replies are sent when the input is used up, or when this many bytes are buffered.
pub const SEND_AT: usize = 64 << 10;
/// What a connection may have buffered of its requests, and again of its replies, in bytes, without
/// counting against the store's limit.
pub const FREE_BUFFER: usize = 16 << 10;
/// Large values up to this size, in bytes, are copied into the reply buffer; others are sent from
/// their pages.
const MAX_COPIED: usize = 32 << 10;

/// Why [`Session::feed`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// The bytes of input that a complete request took, or what must happen before it is executed
/// again from its start or from where it stopped.
type Outcome = Result<usize, SessionStep>;

enum PendingInput {
    Request,
    DataBlock(Box<DataBlock>),
    Discard(usize),
}

/// A storage command whose data block is being received.
struct DataBlock {
    key: Box<[u8]>,
    meta_flags: Box<[u8]>,
    request: StoreRequest,
    reply: StoreReply,
    value: PartialValue,
    filled: usize,
}

enum PartialValue {
    Small { bytes: Vec<u8>, _charge: BufferCharge },
    Large(LargeValue),
}

struct KeyDump<'a> {
    _permit: SemaphoreGuard<'a>,
    position: WalkPosition,
    keys: u32,
    bytes: usize,
}

/// What a buffer of a connection takes of the store's memory.
#[derive(Debug, Default)]
pub struct BufferCharge(Option<Box<BufferReservation>>);

impl BufferCharge {
    /// Counts a buffer of `bytes`, unless it is small, in place of what was counted before. Counts
    /// nothing if the store can't give up so much.
    pub fn set(&mut self, context: &ServerContext, bytes: usize) -> Result<(), OutOfMemory> {
        let bytes = bytes as u64;
        if bytes <= FREE_BUFFER as u64 {
            self.0 = None;
        } else if self.0.as_ref().is_none_or(|counted| counted.bytes != bytes) {
            self.0 = None;
            let Store { shards, clock, .. } = &context.store;
            self.0 = Some(Box::new(shards.reserve_buffer(bytes, clock.now())?));
        }
        Ok(())
    }
}

pub struct Session<'a> {
    pub context: &'a ServerContext,
    pub counters: &'a WorkerCounters,
    protocol: Protocol,
    pub authenticated: bool,
    /// Whether other commands than gets are refused.
    pub gets_only: bool,
    pending: PendingInput,
    pub replies: Vec<u8>,
    /// A value that is sent after `replies`, and the bytes that follow it.
    large_value: Option<(Arc<LargeValue>, &'static [u8])>,
    /// Bytes at the start of the input that are known to contain no line end.
    scanned: usize,
    /// Bytes of the current get's keys that were executed.
    keys_done: usize,
    /// Lines of the current `stats conns` that were written.
    conns_done: usize,
    /// The list of keys that is being sent. Boxed, as few connections have one.
    dump: Option<Box<KeyDump<'a>>>,
    turn_requests_left: u32,
    /// The current second of the store's clock.
    pub now: u32,
}

impl<'a> Session<'a> {
    pub fn new(context: &'a ServerContext, counters: &'a WorkerCounters) -> Self {
        let mut session = Self {
            context,
            counters,
            protocol: context.config.protocol,
            authenticated: !context.config.requires_authentication(),
            gets_only: false,
            pending: PendingInput::Request,
            replies: Vec::new(),
            large_value: None,
            scanned: 0,
            keys_done: 0,
            conns_done: 0,
            dump: None,
            turn_requests_left: 0,
            now: 0,
        };
        session.renew_turn();
        session.update_clock();
        session
    }

    fn store(&self) -> &'a Store {
        &self.context.store
    }

    /// Converts an expiry as sent to the store's clock.
    fn expiry(&self, sent: impl Into<i64>) -> u32 {
        self.store().clock.expiry(sent.into(), self.now)
    }

    /// Reads the store's clock and executes a delayed flush that is due.
    pub fn update_clock(&mut self) {
        self.now = self.store().clock.now();
        self.store().flush_if_due(self.now);
    }

    pub fn take_buffer(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.replies)
    }

    /// Gives the session a buffer for its replies, unless it has one.
    pub fn lend_buffer(&mut self, buffer: Vec<u8>) {
        debug_assert!(buffer.is_empty());
        if self.replies.is_empty() {
            self.replies = buffer;
        }
    }

    /// Takes the large value to send after the buffered replies, which must have been taken before.
    /// Buffers the bytes that follow the value.
    pub fn take_large_value(&mut self) -> Option<Arc<LargeValue>> {
        debug_assert!(self.replies.is_empty());
        let (large, trailer) = self.large_value.take()?;
        self.replies.extend_from_slice(trailer);
        Some(large)
    }

    pub fn has_replies(&self) -> bool {
        !self.replies.is_empty() || self.large_value.is_some()
    }

    /// Whether replies must be sent before more are buffered.
    fn is_buffer_full(&self) -> bool {
        self.large_value.is_some() || self.replies.len() >= SEND_AT
    }

    /// Counts a request, or what takes as long, towards the turn. Returns whether the turn is over.
    pub fn spend_turn(&mut self) -> bool {
        self.turn_requests_left = self.turn_requests_left.saturating_sub(1);
        self.turn_requests_left == 0
    }

    pub fn renew_turn(&mut self) {
        self.turn_requests_left = self.context.config.requests_per_turn.max(1);
    }

    /// Makes room for what [`Session::write_value`] copies of a value, and `more` bytes.
    fn reserve_for(&mut self, value: &StoredValue<'_>, more: usize) {
        let length = value.bytes().len();
        match value {
            StoredValue::Large(_) if length > MAX_COPIED => self.replies.reserve(more),
            // Twice as much could stay allocated while the client does not read.
            _ if length > MAX_COPIED => self.replies.reserve_exact(length + more),
            _ => self.replies.reserve(length + more),
        }
    }

    /// Appends a value and its `trailer` to the replies, or queues them if the value is too large to
    /// copy.
    fn write_value(&mut self, value: StoredValue<'_>, trailer: &'static [u8]) {
        match value {
            StoredValue::Large(large) if large.bytes().len() > MAX_COPIED => {
                self.large_value = Some((Arc::clone(large), trailer));
            }
            value => {
                self.replies.extend_from_slice(value.bytes());
                self.replies.extend_from_slice(trailer);
            }
        }
    }

    fn reply(&mut self, reply: &[u8]) {
        self.replies.extend_from_slice(reply);
    }

    fn discard_input(&mut self, bytes: usize) {
        if bytes > 0 {
            self.pending = PendingInput::Discard(bytes);
        }
    }

    /// Removes all items now, or after a delay in the protocol's terms. False if `flush_all` is not
    /// allowed.
    fn flush(&mut self, delay: i64) -> bool {
        self.counters.cmd_flush.add(1);
        if !self.context.config.flush_allowed {
            return false;
        }
        let at = self.expiry(delay);
        if delay > 0 && at == EXPIRED {
            // As in memcached: what was updated before that time. The server is younger.
            return true;
        }
        // A delay of 0 means now, and so does a time since the start.
        self.store().flush((delay > 0 && at > self.now).then_some(at));
        true
    }

    /// Whether the user and the password are valid, which decides what the session may do from now
    /// on.
    fn authenticate(&mut self, credentials: Option<(&[u8], &[u8])>) -> bool {
        self.counters.auth_cmds.add(1);
        self.authenticated = credentials
            .zip(self.context.users.as_ref())
            .is_some_and(|((user, password), users)| users.verify(user, password));
        self.counters.auth_errors.add(u64::from(!self.authenticated));
        self.authenticated
    }

    /// Executes all complete requests in `input`. Returns how many bytes they took; the rest must
    /// be passed again, with more input after it.
    pub fn feed(&mut self, input: &[u8]) -> (usize, SessionStep) {
        let mut used = 0;
        loop {
            if self.is_buffer_full() {
                return (used, SessionStep::Send);
            }
            let rest = &input[used..];
            if rest.is_empty() {
                return (used, SessionStep::NeedInput);
            }
            match std::mem::replace(&mut self.pending, PendingInput::Request) {
                PendingInput::Discard(left) => {
                    let now = left.min(rest.len());
                    used += now;
                    self.discard_input(left - now);
                }
                PendingInput::DataBlock(block) => match self.receive_data_block(block, rest) {
                    // Half of a terminator.
                    0 => return (used, SessionStep::NeedInput),
                    more => used += more,
                },
                PendingInput::Request => {
                    let outcome = match self.turn_requests_left {
                        0 => Err(SessionStep::Yield),
                        _ => self.execute_request(rest),
                    };
                    match outcome {
                        Ok(more) => {
                            self.spend_turn();
                            used += more;
                        }
                        Err(step) => {
                            if step == SessionStep::Yield {
                                self.renew_turn();
                            }
                            return (used, step);
                        }
                    }
                }
            }
        }
    }

    /// Executes the request at the start of `rest`, which is not empty.
    fn execute_request(&mut self, rest: &[u8]) -> Outcome {
        if self.protocol == Protocol::Auto {
            self.protocol = if rest[0] == REQUEST_MAGIC { Protocol::Binary } else { Protocol::Ascii };
        }
        match self.protocol {
            Protocol::Binary => self.execute_binary(rest),
            _ if self.authenticated => self.execute_text(rest),
            _ => self.execute_text_authentication(rest),
        }
    }
}
