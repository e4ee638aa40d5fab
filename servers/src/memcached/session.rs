//! One client's conversation, apart from its socket: bytes in, answers out.

use std::sync::Arc;

use super::command::KEY_MAX;
use super::reply::{Reply, ReplyTo};
use super::settings::Protocol;
use super::shared::Shared;
use super::stats::WorkerStats;
use super::store::{Large, Store, Value};
use super::storing::{self, Body, Condition, Incoming, Stored};

/// Answers are sent when the input is used up, or when so many bytes of them have gathered. With the
/// largest item, that bounds what a client that never reads can make the server hold.
const SEND_AT: usize = 64 << 10;
/// A large value up to this size is copied behind its answer's line; others are sent by themselves.
const COPIED: usize = 32 << 10;
/// A value's memory is taken as it arrives, not as it is announced.
const FIRST_ROOM: usize = 64 << 10;
/// A data block's end of line.
const END: &[u8] = b"\r\n";

/// Why [`Session::feed`] came back.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// The input is used up, but for what is not a whole request yet.
    More,
    /// Enough answers have gathered.
    Send,
    /// The client has had its turn.
    Yield,
    /// The end, once the answers are sent.
    Close,
}

/// How a request went.
pub(super) enum Flow {
    /// So many bytes of input were used.
    Done(usize),
    /// It has not come in whole.
    Wait,
    /// Answers have to be sent before it goes on; it is looked at again.
    Pause,
    /// The connection ends, with so many bytes used.
    Close(usize),
}

/// What the next bytes are.
enum Expected {
    Request,
    /// The value of a storing command.
    Block(Box<Block>),
    /// Bytes that nobody wants.
    Swallow(usize),
}

/// A storing command that waits for its value.
struct Block {
    item: Incoming<Box<[u8]>>,
    reply: Reply<Box<[u8]>>,
    gathered: Gathered,
    /// How much of the value's end of line is here, and which.
    end: [u8; 2],
    ended: usize,
}

enum Gathered {
    Small(Vec<u8>),
    Large { value: Large, filled: usize },
}

/// See the module.
pub struct Session<'a> {
    pub(super) shared: &'a Shared,
    pub(super) stats: &'a WorkerStats,
    pub(super) protocol: Option<Protocol>,
    /// Whether the client has said who it is, where that is asked for.
    pub(super) trusted: bool,
    expected: Expected,
    /// Answers that have not been sent.
    pub(super) out: Vec<u8>,
    /// A value that goes out behind `out`, and what goes out behind it.
    large: Option<Arc<Large>>,
    tail: &'static [u8],
    /// Bytes at the start of the input that are known to hold no end of line.
    pub(super) searched: usize,
    /// Bytes of the present get's keys that have been answered.
    pub(super) answered: usize,
    /// Where a dump of all keys goes on.
    pub(super) dump: Option<(usize, u32)>,
    /// Requests until others get a turn.
    left: u32,
    pub(super) now: u32,
}

impl<'a> Session<'a> {
    pub fn new(shared: &'a Shared, stats: &'a WorkerStats) -> Self {
        let settings = &shared.settings;
        let mut session = Self {
            shared,
            stats,
            protocol: settings.protocol,
            trusted: !settings.asks_who(),
            expected: Expected::Request,
            out: Vec::new(),
            large: None,
            tail: &[],
            searched: 0,
            answered: 0,
            dump: None,
            left: settings.requests_per_turn.max(1),
            now: 0,
        };
        session.tick();
        session
    }

