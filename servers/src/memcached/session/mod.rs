//! A session: one client's conversation, independent of its socket. Bytes go in, replies come out.

mod data_block;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::memcached::config::Protocol;
use crate::memcached::context::ServerContext;
use crate::memcached::dump_slot::DumpTicket;
use crate::memcached::mutation::StoreRequest;
use crate::memcached::protocol::binary;
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

/// An incomplete line that is longer than this, in bytes, closes the connection, unless it is a
/// get.
const MAX_LINE: usize = 2048;
/// An incomplete get that is longer than this, in bytes, closes the connection.
const MAX_GET_LINE: usize = 1 << 20;
/// A long line may begin with at most this many spaces.
const MAX_LEADING_SPACES: usize = 100;

/// Why [`Session::feed`] returned.
#[derive(Debug, PartialEq, Eq)]
pub enum SessionStep {
    /// The input holds no further complete request.
    NeedInput,
    /// Replies must be sent before more requests are executed.
    Send,
    /// The client's turn is over: other connections should run.
    Yield,
    /// The section `policy` of `stats` must be refreshed before the next request.
    RefreshPolicy,
    /// The connection closes once the replies are sent.
    Close,
}

pub enum RequestOutcome {
    /// It is complete and took this many bytes of input.
    Done(usize),
    /// It was not received completely. It is executed again with more input.
    Incomplete,
    /// The reply buffer is full. The request continues once replies are sent.
    BufferFull,
    /// The client's turn is over. The request continues in the next one.
    TurnOver,
    /// It is executed once the section `policy` of `stats` is refreshed.
    NeedsPolicy,
    /// The connection closes; the request took this many bytes of input.
    Close(usize),
}

pub struct KeyDump<'a> {
    pub ticket: DumpTicket<'a>,
    pub position: WalkPosition,
    pub keys: u32,
    pub bytes: usize,
}

pub enum PendingInput {
    Request,
    DataBlock(Box<DataBlock>),
    Discard(usize),
}

/// A storage command whose data block is being received.
pub struct DataBlock {
    pub request: StoreRequest<Box<[u8]>>,
    pub reply: StoreReply<Box<[u8]>>,
    pub value: PartialValue,
    /// The bytes that terminate the block, as far as they were received.
    pub terminator: [u8; 2],
    pub terminator_length: usize,
}

pub enum PartialValue {
    Small { received: Vec<u8>, _charge: BufferCharge },
    Large { value: LargeValue, filled: usize },
}

impl DataBlock {
    /// Bytes of the value that were not received yet.
    pub fn missing(&self) -> usize {
        match &self.value {
            PartialValue::Small { received, .. } => self.request.length - received.len(),
            PartialValue::Large { filled, .. } => self.request.length - filled,
        }
    }
}

/// What a buffer of a connection takes of the store's memory.
#[derive(Debug, Default)]
pub struct BufferCharge(Option<Box<BufferReservation>>);

impl BufferCharge {
    /// Counts a buffer of `bytes`, in place of what was counted before. A small one doesn't count.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the store can't give up so much. Nothing is counted then.
    pub fn set(&mut self, context: &ServerContext, bytes: usize) -> Result<(), OutOfMemory> {
        if bytes <= FREE_BUFFER {
            self.0 = None;
        } else if self.0.as_ref().is_none_or(|counted| counted.bytes() != bytes as u64) {
            self.0 = None;
            let store = &context.store;
            self.0 = Some(Box::new(store.reserve_buffer(bytes, store.clock().now())?));
        }
        Ok(())
    }
}

