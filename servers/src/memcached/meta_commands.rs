//! What the meta commands do.

use super::command::words;
use super::meta::{self, Meta};
use super::reply::Reply;
use super::session::Session;
use super::store::{Bits, Data, Header, New, OutOfMemory, Slot};
use super::storing::{self, Condition, Counted, Delta, Incoming};

const OUT_OF_MEMORY: &[u8] = b"SERVER_ERROR out of memory\r\n";

/// Appends a flag with a number.
fn put(letter: u8, number: impl itoa::Integer, out: &mut Vec<u8>) {
    let mut digits = itoa::Buffer::new();
    out.extend_from_slice(&[b' ', letter]);
    out.extend_from_slice(digits.format(number).as_bytes());
}

fn put_ttl(expiry: u32, now: u32, out: &mut Vec<u8>) {
    match expiry {
        0 => out.extend_from_slice(b" t-1"),
        // As memcached has it, which keeps no sign: it can't be past.
        expiry => put(b't', expiry.saturating_sub(now), out),
    }
}

/// Appends what is answered also without an item: opaque and key.
fn put_reflected(meta: &Meta<'_>, out: &mut Vec<u8>) {
    for flag in words(meta.flags) {
        match flag[0] {
            b'O' => {
                out.push(b' ');
                out.extend_from_slice(flag);
            }
            b'k' => meta::write_key(meta.key(), meta.key_is_binary(), out),
            _ => {}
        }
    }
}

