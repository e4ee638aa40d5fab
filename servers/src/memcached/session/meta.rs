//! Executes the meta commands.

use std::io::Write;

use super::{Outcome, Session, SessionStep};
use crate::memcached::mutation::{self, Condition, Delta, DeltaOutcome, StoreRequest};
use crate::memcached::protocol::meta::{
    MetaRequest, MetaVerb, OPAQUE_TOO_LONG, write_base64, write_flag, write_flags, write_number, write_ttl,
};
use crate::memcached::protocol::store_reply::{StoreCommand, StoreReply};
use crate::memcached::protocol::{BAD_FORMAT, ERROR, NOT_A_NUMBER, OUT_OF_MEMORY, tokens};
use crate::memcached::store::{ItemBits, ItemHeader, LockedEntry, NewItem, NewValue};

/// What the flags `T` and `N` set an item's expiry to. They are evaluated in the order in which
/// they are given: the last one stays, and `t` and `R` see what was set before them.
#[derive(Clone, Copy)]
struct ExpiryFlags {
    ttl: Option<u32>,
    /// Only for an item that the request has created.
    vivify: Option<u32>,
}

impl ExpiryFlags {
    fn new(session: &Session<'_>, request: &MetaRequest<'_>, created: bool) -> Self {
        let vivify = request.vivify.filter(|_| created).map(|sent| session.expiry(sent));
        Self { ttl: request.ttl.map(|sent| session.expiry(sent)), vivify }
    }

    fn after(self, flag: u8, expiry: u32) -> u32 {
        match flag {
            b'T' => self.ttl.unwrap_or(expiry),
            b'N' => self.vivify.unwrap_or(expiry),
            _ => expiry,
        }
    }

    fn after_all(self, request: &MetaRequest<'_>, expiry: u32) -> u32 {
        tokens(request.flags).fold(expiry, |expiry, flag| self.after(flag[0], expiry))
    }
}

