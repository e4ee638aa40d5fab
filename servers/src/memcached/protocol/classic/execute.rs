//! Executes the classic text commands.

use super::parse::{self, Command, StoreLine};
use crate::memcached::mutation::{self, Delta, DeltaOutcome, StoreRequest};
use crate::memcached::protocol::store_reply::StoreReply;
use crate::memcached::protocol::tokens::{BAD_FORMAT, ERROR, KEY_MAX, next_token};
use crate::memcached::session::{RequestOutcome, Session};
use crate::memcached::stats::prefixes::KeyEvent;
use crate::memcached::store::ItemBits;
use crate::memcached::version::VERSION;

impl Session<'_> {
    /// Executes a line, whose terminator had `terminator` bytes. Returns how many bytes of `after`, the input
    /// behind the line, were used.
    pub fn execute_line(&mut self, line: &[u8], terminator: usize, after: &[u8]) -> RequestOutcome {
        let (counters, now) = (self.counters, self.now);
        let store = self.store();
        let command = parse::parse(line, terminator, self.keys_done > 0);
        if self.gets_only && !command.is_get() {
            self.replies.extend_from_slice(ERROR);
            return RequestOutcome::Close(0);
        }
        match command {
            Command::Get { with_cas, touch, keys } => return self.classic_get(with_cas, touch, keys),
            Command::Store(command) => return RequestOutcome::Done(self.classic_store(&command, after)),
            Command::Meta(verb) => return self.execute_meta(verb, line, after),
            Command::MetaNoop => self.replies.extend_from_slice(b"MN\r\n"),
            Command::Delete { key, noreply } => {
                let mut entry = store.lock(key, now);
                let found = entry.header().is_some();
                entry.remove();
                drop(entry);
                counters.count_delete(found);
                self.count_key(key, KeyEvent::Delete);
                self.reply(noreply, if found { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" });
            }
            Command::Delta { key, amount, increments, noreply } => {
                self.classic_delta(key, amount, increments, noreply);
            }
            Command::Touch { key, expiry, noreply } => {
                let mut entry = store.lock(key, now);
                let found = entry.header().is_some();
                entry.set_expiry(store.clock().expiry(expiry.into()));
                entry.record_fetch();
                drop(entry);
                counters.count_touch(found);
                self.reply(noreply, if found { b"TOUCHED\r\n" } else { b"NOT_FOUND\r\n" });
            }
            Command::Stats => return self.execute_stats(line),
            Command::Version => {
                self.replies.extend_from_slice(b"VERSION ");
                self.replies.extend_from_slice(VERSION.as_bytes());
                self.replies.extend_from_slice(b"\r\n");
            }
            Command::Quit => return RequestOutcome::Close(0),
            Command::Admin => return self.execute_admin(line),
            Command::Invalid { reply, noreply } => self.reply(noreply, reply),
        }
        RequestOutcome::Done(0)
    }

    fn classic_get(&mut self, with_cas: bool, touch: Option<i32>, keys: &[u8]) -> RequestOutcome {
        let store = self.store();
        let touch = touch.map(|expiry| store.clock().expiry(expiry.into()));
        while let Some((key, end)) = next_token(keys, self.keys_done) {
            if self.is_buffer_full() {
                return RequestOutcome::BufferFull;
            }
            self.keys_done = end;
            let mut entry = store.lock(key, self.now);
            if let Some(expiry) = touch {
                entry.set_expiry(expiry);
            }
            entry.record_fetch();
            let Some((header, value)) = entry.value() else {
                self.count_key(key, KeyEvent::Get { hit: false });
                match touch {
                    Some(_) => self.counters.count_touch(false),
                    None => self.counters.count_get(false),
                }
                continue;
            };
            self.context.prefix_counts.count(key, KeyEvent::Get { hit: true });
            match touch {
                Some(_) => self.counters.count_touch(true),
                None => self.counters.count_get(true),
            }
            let mut digits = itoa::Buffer::new();
            let replies = &mut self.replies;
            Self::reserve_for(replies, &value, key.len() + 64);
            replies.extend_from_slice(b"VALUE ");
            replies.extend_from_slice(key);
            replies.push(b' ');
            replies.extend_from_slice(digits.format(header.flags).as_bytes());
            replies.push(b' ');
            replies.extend_from_slice(digits.format(header.length).as_bytes());
            if with_cas {
                replies.push(b' ');
                replies.extend_from_slice(digits.format(header.cas).as_bytes());
            }
            replies.extend_from_slice(b"\r\n");
            let large = Self::write_value(replies, value, b"\r\n");
            drop(entry);
            self.queue_large_value(large);
        }
        if self.is_buffer_full() {
            return RequestOutcome::BufferFull;
        }
        self.keys_done = 0;
        self.replies.extend_from_slice(b"END\r\n");
        RequestOutcome::Done(0)
    }

    fn classic_store(&mut self, line: &StoreLine<'_>, after: &[u8]) -> usize {
        let StoreLine { condition, key, length, noreply, .. } = *line;
        let Some((flags, expiry, expected_cas)) = line.numbers.filter(|_| key.len() <= KEY_MAX) else {
            self.reply(noreply, BAD_FORMAT);
            self.discard_input(length + 2);
            return 0;
        };
        let request = StoreRequest {
            condition,
            key,
            flags,
            expiry: self.store().clock().expiry(expiry.into()),
            expected_cas,
            new_cas: None,
            accepts_stale: false,
            bits: ItemBits::default(),
            length,
        };
        self.begin_store(&request, StoreReply::Classic { noreply }, after)
    }

    fn classic_delta(&mut self, key: &[u8], amount: u64, increments: bool, noreply: bool) {
        let delta = Delta { amount, increments, expected_cas: 0, new_cas: None };
        let mut entry = self.store().lock(key, self.now);
        let outcome = mutation::apply_delta(self.store(), &mut entry, delta);
        drop(entry);
        self.counters.count_delta(outcome, increments);
        match outcome {
            DeltaOutcome::Changed { value, .. } => {
                let mut digits = itoa::Buffer::new();
                self.reply(noreply, digits.format(value).as_bytes());
                self.reply(noreply, b"\r\n");
            }
            // `Exists` cannot occur: the classic command has no CAS unique.
            DeltaOutcome::NotFound | DeltaOutcome::Exists => self.reply(noreply, b"NOT_FOUND\r\n"),
            DeltaOutcome::NotANumber => {
                self.reply(noreply, b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n");
            }
            DeltaOutcome::OutOfMemory => self.reply(noreply, b"SERVER_ERROR out of memory\r\n"),
        }
    }
}
