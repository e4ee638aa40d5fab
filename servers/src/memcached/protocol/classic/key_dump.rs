//! Commands that list keys: `lru_crawler metadump`, `lru_crawler mgdump` and `stats cachedump`.

use std::ops::ControlFlow;

use super::tuning;
use crate::memcached::clock::Clock;
use crate::memcached::protocol::meta::parse::write_base64;
use crate::memcached::protocol::numbers;
use crate::memcached::protocol::tokens::BAD_FORMAT;
use crate::memcached::session::{KeyDump, RequestOutcome, SEND_AT, Session};
use crate::memcached::store::{ItemBits, ItemHeader, WalkPosition};

/// The longest reply to `stats cachedump`, in bytes; memcached has the same limit.
const MAX_CACHEDUMP: usize = 2 << 20;
const BEGIN: &[u8] = b"OK\r\n";
/// Steps of the store's walk before other connections run.
const STEPS_PER_TURN: usize = 20;

impl<'a> Session<'a> {
    /// Replies with all keys, in steps for which the store is locked: `metadump` if `with_details`
    /// is set, else `mgdump`.
    pub fn dump_classes(&mut self, with_details: bool, classes: &[u8]) -> RequestOutcome {
        let end: &[u8] = if with_details { b"END\r\n" } else { b"EN\r\n" };
        if !self.context.config.dump_allowed {
            let reply: &[u8] = match with_details {
                true => b"ERROR metadump not allowed\r\n",
                false => b"ERROR key dump not allowed\r\n",
            };
            self.replies.extend_from_slice(reply);
            return RequestOutcome::Done(0);
        }
        match tuning::has_items(classes) {
            Some(true) => {}
            Some(false) => {
                self.replies.extend_from_slice(BEGIN);
                self.replies.extend_from_slice(end);
                return RequestOutcome::Done(0);
            }
            None => {
                self.replies.extend_from_slice(tuning::BAD_CLASS);
                return RequestOutcome::Done(0);
            }
        }
        let (store, now) = (self.store(), self.now);
        let begins = self.dump.is_none();
        let mut dump = match self.continue_dump(b"BUSY currently processing crawler request\r\n") {
            Ok(dump) => dump,
            Err(outcome) => return outcome,
        };
        if begins {
            self.replies.extend_from_slice(BEGIN);
        }
        for _ in 0..STEPS_PER_TURN {
            let replies = &mut self.replies;
            let next = store.walk(dump.position, now, |key, header| {
                if with_details {
                    write_metadump_line(store.clock(), key, header, replies);
                } else {
                    write_mgdump_line(key, replies);
                }
                if replies.len() < SEND_AT { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            let Some(next) = next else {
                self.replies.extend_from_slice(end);
                return RequestOutcome::Done(0);
            };
            dump.position = next;
            if self.is_buffer_full() {
                break;
            }
        }
        // Others run, also if nothing was found.
        self.dump = Some(dump);
        RequestOutcome::BufferFull
    }

    /// The client's list, or a new one. If another client's is being sent, `busy` is the reply, and
    /// the request's outcome is returned instead.
    fn continue_dump(&mut self, busy: &[u8]) -> Result<Box<KeyDump<'a>>, RequestOutcome> {
        let now = self.now;
        let dump = self.dump.take().or_else(|| {
            let ticket = self.context.dump_slot.begin(now)?;
            Some(Box::new(KeyDump { ticket, position: WalkPosition::default(), keys: 0, bytes: 0 }))
        });
        let Some(dump) = dump else {
            self.replies.extend_from_slice(busy);
            return Err(RequestOutcome::Done(0));
        };
        // The client may have taken nothing for so long that another's list has begun.
        if dump.ticket.step(now) { Ok(dump) } else { Err(RequestOutcome::Close(0)) }
    }

    /// Replies with the keys of a slab class, in steps as [`dump_keys`](Self::dump_keys). All items
    /// are in class 1.
    pub fn cachedump(&mut self, arguments: &[&[u8]]) -> RequestOutcome {
        let (class, limit) = match self.cachedump_arguments(arguments) {
            Ok(arguments) => arguments,
            Err(error) => {
                self.replies.extend_from_slice(error);
                return RequestOutcome::Done(0);
            }
        };
        if class != 1 {
            self.replies.extend_from_slice(b"END\r\n");
            return RequestOutcome::Done(0);
        }
        let (store, now) = (self.store(), self.now);
        let mut dump = match self.continue_dump(b"SERVER_ERROR busy, another list of keys is being sent\r\n")
        {
            Ok(dump) => dump,
            Err(outcome) => return outcome,
        };
        for _ in 0..STEPS_PER_TURN {
            let replies = &mut self.replies;
            let KeyDump { keys, bytes, position, .. } = &mut *dump;
            let is_over = |keys, bytes| bytes >= MAX_CACHEDUMP || (limit > 0 && keys >= limit);
            let next = store.walk(*position, now, |key, header| {
                let before = replies.len();
                write_cachedump_line(store.clock(), key, header, replies);
                (*keys, *bytes) = (*keys + 1, *bytes + replies.len() - before);
                if replies.len() < SEND_AT && !is_over(*keys, *bytes) {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            });
            match next.filter(|_| !is_over(*keys, *bytes)) {
                Some(next) => *position = next,
                None => {
                    self.replies.extend_from_slice(b"END\r\n");
                    return RequestOutcome::Done(0);
                }
            }
            if self.is_buffer_full() {
                break;
            }
        }
        self.dump = Some(dump);
        RequestOutcome::BufferFull
    }

    /// The class and the limit of `stats cachedump`, or the reply that refuses them.
    fn cachedump_arguments(&self, arguments: &[&[u8]]) -> Result<(u32, u32), &'static [u8]> {
        if !self.context.config.dump_allowed {
            return Err(b"CLIENT_ERROR stats cachedump not allowed\r\n");
        }
        let [class, limit, ..] = arguments else { return Err(b"CLIENT_ERROR bad command line\r\n") };
        let class = numbers::digits_u32(class).ok_or(BAD_FORMAT)?;
        let limit = numbers::digits_u32(limit).ok_or(BAD_FORMAT)?;
        if class > 63 { Err(b"CLIENT_ERROR Illegal slab id\r\n") } else { Ok((class, limit)) }
    }
}

/// Writes a line of `lru_crawler metadump`, with the key percent-encoded as memcached does.
fn write_metadump_line(clock: &Clock, key: &[u8], header: &ItemHeader, out: &mut Vec<u8>) {
    out.extend_from_slice(b"key=");
    for &byte in key {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte);
        } else {
            out.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
    let expiry = match header.expiry {
        0 => -1,
        expiry => clock.unix_of(expiry),
    };
    let fetched = if header.bits.intersects(ItemBits::FETCHED) { "yes" } else { "no" };
    let rest = format!(
        " exp={expiry} la={} cas={} fetch={fetched} cls=1 size={} flags={} \n",
        clock.unix_of(header.accessed),
        header.cas,
        header.size(),
        header.flags
    );
    out.extend_from_slice(rest.as_bytes());
}

/// Writes a line of `lru_crawler mgdump`: a meta get that could be sent back.
fn write_mgdump_line(key: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"mg ");
    if key.iter().all(|byte| byte.is_ascii_graphic()) {
        out.extend_from_slice(key);
    } else {
        write_base64(key, out);
        out.extend_from_slice(b" b");
    }
    out.extend_from_slice(b"\r\n");
}

fn write_cachedump_line(clock: &Clock, key: &[u8], header: &ItemHeader, out: &mut Vec<u8>) {
    out.extend_from_slice(b"ITEM ");
    out.extend_from_slice(key);
    let expiry = match header.expiry {
        0 => 0,
        expiry => clock.unix_of(expiry),
    };
    out.extend_from_slice(format!(" [{} b; {expiry} s]\r\n", header.length).as_bytes());
}