/// Claims the recache token if the item was just created, expires soon or is stale. Returns the
/// flags that say so.
fn claim_recache(entry: &mut LockedEntry<'_>, created: bool, expires_soon: bool) -> &'static [u8] {
    let Some(header) = entry.header() else { return b"" };
    let stale = header.bits.contains(ItemBits::STALE);
    if header.bits.contains(ItemBits::TOKEN_SENT) {
        return if stale { b" Z X" } else { b" Z" };
    }
    if created || expires_soon || stale {
        entry.update(|header| header.bits |= ItemBits::TOKEN_SENT);
        return if stale { b" X W" } else { b" W" };
    }
    b""
}

/// The state bits of an item that a request stores.
fn key_bits(request: &MetaRequest<'_>) -> ItemBits {
    if request.key_is_binary() { ItemBits::KEY_BINARY } else { ItemBits::default() }
}

impl Session<'_> {
    /// Executes the line of a meta command. Returns how many bytes of `after`, the input behind the
    /// line, were used.
    pub(super) fn execute_meta(&mut self, verb: MetaVerb, line: &[u8], after: &[u8]) -> Outcome {
        let request = match MetaRequest::parse(verb, line) {
            Ok(request) => request,
            Err(error) => {
                self.reply(match error.reply {
                    BAD_FORMAT | OPAQUE_TOO_LONG => error.reply,
                    _ if verb == MetaVerb::Arithmetic => b"CLIENT_ERROR invalid or duplicate flag\r\n",
                    reply => reply,
                });
                self.discard_input(error.discard);
                return Ok(0);
            }
        };
        let writes = request.vivify.is_some() || request.ttl.is_some() || request.recache.is_some();
        if self.gets_only && writes {
            self.reply(ERROR);
            return Err(SessionStep::Close);
        }
        match verb {
            MetaVerb::Set => return Ok(self.meta_set(&request, after)),
            MetaVerb::Get => self.meta_get(&request),
            MetaVerb::Delete => self.meta_delete(&request),
            MetaVerb::Arithmetic => self.meta_arithmetic(&request),
            MetaVerb::Debug => self.meta_debug(&request),
        }
        Ok(0)
    }

    /// Replies with the flags that are returned even without an item: opaque and key.
    fn reply_code(&mut self, code: &[u8], request: &MetaRequest<'_>) {
        self.reply(code);
        write_flags(request.flags, request.key(), request.key_is_binary(), &mut self.replies, |_, _| {});
        self.reply(b"\r\n");
    }

    /// Begins a reply, before its flags, with the length of its value, if it has one.
    fn begin_reply(&mut self, length: Option<usize>) {
        match length {
            None => self.reply(b"HD"),
            Some(length) => {
                self.reply(b"VA ");
                write_number(length, &mut self.replies);
            }
        }
    }

    fn meta_get(&mut self, request: &MetaRequest<'_>) {
        let (store, now) = (self.store(), self.now);
        let mut entry = store.lock(request.key(), now);
        // Without memory for the item, it is a miss.
        let created = entry.header().is_none() && request.vivify.is_some() && {
            let (cas, value) = (mutation::new_cas(store, request.new_cas), NewValue::from(&[][..]));
            entry.put(NewItem { flags: 0, expiry: 0, cas, bits: key_bits(request), value }).is_ok()
        };
        let Some(ItemHeader { expiry: before, .. }) = entry.header() else {
            self.counters.count_get_or_touch(request.ttl.is_some(), false);
            if !request.quiet {
                self.reply_code(b"EN", request);
            }
            return;
        };
        let sets = ExpiryFlags::new(self, request, created);
        let expires_soon = request.recache.is_some_and(|seconds| {
            let until = tokens(request.flags).take_while(|flag| flag[0] != b'R');
            let expiry = until.fold(before, |expiry, flag| sets.after(flag[0], expiry));
            expiry != 0 && expiry < self.expiry(seconds)
        });
        let expiry = sets.after_all(request, before);
        if expiry != before {
            entry.set_expiry(expiry);
        }
        let recache = claim_recache(&mut entry, created, expires_soon);
        if let Some((header, value)) = entry.value() {
            let wants_value = request.wants_value && request.expected_cas != Some(header.cas);
            if wants_value {
                self.reserve_for(&value, 128);
            }
            self.begin_reply(wants_value.then_some(value.bytes().len()));
            let mut expiry = before;
            let is_binary = header.bits.contains(ItemBits::KEY_BINARY);
            write_flags(request.flags, request.key(), is_binary, &mut self.replies, |flag, out| {
                expiry = sets.after(flag, expiry);
                match flag {
                    b's' => write_flag(flag, header.length, out),
                    b't' => write_ttl(expiry, now, out),
                    b'c' => write_flag(flag, header.cas, out),
                    b'f' => write_flag(flag, header.flags, out),
                    b'l' => write_flag(flag, now.saturating_sub(header.accessed), out),
                    b'h' => write_flag(flag, u8::from(header.bits.contains(ItemBits::FETCHED)), out),
                    _ => {}
                }
            });
            self.reply(recache);
            self.reply(b"\r\n");
            if wants_value {
                self.write_value(value, b"\r\n");
            }
        }
        if !request.no_update {
            entry.record_fetch();
        }
        self.counters.count_get_or_touch(request.ttl.is_some(), true);
    }

    fn meta_set(&mut self, request: &MetaRequest<'_>, after: &[u8]) -> usize {
        let condition = match request.mode {
            0 | b'S' | b'R' if request.expected_cas.is_some() => Condition::CasMatches,
            0 | b'S' => Condition::Always,
            b'E' => Condition::Absent,
            b'A' => Condition::Append,
            b'P' => Condition::Prepend,
            b'R' => Condition::Present,
            _ => {
                self.reply(b"CLIENT_ERROR invalid mode for ms M token\r\n");
                self.discard_input(request.length + 2);
                return 0;
            }
        };
        let expiry = match condition {
            Condition::Append | Condition::Prepend => request.vivify.or(request.ttl),
            _ => request.ttl,
        };
        let store_request = StoreRequest {
            condition,
            flags: request.client_flags,
            expiry: expiry.map_or(0, |sent| self.expiry(sent)),
            expected_cas: request.expected_cas.unwrap_or(0),
            // 0 is none here, and a number elsewhere.
            new_cas: request.new_cas.filter(|cas| *cas != 0),
            accepts_stale: request.invalidate,
            vivify: request.vivify.is_some(),
            bits: key_bits(request),
            length: request.length,
        };
        let reply = StoreReply::Meta { quiet: request.quiet };
        let (key, meta_flags) = (request.key(), request.flags);
        self.begin_store(StoreCommand { key, meta_flags, request: store_request, reply }, after)
    }

    fn meta_delete(&mut self, request: &MetaRequest<'_>) {
        let store = self.store();
        let mut entry = store.lock(request.key(), self.now);
        let code: &[u8] = match entry.header() {
            None => b"NF",
            Some(header) if request.expected_cas.is_some_and(|cas| cas != header.cas) => b"EX",
            Some(header) => {
                let ttl = request.ttl.map(|ttl| self.expiry(ttl));
                let (flags, expiry, bits) = (request.client_flags, ttl.unwrap_or(0), ItemBits::default());
                let cas = request.new_cas.filter(|_| store.cas).unwrap_or(header.cas);
                // The item stays with an empty value.
                let emptied = NewItem { flags, expiry, cas, bits, value: NewValue::from(&[][..]) };
                if request.remove_value && entry.put(emptied).is_err() {
                    return self.reply(OUT_OF_MEMORY);
                }
                if request.invalidate {
                    if let Some(ttl) = ttl {
                        entry.set_expiry(ttl);
                    }
                    // The next client may claim the recache token.
                    let cas = mutation::new_cas(store, request.new_cas);
                    entry.update(|header| {
                        header.bits = (header.bits | ItemBits::STALE) - ItemBits::TOKEN_SENT;
                        header.cas = cas;
                    });
                } else {
                    self.counters.count_delete(true);
                    if !request.remove_value {
                        entry.remove();
                    }
                }
                b"HD"
            }
        };
        drop(entry);
        let is_done = code == b"HD";
        if !is_done {
            self.counters.count_delete(false);
        }
        if !(is_done && request.quiet) {
            self.reply_code(code, request);
        }
    }

    fn meta_arithmetic(&mut self, request: &MetaRequest<'_>) {
        let increments = match request.mode {
            0 | b'I' | b'+' => true,
            b'D' | b'-' => false,
            _ => return self.reply(b"CLIENT_ERROR invalid mode for ma M token\r\n"),
        };
        let (store, now) = (self.store(), self.now);
        let of_created = ExpiryFlags::new(self, request, true).after_all(request, 0);
        let vivify = request.vivify.map(|_| (request.initial, of_created));
        let (expected_cas, bits) = (request.expected_cas.unwrap_or(0), key_bits(request));
        let &MetaRequest { delta: amount, new_cas, .. } = request;
        let delta = Delta { amount, increments, expected_cas, new_cas, vivify, bits };
        let mut entry = store.lock(request.key(), now);
        let before = entry.header().map_or(0, |header| header.expiry);
        let outcome = mutation::apply_delta(store, &mut entry, delta);
        self.counters.count_delta(outcome, increments);
        let sets = ExpiryFlags::new(self, request, matches!(outcome, DeltaOutcome::Created { .. }));
        let (value, cas) = match outcome {
            DeltaOutcome::Changed { value, cas } => {
                let expiry = sets.after_all(request, before);
                if expiry != before {
                    entry.set_expiry(expiry);
                }
                entry.record_access();
                (value, cas)
            }
            DeltaOutcome::Created { value, cas } => (value, cas),
            DeltaOutcome::NotANumber => return self.reply(NOT_A_NUMBER),
            DeltaOutcome::OutOfMemory => return self.reply(OUT_OF_MEMORY),
            DeltaOutcome::Exists => return self.reply_code(b"EX", request),
            DeltaOutcome::NotFound => return self.reply_code(b"NF", request),
        };
        drop(entry);
        if request.quiet {
            return;
        }
        let mut digits = itoa::Buffer::new();
        let value = digits.format(value).as_bytes();
        self.begin_reply(request.wants_value.then_some(value.len()));
        let mut expiry = before;
        write_flags(request.flags, request.key(), request.key_is_binary(), &mut self.replies, |flag, out| {
            expiry = sets.after(flag, expiry);
            match flag {
                b'c' => write_flag(flag, cas, out),
                b't' => write_ttl(expiry, now, out),
                _ => {}
            }
        });
        self.reply(b"\r\n");
        if request.wants_value {
            self.reply(value);
            self.reply(b"\r\n");
        }
    }

    fn meta_debug(&mut self, request: &MetaRequest<'_>) {
        self.counters.cmd_meta.add(1);
        let header = self.store().lock(request.key(), self.now).header();
        let Some(header) = header else {
            self.reply(b"EN\r\n");
            return;
        };
        self.reply(b"ME ");
        if header.bits.contains(ItemBits::KEY_BINARY) {
            write_base64(request.key(), &mut self.replies);
        } else {
            self.reply(request.key());
        }
        let expiry = match header.expiry {
            0 => -1,
            expiry => i64::from(expiry) - i64::from(self.now),
        };
        let fetched = if header.bits.contains(ItemBits::FETCHED) { "yes" } else { "no" };
        let (idle, cas, size) = (self.now.saturating_sub(header.accessed), header.cas, header.size());
        // Writing to a vector does not fail.
        let _ =
            write!(self.replies, " exp={expiry} la={idle} cas={cas} fetch={fetched} cls=1 size={size}\r\n");
    }
}