pub struct Session<'a> {
    pub context: &'a ServerContext,
    pub counters: &'a WorkerCounters,
    pub protocol: Option<Protocol>,
    pub authenticated: bool,
    pending: PendingInput,
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
    /// Whether other commands than gets are refused.
    pub gets_only: bool,
    turn_requests_left: u32,
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

    pub fn take_buffer(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.replies)
    }

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
        self.replies.extend_from_slice(std::mem::take(&mut self.large_value_trailer));
        self.large_value.take()
    }

    pub fn count_sent(&self, bytes: usize) {
        self.counters.bytes_written.add(bytes as u64);
    }

    /// Counts a turn that ended with requests left.
    pub fn count_yield(&self) {
        self.counters.conn_yields.add(1);
    }

    pub fn has_replies(&self) -> bool {
        !self.replies.is_empty() || self.large_value.is_some()
    }

    /// Whether replies must be sent before more are buffered.
    pub fn is_buffer_full(&self) -> bool {
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
    pub fn reserve_for(replies: &mut Vec<u8>, value: &StoredValue<'_>, more: usize) {
        match value {
            StoredValue::Large(large) if large.bytes().len() > MAX_COPIED => replies.reserve(more),
            // Twice as much could stay allocated while the client does not read.
            value if value.bytes().len() > MAX_COPIED => replies.reserve_exact(value.bytes().len() + more),
            value => replies.reserve(value.bytes().len() + more),
        }
    }

    /// Appends a value and its `trailer` to the replies. A value that is too large to copy is
    /// returned instead, to be passed to [`Session::queue_large_value`] once the store is unlocked.
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

    pub fn discard_input(&mut self, bytes: usize) {
        if bytes > 0 {
            self.pending = PendingInput::Discard(bytes);
        }
    }

    /// Removes all items now, or after a delay in the protocol's terms. False if `flush_all` is not
    /// allowed.
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

impl Session<'_> {
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
                    if now < left {
                        self.pending = PendingInput::Discard(left - now);
                    }
                }
                PendingInput::DataBlock(block) => used += self.receive_data_block(block, rest),
                PendingInput::Request => {
                    if self.turn_requests_left == 0 {
                        self.renew_turn();
                        return (used, SessionStep::Yield);
                    }
                    match self.execute_request(rest) {
                        RequestOutcome::Done(more) => {
                            self.spend_turn();
                            used += more;
                        }
                        RequestOutcome::Incomplete => return (used, SessionStep::NeedInput),
                        RequestOutcome::BufferFull => return (used, SessionStep::Send),
                        RequestOutcome::TurnOver => {
                            self.renew_turn();
                            return (used, SessionStep::Yield);
                        }
                        RequestOutcome::NeedsPolicy => return (used, SessionStep::RefreshPolicy),
                        RequestOutcome::Close(more) => return (used + more, SessionStep::Close),
                    }
                }
            }
        }
    }

    /// Executes the request at the start of `rest`, which is not empty.
    fn execute_request(&mut self, rest: &[u8]) -> RequestOutcome {
        let protocol = *self.protocol.get_or_insert(match rest[0] {
            binary::REQUEST_MAGIC => Protocol::Binary,
            _ => Protocol::Ascii,
        });
        match protocol {
            Protocol::Ascii if self.authenticated => self.execute_text(rest),
            Protocol::Ascii => self.execute_text_authentication(rest),
            Protocol::Binary => self.execute_binary(rest),
        }
    }

    /// Executes the line at the start of `rest`, and receives as much of its data block as is
    /// there.
    pub fn execute_text(&mut self, rest: &[u8]) -> RequestOutcome {
        let Some(end) = memchr::memchr(b'\n', &rest[self.scanned..]) else {
            self.scanned = rest.len();
            return check_incomplete(rest);
        };
        let end = self.scanned + end;
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        let used = end + 1;
        match self.execute_line(line, used - line.len(), &rest[used..]) {
            RequestOutcome::Done(more) => {
                self.scanned = 0;
                RequestOutcome::Done(used + more)
            }
            RequestOutcome::Close(_) => RequestOutcome::Close(used),
            // The line is passed again, and continues where it stopped.
            outcome => {
                self.scanned = end;
                outcome
            }
        }
    }
}

/// Limits the length of a line whose end was not received.
fn check_incomplete(line: &[u8]) -> RequestOutcome {
    if line.len() <= MAX_LINE {
        return RequestOutcome::Incomplete;
    }
    let spaces = line.iter().position(|&byte| byte != b' ').unwrap_or(line.len());
    let command = &line[spaces..];
    // Each of these takes any number of keys. memcached names only the first two here, and executes
    // the others if the line comes in one read. How many reads a line takes is the kernel's choice,
    // so it must not decide.
    let is_get = [&b"get "[..], b"gets ", b"gat ", b"gats "].iter().any(|get| command.starts_with(get));
    if spaces <= MAX_LEADING_SPACES && is_get && line.len() <= MAX_GET_LINE {
        return RequestOutcome::Incomplete;
    }
    RequestOutcome::Close(0)
}