impl Session<'_> {
    fn expiry(&self, given: i32) -> u32 {
        self.store().clock().expiry(given.into())
    }

    pub(super) fn meta_get(&mut self, meta: &Meta<'_>) {
        let (store, now) = (self.store(), self.now);
        let mut slot = store.lock(meta.key(), now);
        let mut created = false;
        if let (None, Some(expiry)) = (slot.header(), meta.vivify) {
            let new = New {
                flags: 0,
                expiry: self.expiry(expiry),
                cas: meta.number.unwrap_or_else(|| store.next_cas()),
                bits: Bits::default().with_if(Bits::KEY_BINARY, meta.key_is_binary()),
                value: Data::from(&[][..]),
            };
            // Without memory for it, it is a miss.
            created = slot.put(new).is_ok();
        }
        if slot.header().is_none() {
            drop(slot);
            match meta.ttl {
                Some(_) => self.stats.count_touch(false),
                None => self.stats.count_get(false),
            }
            if !meta.quiet {
                self.out.extend_from_slice(b"EN");
                put_reflected(meta, &mut self.out);
                self.out.extend_from_slice(b"\r\n");
            }
            return;
        }
        // Each flag tells what holds when it is read, so a TTL behind `t` is not told yet.
        let before = match (created, slot.header()) {
            (false, Some(header)) => header.expiry,
            _ => 0,
        };
        if let Some(ttl) = meta.ttl {
            slot.set_expiry(self.expiry(ttl));
        }
        let recache = meta.recache.map(|seconds| {
            let first = words(meta.flags).find(|flag| matches!(flag[0], b'R' | b'T'));
            let now_set = slot.header().map_or(0, |header| header.expiry);
            let expiry = if first.is_some_and(|flag| flag[0] == b'T') { now_set } else { before };
            expiry != 0 && expiry < self.expiry(seconds)
        });
        let won = wins(&mut slot, created, recache == Some(true));
        let large = match slot.value() {
            Some((header, value)) => {
                let wants_value = meta.wants_value && meta.compare != Some(header.cas);
                let out = &mut self.out;
                if wants_value {
                    let mut digits = itoa::Buffer::new();
                    out.reserve(value.bytes().len() + 128);
                    out.extend_from_slice(b"VA ");
                    out.extend_from_slice(digits.format(header.length).as_bytes());
                } else {
                    out.extend_from_slice(b"HD");
                }
                put_item(meta, &header, before, now, out);
                out.extend_from_slice(won.flags());
                out.extend_from_slice(b"\r\n");
                if wants_value { Self::send_value(out, value, b"\r\n") } else { None }
            }
            None => None,
        };
        if !meta.no_update {
            slot.touch();
        }
        drop(slot);
        self.send_large(large);
        match meta.ttl {
            Some(_) => self.stats.count_touch(true),
            None => self.stats.count_get(true),
        }
    }

    pub(super) fn meta_set(&mut self, meta: &Meta<'_>, after: &[u8]) -> usize {
        let vivify = meta.vivify.is_some();
        let condition = match meta.mode {
            0 | b'S' | b'R' if meta.compare.is_some() => Condition::Unchanged,
            0 | b'S' => Condition::Always,
            b'E' => Condition::Absent,
            b'A' => Condition::Append { vivify },
            b'P' => Condition::Prepend { vivify },
            b'R' => Condition::Present,
            _ => {
                self.out.extend_from_slice(b"CLIENT_ERROR invalid mode for ms M token\r\n");
                self.swallow(meta.length + 2);
                return 0;
            }
        };
        let expiry = match condition {
            Condition::Append { vivify: true } | Condition::Prepend { vivify: true } => meta.vivify,
            _ => meta.ttl,
        };
        let item = Incoming {
            condition,
            key: meta.key(),
            flags: meta.client_flags,
            expiry: expiry.map_or(0, |given| self.expiry(given)),
            compare: meta.compare.unwrap_or(0),
            number: meta.number,
            accepts_stale: meta.stale,
            bits: Bits::default().with_if(Bits::KEY_BINARY, meta.key_is_binary()),
            length: meta.length,
        };
        self.begin_store(&item, Reply::Meta { flags: meta.flags, quiet: meta.quiet }, after)
    }

    pub(super) fn meta_delete(&mut self, meta: &Meta<'_>) {
        let (store, stats) = (self.store(), self.stats);
        let mut slot = store.lock(meta.key(), self.now);
        let code: &[u8] = match slot.header() {
            None => {
                stats.count_delete(false);
                b"NF"
            }
            Some(header) if meta.compare.is_some_and(|cas| cas != header.cas) => {
                stats.count_delete(false);
                b"EX"
            }
            Some(header) => match self.meta_delete_found(meta, &mut slot, header) {
                Ok(()) => b"HD",
                Err(OutOfMemory) => {
                    drop(slot);
                    self.out.extend_from_slice(OUT_OF_MEMORY);
                    return;
                }
            },
        };
        drop(slot);
        if meta.quiet && code == b"HD" {
            return;
        }
        self.out.extend_from_slice(code);
        put_reflected(meta, &mut self.out);
        self.out.extend_from_slice(b"\r\n");
    }

    fn meta_delete_found(
        &self,
        meta: &Meta<'_>,
        slot: &mut Slot<'_>,
        header: Header,
    ) -> Result<(), OutOfMemory> {
        let store = self.store();
        if meta.remove_value {
            // The item stays, without its value.
            slot.put(New {
                flags: meta.client_flags,
                expiry: meta.ttl.map_or(0, |ttl| self.expiry(ttl)),
                cas: meta.number.unwrap_or(header.cas),
                bits: Bits::default(),
                value: Data::from(&[][..]),
            })?;
        }
        if meta.stale {
            if let Some(ttl) = meta.ttl {
                slot.set_expiry(self.expiry(ttl));
            }
            let bits = slot.header().map_or(header.bits, |header| header.bits);
            // The next client may win the right to renew it.
            slot.set_bits(bits.with(Bits::STALE).without(Bits::TOKEN_SENT));
            slot.set_cas(meta.number.unwrap_or_else(|| store.next_cas()));
            return Ok(());
        }
        self.stats.count_delete(true);
        if !meta.remove_value {
            slot.remove();
        }
        Ok(())
    }

    pub(super) fn meta_arithmetic(&mut self, meta: &Meta<'_>) {
        let up = match meta.mode {
            0 | b'I' | b'+' => true,
            b'D' | b'-' => false,
            _ => {
                self.out.extend_from_slice(b"CLIENT_ERROR invalid mode for ma M token\r\n");
                return;
            }
        };
        let (store, stats) = (self.store(), self.stats);
        let compare = meta.compare.unwrap_or(0);
        let delta = Delta { amount: meta.delta, up, compare, number: meta.number };
        let mut slot = store.lock(meta.key(), self.now);
        let before = slot.header().map_or(0, |header| header.expiry);
        let counted = storing::count(store, &mut slot, delta);
        let mut digits = itoa::Buffer::new();
        let value = match (counted, meta.vivify) {
            (Counted::Value(value, _), _) => {
                stats.count_delta(counted, up);
                if let Some(ttl) = meta.ttl {
                    slot.set_expiry(self.expiry(ttl));
                }
                slot.warm();
                digits.format(value)
            }
            (Counted::NotFound, Some(expiry)) => {
                let text = digits.format(meta.initial);
                let new = New {
                    flags: 0,
                    expiry: self.expiry(meta.ttl.unwrap_or(expiry)),
                    cas: meta.number.unwrap_or_else(|| store.next_cas()),
                    bits: Bits::default().with_if(Bits::KEY_BINARY, meta.key_is_binary()),
                    value: Data::from(text.as_bytes()),
                };
                if slot.put(new).is_err() {
                    drop(slot);
                    self.out.extend_from_slice(b"SERVER_ERROR Out of memory allocating new item\r\n");
                    return;
                }
                text
            }
            (Counted::NotFound | Counted::Exists, _) => {
                drop(slot);
                stats.count_delta(counted, up);
                let code = if counted == Counted::Exists { b"EX" } else { b"NF" };
                self.out.extend_from_slice(code);
                put_reflected(meta, &mut self.out);
                self.out.extend_from_slice(b"\r\n");
                return;
            }
            (Counted::NotANumber, _) => {
                let answer = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
                self.out.extend_from_slice(answer);
                return;
            }
            (Counted::OutOfMemory, _) => {
                self.out.extend_from_slice(OUT_OF_MEMORY);
                return;
            }
        };
        let header = slot.header();
        drop(slot);
        if meta.quiet {
            return;
        }
        let out = &mut self.out;
        if meta.wants_value {
            let mut digits = itoa::Buffer::new();
            out.extend_from_slice(b"VA ");
            out.extend_from_slice(digits.format(value.len()).as_bytes());
        } else {
            out.extend_from_slice(b"HD");
        }
        let mut expiry = before;
        for flag in words(meta.flags) {
            match (flag[0], &header) {
                (b'T' | b'N', Some(header)) => expiry = header.expiry,
                (b'c', Some(header)) => put(b'c', header.cas, out),
                (b't', _) => put_ttl(expiry, self.now, out),
                (b'O', _) => {
                    out.push(b' ');
                    out.extend_from_slice(flag);
                }
                (b'k', _) => meta::write_key(meta.key(), meta.key_is_binary(), out),
                _ => {}
            }
        }
        out.extend_from_slice(b"\r\n");
        if meta.wants_value {
            out.extend_from_slice(value.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }

    pub(super) fn meta_debug(&mut self, meta: &Meta<'_>) {
        self.stats.cmd_meta.add(1);
        let header = self.store().lock(meta.key(), self.now).header();
        let Some(header) = header else {
            self.out.extend_from_slice(b"EN\r\n");
            return;
        };
        self.out.extend_from_slice(b"ME ");
        if header.bits.has(Bits::KEY_BINARY) {
            meta::write_base64(meta.key(), &mut self.out);
        } else {
            self.out.extend_from_slice(meta.key());
        }
        let expiry = match header.expiry {
            0 => -1,
            expiry => i64::from(expiry) - i64::from(self.now),
        };
        let fetched = if header.bits.has(Bits::FETCHED) { "yes" } else { "no" };
        let idle = self.now.saturating_sub(header.accessed);
        let rest = format!(
            " exp={expiry} la={idle} cas={} fetch={fetched} cls=1 size={}\r\n",
            header.cas,
            header.size()
        );
        self.out.extend_from_slice(rest.as_bytes());
    }
}

/// Which client renews an item.
enum Won {
    /// This one.
    Now {
        stale: bool,
    },
    Before {
        stale: bool,
    },
    Nobody,
}

impl Won {
    fn flags(&self) -> &'static [u8] {
        match self {
            Won::Now { stale: true } => b" X W",
            Won::Now { stale: false } => b" W",
            Won::Before { stale: true } => b" Z X",
            Won::Before { stale: false } => b" Z",
            Won::Nobody => b"",
        }
    }
}