    pub(super) fn store(&self) -> &'a Store {
        &self.shared.store
    }

    /// Whether the client may do all.
    pub fn is_trusted(&self) -> bool {
        self.trusted
    }

    /// Looks at the clock.
    pub fn tick(&mut self) {
        self.now = self.store().clock().now();
        self.store().flush_if_due(self.now);
    }

    /// The clock's second.
    pub fn now(&self) -> u32 {
        self.now
    }

    /// Takes the answers that have gathered, with the memory they are in.
    pub fn take_buffer(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// Gives it memory for answers, where it has none.
    pub fn lend_buffer(&mut self, buffer: Vec<u8>) {
        debug_assert!(buffer.is_empty());
        if self.out.is_empty() {
            self.out = buffer;
        }
    }

    /// Takes the value that goes out behind the answers, which are to be taken first.
    pub fn take_large(&mut self) -> Option<Arc<Large>> {
        debug_assert!(self.out.is_empty());
        self.out.extend_from_slice(std::mem::take(&mut self.tail));
        self.large.take()
    }

    /// Counts bytes that went out.
    pub fn count_sent(&self, bytes: usize) {
        self.stats.bytes_written.add(bytes as u64);
    }

    /// Counts a turn that was given to others.
    pub fn count_yield(&self) {
        self.stats.conn_yields.add(1);
    }

    /// Whether there is anything to send.
    pub fn has_answers(&self) -> bool {
        !self.out.is_empty() || self.large.is_some()
    }

    /// Answers all that is whole in `input`; returns how much of it was used. What was not is to be given
    /// again, with more behind it.
    pub fn feed(&mut self, input: &[u8]) -> (usize, Step) {
        let mut used = 0;
        loop {
            if self.is_full() {
                return (used, Step::Send);
            }
            let rest = &input[used..];
            if rest.is_empty() {
                return (used, Step::More);
            }
            match std::mem::replace(&mut self.expected, Expected::Request) {
                Expected::Swallow(left) => {
                    let now = left.min(rest.len());
                    used += now;
                    if now < left {
                        self.expected = Expected::Swallow(left - now);
                    }
                }
                Expected::Block(block) => used += self.gather(block, rest),
                Expected::Request => {
                    if self.left == 0 {
                        self.waited();
                        return (used, Step::Yield);
                    }
                    match self.request(rest) {
                        Flow::Done(more) => {
                            self.left -= 1;
                            used += more;
                        }
                        Flow::Wait => return (used, Step::More),
                        Flow::Pause => return (used, Step::Send),
                        Flow::Close(more) => return (used + more, Step::Close),
                    }
                }
            }
        }
    }

    /// Takes one of the requests of the present turn for what is no request. True where the turn is over.
    pub fn spend_turn(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }

    /// A client that had to wait for more begins a turn.
    pub fn waited(&mut self) {
        self.left = self.shared.settings.requests_per_turn.max(1);
    }

    fn request(&mut self, rest: &[u8]) -> Flow {
        let protocol = *self.protocol.get_or_insert(match rest[0] {
            super::binary::REQUEST => Protocol::Binary,
            _ => Protocol::Ascii,
        });
        match protocol {
            Protocol::Ascii if self.trusted => self.text(rest),
            Protocol::Ascii => self.authenticate_text(rest),
            Protocol::Binary => self.binary(rest),
        }
    }

    /// Whether answers have to be sent before there are more of them.
    pub(super) fn is_full(&self) -> bool {
        self.large.is_some() || self.out.len() >= SEND_AT
    }

    /// Has a value go out behind the answers so far, and `tail` behind it.
    pub(super) fn send_value(
        out: &mut Vec<u8>,
        value: Value<'_>,
        tail: &'static [u8],
    ) -> Option<(Arc<Large>, &'static [u8])> {
        match value {
            Value::Large(large) if large.bytes().len() > COPIED => return Some((Arc::clone(large), tail)),
            value => {
                out.extend_from_slice(value.bytes());
                out.extend_from_slice(tail);
            }
        }
        None
    }

    pub(super) fn send_large(&mut self, large: Option<(Arc<Large>, &'static [u8])>) {
        if let Some((large, tail)) = large {
            (self.large, self.tail) = (Some(large), tail);
        }
    }

    pub(super) fn reply(&mut self, noreply: bool, answer: &[u8]) {
        if !noreply {
            self.out.extend_from_slice(answer);
        }
    }

    pub(super) fn swallow(&mut self, bytes: usize) {
        if bytes > 0 {
            self.expected = Expected::Swallow(bytes);
        }
    }

    /// Begins to store an item whose value is `after`, as far as it is here. Returns how much of it was
    /// used.
    pub(super) fn begin_store(&mut self, item: &Incoming<&[u8]>, reply: Reply<&[u8]>, after: &[u8]) -> usize {
        debug_assert!(item.key.len() <= KEY_MAX);
        let store = self.store();
        let whole = item.length + reply.end();
        if !store.fits(item.key.len(), item.length) {
            self.stats.store_too_large.add(1);
            self.refuse_store(item, &reply, ReplyTo::TooLarge);
            self.swallow(whole);
            return 0;
        }
        let gathered = if !store.is_large(item.length) {
            if after.len() >= whole {
                // All of it is here: no need to copy it first.
                let (value, end) = after[..whole].split_at(item.length);
                self.finish_store(item, &reply, Body::Bytes(value), end);
                return whole;
            }
            Gathered::Small(Vec::new())
        } else {
            match store.large(item.length, self.now) {
                Ok(value) => Gathered::Large { value, filled: 0 },
                Err(super::store::OutOfMemory) => {
                    self.stats.store_no_memory.add(1);
                    self.refuse_store(item, &reply, ReplyTo::Stored(Stored::OutOfMemory));
                    self.swallow(whole);
                    return 0;
                }
            }
        };
        let block = Block { item: item.to_owned(), reply: reply.to_owned(), gathered, end: [0; 2], ended: 0 };
        self.gather(Box::new(block), after)
    }

    /// The client believes the old value gone, so it must not be found any more.
    fn refuse_store<B: AsRef<[u8]>>(&mut self, item: &Incoming<B>, reply: &Reply<B>, why: ReplyTo) {
        if item.condition == Condition::Always || reply.is_meta() {
            self.store().lock(item.key.as_ref(), self.now).remove();
        }
        reply.write(item, why, &mut self.out);
    }

    /// Takes what there is of a value; returns how much that was.
    fn gather(&mut self, mut block: Box<Block>, rest: &[u8]) -> usize {
        let length = block.item.length;
        let mut used = match &mut block.gathered {
            Gathered::Small(data) => {
                let used = (length - data.len()).min(rest.len());
                if data.capacity() == 0 {
                    data.reserve_exact(length.min(FIRST_ROOM));
                }
                data.extend_from_slice(&rest[..used]);
                used
            }
            Gathered::Large { value, filled } => {
                let used = (length - *filled).min(rest.len());
                value.bytes_mut()[*filled..*filled + used].copy_from_slice(&rest[..used]);
                *filled += used;
                used
            }
        };
        let end = block.reply.end();
        while block.ended < end && used < rest.len() {
            block.end[block.ended] = rest[used];
            block.ended += 1;
            used += 1;
        }
        if block.missing() > 0 || block.ended < end {
            self.expected = Expected::Block(block);
            return used;
        }
        let Block { item, reply, gathered, end: bytes, .. } = *block;
        let data;
        let body = match gathered {
            Gathered::Small(gathered) => {
                data = gathered;
                Body::Bytes(&data)
            }
            Gathered::Large { value, .. } => Body::Large(value),
        };
        self.finish_store(&item, &reply, body, &bytes[..end]);
        used
    }

    /// Where the bytes of a large value go that have not come in yet: they may be read there directly, and
    /// told by [`Session::received`].
    pub fn room(&mut self) -> Option<&mut [u8]> {
        match &mut self.expected {
            Expected::Block(block) => match &mut block.gathered {
                Gathered::Large { value, filled } if *filled < block.item.length => {
                    Some(&mut value.bytes_mut()[*filled..])
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether a value is coming in.
    pub fn is_receiving(&self) -> bool {
        matches!(self.expected, Expected::Block(_))
    }

    /// So many bytes were read into [`Session::room`].
    pub fn received(&mut self, bytes: usize) {
        if let Expected::Block(block) = &mut self.expected
            && let Gathered::Large { filled, .. } = &mut block.gathered
        {
            *filled += bytes;
        }
        // A value without an end of line may be whole now.
        if let Expected::Block(block) = std::mem::replace(&mut self.expected, Expected::Request) {
            self.gather(block, &[]);
        }
    }

    fn finish_store<B: AsRef<[u8]>>(
        &mut self,
        item: &Incoming<B>,
        reply: &Reply<B>,
        body: Body<'_>,
        end: &[u8],
    ) {
        let stats = self.stats;
        stats.cmd_set.add(1);
        if end.len() == END.len() && end != END {
            reply.write(item, ReplyTo::BadBlock, &mut self.out);
            return;
        }
        let stored = storing::store(self.store(), item, body, self.now);
        if item.condition == Condition::Unchanged {
            match stored {
                Stored::Done { .. } => stats.cas_hits.add(1),
                Stored::Exists => stats.cas_badval.add(1),
                _ => stats.cas_misses.add(1),
            }
        }
        if stored == Stored::OutOfMemory {
            stats.store_no_memory.add(1);
            self.refuse_store(item, reply, ReplyTo::Stored(stored));
            return;
        }
        if matches!(stored, Stored::Done { .. }) {
            stats.total_items.add(1);
        }
        reply.write(item, ReplyTo::Stored(stored), &mut self.out);
    }
}

impl Block {
    /// Bytes of the value that have not come in.
    fn missing(&self) -> usize {
        match &self.gathered {
            Gathered::Small(data) => self.item.length - data.len(),
            Gathered::Large { filled, .. } => self.item.length - filled,
        }
    }
}
