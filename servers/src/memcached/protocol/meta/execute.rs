//! Executes the meta commands.

use super::parse::{MetaRequest, MetaVerb, OPAQUE_TOO_LONG, write_base64, write_key_flag};
use crate::memcached::mutation::{self, Condition, Delta, DeltaOutcome, StoreRequest};
use crate::memcached::protocol::store_reply::StoreReply;
use crate::memcached::protocol::tokens::{BAD_FORMAT, ERROR, tokens};
use crate::memcached::session::{RequestOutcome, Session};
use crate::memcached::store::{ItemBits, ItemHeader, LockedEntry, NewItem, NewValue, OutOfMemory};

const OUT_OF_MEMORY: &[u8] = b"SERVER_ERROR out of memory\r\n";

fn write_flag(letter: u8, number: impl itoa::Integer, out: &mut Vec<u8>) {
    let mut digits = itoa::Buffer::new();
    out.extend_from_slice(&[b' ', letter]);
    out.extend_from_slice(digits.format(number).as_bytes());
}

fn write_ttl(expiry: u32, now: u32, out: &mut Vec<u8>) {
    match expiry {
        0 => out.extend_from_slice(b" t-1"),
        // As in memcached, where the remaining time is unsigned.
        expiry => write_flag(b't', expiry.saturating_sub(now), out),
    }
}

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
        let vivify = request.vivify.filter(|_| created);
        Self {
            ttl: request.ttl.map(|sent| session.expiry(sent)),
            vivify: vivify.map(|sent| session.expiry(sent)),
        }
    }

    fn after(self, flag: u8, expiry: u32) -> u32 {
        let set = match flag {
            b'T' => self.ttl,
            b'N' => self.vivify,
            _ => None,
        };
        set.unwrap_or(expiry)
    }

    fn after_all(self, request: &MetaRequest<'_>, expiry: u32) -> u32 {
        tokens(request.flags).fold(expiry, |expiry, flag| self.after(flag[0], expiry))
    }
}

/// Writes the flags that are returned even without an item: opaque and key.
fn write_reflected(request: &MetaRequest<'_>, out: &mut Vec<u8>) {
    for flag in tokens(request.flags) {
        match flag[0] {
            b'O' => {
                out.push(b' ');
                out.extend_from_slice(flag);
            }
            b'k' => write_key_flag(request.key(), request.key_is_binary(), out),
            _ => {}
        }
    }
}