/// Whether this client is told to renew the item; the next ones are not, then.
fn wins(slot: &mut Slot<'_>, created: bool, ends_soon: bool) -> Won {
    let Some(header) = slot.header() else { return Won::Nobody };
    let stale = header.bits.has(Bits::STALE);
    if header.bits.has(Bits::TOKEN_SENT) {
        return Won::Before { stale };
    }
    if created || ends_soon || stale {
        slot.set_bits(header.bits.with(Bits::TOKEN_SENT));
        return Won::Now { stale };
    }
    Won::Nobody
}

/// Appends what the flags ask of an item.
fn put_item(meta: &Meta<'_>, header: &Header, before: u32, now: u32, out: &mut Vec<u8>) {
    let mut expiry = before;
    for flag in words(meta.flags) {
        match flag[0] {
            b's' => put(b's', header.length, out),
            b'T' | b'N' => expiry = header.expiry,
            b't' => put_ttl(expiry, now, out),
            b'c' => put(b'c', header.cas, out),
            b'f' => put(b'f', header.flags, out),
            b'l' => put(b'l', now.saturating_sub(header.accessed), out),
            b'h' => put(b'h', u8::from(header.bits.has(Bits::FETCHED)), out),
            b'O' => {
                out.push(b' ');
                out.extend_from_slice(flag);
            }
            b'k' => meta::write_key(meta.key(), header.bits.has(Bits::KEY_BINARY), out),
            _ => {}
        }
    }
}