impl Session<'_> {
    /// Executes the line of a meta command. Returns how many bytes of `after`, the input behind the
    /// line, were used.
    pub fn execute_meta(&mut self, verb: MetaVerb, line: &[u8], after: &[u8]) -> RequestOutcome {
        let request = match MetaRequest::parse(verb, line) {
            Ok(request) => request,
            Err(error) => {
                let reply = match verb {
                    MetaVerb::Arithmetic if ![BAD_FORMAT, OPAQUE_TOO_LONG].contains(&error.reply) => {
                        b"CLIENT_ERROR invalid or duplicate flag\r\n"
                    }
                    _ => error.reply,
                };
                self.replies.extend_from_slice(reply);
                self.discard_input(error.discard);
                return RequestOutcome::Done(0);
            }
        };
        if self.gets_only && (request.vivify.is_some() || request.ttl.is_some() || request.recache.is_some())
        {
            self.replies.extend_from_slice(ERROR);
            return RequestOutcome::Close(0);
        }
        match verb {
            MetaVerb::Set => return RequestOutcome::Done(self.meta_set(&request, after)),
            MetaVerb::Get => self.meta_get(&request),
            MetaVerb::Delete => self.meta_delete(&request),
            MetaVerb::Arithmetic => self.meta_arithmetic(&request),
            MetaVerb::Debug => self.meta_debug(&request),
        }
        RequestOutcome::Done(0)
    }

    /// Converts an expiry as sent to the store's clock.
    fn expiry(&self, sent: i32) -> u32 {
        self.store().clock().expiry(sent.into())
    }

    fn meta_get(&mut self, request: &MetaRequest<'_>) {
        let (store, now) = (self.store(), self.now);
        let mut entry = store.lock(request.key(), now);
        let mut created = false;
        if entry.header().is_none() && request.vivify.is_some() {
            let new = NewItem {
                flags: 0,
                expiry: 0,
                cas: mutation::new_cas(store, request.new_cas),
                bits: ItemBits::default().with_if(ItemBits::KEY_BINARY, request.key_is_binary()),
                value: NewValue::from(&[][..]),
            };
            // Without memory for the item, it is a miss.
            created = entry.put(new).is_ok();
        }
        if entry.header().is_none() {
            drop(entry);
            match request.ttl {
                Some(_) => self.counters.count_touch(false),
                None => self.counters.count_get(false),
            }
            if !request.quiet {
                self.replies.extend_from_slice(b"EN");
                write_reflected(request, &mut self.replies);
                self.replies.extend_from_slice(b"\r\n");
            }
            return;
        }
        let before = entry.header().map_or(0, |header| header.expiry);
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
        let large = match entry.value() {
            Some((header, value)) => {
                let wants_value = request.wants_value && request.expected_cas != Some(header.cas);
                let out = &mut self.replies;
                if wants_value {
                    let mut digits = itoa::Buffer::new();
                    Self::reserve_for(out, &value, 128);
                    out.extend_from_slice(b"VA ");
                    out.extend_from_slice(digits.format(header.length).as_bytes());
                } else {
                    out.extend_from_slice(b"HD");
                }
                write_item_flags(request, &header, sets, before, now, out);
                out.extend_from_slice(recache.flags());
                out.extend_from_slice(b"\r\n");
                if wants_value { Self::write_value(out, value, b"\r\n") } else { None }
            }
            None => None,
        };
        if !request.no_update {
            entry.record_fetch();
        }
        drop(entry);
        self.queue_large_value(large);
        match request.ttl {
            Some(_) => self.counters.count_touch(true),
            None => self.counters.count_get(true),
        }
    }

    fn meta_set(&mut self, request: &MetaRequest<'_>, after: &[u8]) -> usize {
        let vivify = request.vivify.is_some();
        let condition = match request.mode {
            0 | b'S' | b'R' if request.expected_cas.is_some() => Condition::CasMatches,
            0 | b'S' => Condition::Always,
            b'E' => Condition::Absent,
            b'A' => Condition::Append { vivify },
            b'P' => Condition::Prepend { vivify },
            b'R' => Condition::Present,
            _ => {
                self.replies.extend_from_slice(b"CLIENT_ERROR invalid mode for ms M token\r\n");
                self.discard_input(request.length + 2);
                return 0;
            }
        };
        let expiry = match condition {
            Condition::Append { vivify: true } | Condition::Prepend { vivify: true } => request.vivify,
            _ => request.ttl,
        };
        let store_request = StoreRequest {
            condition,
            key: request.key(),
            flags: request.client_flags,
            expiry: expiry.map_or(0, |sent| self.expiry(sent)),
            expected_cas: request.expected_cas.unwrap_or(0),
            // 0 is none here, and a number elsewhere.
            new_cas: request.new_cas.filter(|cas| *cas != 0),
            accepts_stale: request.invalidate,
            bits: ItemBits::default().with_if(ItemBits::KEY_BINARY, request.key_is_binary()),
            length: request.length,
        };
        let reply = StoreReply::Meta { flags: request.flags, quiet: request.quiet };
        self.begin_store(&store_request, reply, after)
    }

    fn meta_delete(&mut self, request: &MetaRequest<'_>) {
        let (store, counters) = (self.store(), self.counters);
        let mut entry = store.lock(request.key(), self.now);
        let code: &[u8] = match entry.header() {
            None => {
                counters.count_delete(false);
                b"NF"
            }
            Some(header) if request.expected_cas.is_some_and(|cas| cas != header.cas) => {
                counters.count_delete(false);
                b"EX"
            }
            Some(header) => match self.meta_delete_item(request, &mut entry, header) {
                Ok(()) => b"HD",
                Err(OutOfMemory) => {
                    drop(entry);
                    self.replies.extend_from_slice(OUT_OF_MEMORY);
                    return;
                }
            },
        };
        drop(entry);
        if request.quiet && code == b"HD" {
            return;
        }
        self.replies.extend_from_slice(code);
        write_reflected(request, &mut self.replies);
        self.replies.extend_from_slice(b"\r\n");
    }

    fn meta_delete_item(
        &self,
        request: &MetaRequest<'_>,
        entry: &mut LockedEntry<'_>,
        header: ItemHeader,
    ) -> Result<(), OutOfMemory> {
        let store = self.store();
        if request.remove_value {
            // The item stays with an empty value.
            entry.put(NewItem {
                flags: request.client_flags,
                expiry: request.ttl.map_or(0, |ttl| self.expiry(ttl)),
                cas: request.new_cas.filter(|_| store.has_cas()).unwrap_or(header.cas),
                bits: ItemBits::default(),
                value: NewValue::from(&[][..]),
            })?;
        }
        if request.invalidate {
            if let Some(ttl) = request.ttl {
                entry.set_expiry(self.expiry(ttl));
            }
            let bits = entry.header().map_or(header.bits, |header| header.bits);
            // The next client may claim the recache token.
            entry.set_bits(bits.with(ItemBits::STALE).without(ItemBits::TOKEN_SENT));
            entry.set_cas(mutation::new_cas(store, request.new_cas));
            return Ok(());
        }
        self.counters.count_delete(true);
        if !request.remove_value {
            entry.remove();
        }
        Ok(())
    }

    fn meta_arithmetic(&mut self, request: &MetaRequest<'_>) {
        let increments = match request.mode {
            0 | b'I' | b'+' => true,
            b'D' | b'-' => false,
            _ => {
                self.replies.extend_from_slice(b"CLIENT_ERROR invalid mode for ma M token\r\n");
                return;
            }
        };
        let (store, counters) = (self.store(), self.counters);
        let delta = Delta {
            amount: request.delta,
            increments,
            expected_cas: request.expected_cas.unwrap_or(0),
            new_cas: request.new_cas,
        };
        let mut entry = store.lock(request.key(), self.now);
        let before = entry.header().map_or(0, |header| header.expiry);
        let outcome = mutation::apply_delta(store, &mut entry, delta);
        let mut digits = itoa::Buffer::new();
        let sets = ExpiryFlags::new(self, request, outcome == DeltaOutcome::NotFound);
        let expiry = sets.after_all(request, before);
        let value = match (outcome, request.vivify) {
            (DeltaOutcome::Changed { value, .. }, _) => {
                counters.count_delta(outcome, increments);
                if expiry != before {
                    entry.set_expiry(expiry);
                }
                entry.record_access();
                digits.format(value)
            }
            (DeltaOutcome::NotFound, Some(_)) => {
                let text = digits.format(request.initial);
                let new = NewItem {
                    flags: 0,
                    expiry,
                    cas: mutation::new_cas(store, request.new_cas),
                    bits: ItemBits::default().with_if(ItemBits::KEY_BINARY, request.key_is_binary()),
                    value: NewValue::from(text.as_bytes()),
                };
                if entry.put(new).is_err() {
                    drop(entry);
                    self.replies.extend_from_slice(b"SERVER_ERROR Out of memory allocating new item\r\n");
                    return;
                }
                text
            }
            (DeltaOutcome::NotFound | DeltaOutcome::Exists, _) => {
                drop(entry);
                counters.count_delta(outcome, increments);
                let code = if outcome == DeltaOutcome::Exists { b"EX" } else { b"NF" };
                self.replies.extend_from_slice(code);
                write_reflected(request, &mut self.replies);
                self.replies.extend_from_slice(b"\r\n");
                return;
            }
            (DeltaOutcome::NotANumber, _) => {
                let reply = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
                self.replies.extend_from_slice(reply);
                return;
            }
            (DeltaOutcome::OutOfMemory, _) => {
                self.replies.extend_from_slice(OUT_OF_MEMORY);
                return;
            }
        };
        let header = entry.header();
        drop(entry);
        if request.quiet {
            return;
        }
        let out = &mut self.replies;
        if request.wants_value {
            let mut digits = itoa::Buffer::new();
            out.extend_from_slice(b"VA ");
            out.extend_from_slice(digits.format(value.len()).as_bytes());
        } else {
            out.extend_from_slice(b"HD");
        }
        let mut expiry = before;
        for flag in tokens(request.flags) {
            expiry = sets.after(flag[0], expiry);
            match (flag[0], &header) {
                (b'c', Some(header)) => write_flag(b'c', header.cas, out),
                (b't', _) => write_ttl(expiry, self.now, out),
                (b'O', _) => {
                    out.push(b' ');
                    out.extend_from_slice(flag);
                }
                (b'k', _) => write_key_flag(request.key(), request.key_is_binary(), out),
                _ => {}
            }
        }
        out.extend_from_slice(b"\r\n");
        if request.wants_value {
            out.extend_from_slice(value.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }

    fn meta_debug(&mut self, request: &MetaRequest<'_>) {
        self.counters.cmd_meta.add(1);
        let header = self.store().lock(request.key(), self.now).header();
        let Some(header) = header else {
            self.replies.extend_from_slice(b"EN\r\n");
            return;
        };
        self.replies.extend_from_slice(b"ME ");
        if header.bits.intersects(ItemBits::KEY_BINARY) {
            write_base64(request.key(), &mut self.replies);
        } else {
            self.replies.extend_from_slice(request.key());
        }
        let expiry = match header.expiry {
            0 => -1,
            expiry => i64::from(expiry) - i64::from(self.now),
        };
        let fetched = if header.bits.intersects(ItemBits::FETCHED) { "yes" } else { "no" };
        let idle = self.now.saturating_sub(header.accessed);
        let rest = format!(
            " exp={expiry} la={idle} cas={} fetch={fetched} cls=1 size={}\r\n",
            header.cas,
            header.size()
        );
        self.replies.extend_from_slice(rest.as_bytes());
    }
}

enum RecacheToken {
    Claimed { stale: bool },
    Taken { stale: bool },
    Unclaimed,
}

impl RecacheToken {
    fn flags(&self) -> &'static [u8] {
        match self {
            RecacheToken::Claimed { stale: true } => b" X W",
            RecacheToken::Claimed { stale: false } => b" W",
            RecacheToken::Taken { stale: true } => b" Z X",
            RecacheToken::Taken { stale: false } => b" Z",
            RecacheToken::Unclaimed => b"",
        }
    }
}

/// Claims the recache token if the item was just created, expires soon or is stale.
fn claim_recache(entry: &mut LockedEntry<'_>, created: bool, expires_soon: bool) -> RecacheToken {
    let Some(header) = entry.header() else { return RecacheToken::Unclaimed };
    let stale = header.bits.intersects(ItemBits::STALE);
    if header.bits.intersects(ItemBits::TOKEN_SENT) {
        return RecacheToken::Taken { stale };
    }
    if created || expires_soon || stale {
        entry.set_bits(header.bits.with(ItemBits::TOKEN_SENT));
        return RecacheToken::Claimed { stale };
    }
    RecacheToken::Unclaimed
}

fn write_item_flags(
    request: &MetaRequest<'_>,
    header: &ItemHeader,
    sets: ExpiryFlags,
    before: u32,
    now: u32,
    out: &mut Vec<u8>,
) {
    let mut expiry = before;
    for flag in tokens(request.flags) {
        expiry = sets.after(flag[0], expiry);
        match flag[0] {
            b's' => write_flag(b's', header.length, out),
            b't' => write_ttl(expiry, now, out),
            b'c' => write_flag(b'c', header.cas, out),
            b'f' => write_flag(b'f', header.flags, out),
            b'l' => write_flag(b'l', now.saturating_sub(header.accessed), out),
            b'h' => write_flag(b'h', u8::from(header.bits.intersects(ItemBits::FETCHED)), out),
            b'O' => {
                out.push(b' ');
                out.extend_from_slice(flag);
            }
            b'k' => write_key_flag(request.key(), header.bits.intersects(ItemBits::KEY_BINARY), out),
            _ => {}
        }
    }
}
