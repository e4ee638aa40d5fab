//! Executes the classic text commands: storage, administration, authentication and statistics.

use super::parse::{self, BAD_EXPIRY, Command, StoreLine};
use super::tuning;
use crate::memcached::VERSION;
use crate::memcached::config::MIN_MEMORY_LIMIT;
use crate::memcached::mutation::{self, Delta, DeltaOutcome, StoreRequest};
use crate::memcached::protocol::numbers;
use crate::memcached::protocol::store_reply::StoreReply;
use crate::memcached::protocol::tokens::{
    BAD_FORMAT, ERROR, KEY_MAX, Tokens, has_noreply, next_token, tokens,
};
use crate::memcached::session::{RequestOutcome, Session};
use crate::memcached::stats::stats_reply;
use crate::memcached::store::ItemBits;

/// So many keys of a get count as another request of the client's turn: a turn is a quarter of a
/// millisecond at most.
const KEYS_OF_A_REQUEST: usize = 50;
const OK: &[u8] = b"OK\r\n";
const MAX_VERBOSITY: u32 = 3;
/// The largest data block with credentials, in bytes.
const MAX_BLOCK: usize = 16 << 10;
/// The longest line before a client has authenticated, in bytes.
const MAX_LINE: usize = 2048;
/// The shortest valid line, in bytes.
const MIN_LINE: usize = 6;

impl Session<'_> {
    /// Executes a line, whose terminator had `terminator` bytes. Returns how many bytes of `after`,
    /// the input behind the line, were used.
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
        for number in 1usize.. {
            let Some((key, end)) = next_token(keys, self.keys_done) else { break };
            if self.is_buffer_full() {
                return RequestOutcome::BufferFull;
            }
            if number.is_multiple_of(KEYS_OF_A_REQUEST) && self.spend_turn() {
                return RequestOutcome::TurnOver;
            }
            self.keys_done = end;
            let mut entry = store.lock(key, self.now);
            if let Some(expiry) = touch {
                entry.set_expiry(expiry);
            }
            entry.record_fetch();
            let Some((header, value)) = entry.value() else {
                match touch {
                    Some(_) => self.counters.count_touch(false),
                    None => self.counters.count_get(false),
                }
                continue;
            };
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

    pub fn execute_admin(&mut self, line: &[u8]) -> RequestOutcome {
        let tokens = Tokens::of(line);
        let tokens = tokens.as_slice();
        let Some((&name, arguments)) = tokens.split_first() else {
            self.replies.extend_from_slice(ERROR);
            return RequestOutcome::Done(0);
        };
        let noreply = has_noreply(tokens);
        let reply: &[u8] = match name {
            b"flush_all" => self.flush_all(arguments, noreply),
            b"verbosity" => match arguments.first().and_then(|level| numbers::digits_u32(level)) {
                Some(level) => {
                    self.context.set_verbosity(level.min(MAX_VERBOSITY));
                    OK
                }
                None => BAD_FORMAT,
            },
            b"cache_memlimit" => self.set_memory_limit(arguments),
            b"shutdown" => return self.request_shutdown(arguments),
            b"watch" => b"CLIENT_ERROR watch commands not allowed\r\n",
            b"refresh_certs" if self.context.config.tls.is_none() => b"Error TLS not enabled\r\n",
            b"refresh_certs" => match self.context.reload() {
                Ok(()) => OK,
                Err(error) => {
                    self.replies.extend_from_slice(format!("SERVER_ERROR {error}\r\n").as_bytes());
                    return RequestOutcome::Done(0);
                }
            },
            b"slabs" => tuning::slabs(arguments),
            b"lru" => tuning::lru(arguments),
            b"lru_crawler" => match arguments {
                [command @ (b"metadump" | b"mgdump"), classes] if self.context.lru_crawler.is_enabled() => {
                    return self.dump_classes(*command == b"metadump", classes);
                }
                _ => self.context.lru_crawler.execute(arguments),
            },
            _ if tokens.len() > 1 && tokens[tokens.len() - 1].starts_with(b"HTTP/") => {
                return RequestOutcome::Close(0);
            }
            _ => ERROR,
        };
        self.reply(noreply, reply);
        RequestOutcome::Done(0)
    }

    fn flush_all(&mut self, arguments: &[&[u8]], noreply: bool) -> &'static [u8] {
        if !self.context.config.flush_allowed {
            self.counters.cmd_flush.add(1);
            return b"CLIENT_ERROR flush_all not allowed\r\n";
        }
        let delay = match arguments {
            [] => 0,
            [_] if noreply => 0,
            [delay, ..] => match numbers::digits_i32(delay) {
                Some(delay) => delay,
                None => {
                    self.counters.cmd_flush.add(1);
                    return BAD_EXPIRY;
                }
            },
        };
        self.flush(delay.into());
        OK
    }

    fn set_memory_limit(&mut self, arguments: &[&[u8]]) -> &'static [u8] {
        match arguments.first().and_then(|mebibytes| numbers::digits_u32(mebibytes)) {
            None => ERROR,
            Some(mebibytes) if u64::from(mebibytes) << 20 < MIN_MEMORY_LIMIT => {
                b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n"
            }
            Some(1_000_000_001..) => b"MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\n",
            Some(mebibytes) if self.store().set_limit(u64::from(mebibytes) << 20) => OK,
            Some(_) => b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n",
        }
    }

    fn request_shutdown(&mut self, arguments: &[&[u8]]) -> RequestOutcome {
        let reply: &[u8] = match arguments {
            _ if !self.context.config.shutdown_allowed => b"SERVER_ERROR: shutdown not enabled\r\n",
            [] | [b"graceful"] => {
                self.context.request_shutdown();
                return RequestOutcome::Close(0);
            }
            _ => b"CLIENT_ERROR invalid shutdown mode\r\n",
        };
        self.replies.extend_from_slice(reply);
        RequestOutcome::Done(0)
    }

    /// Executes `set <any key> <flags> <expiry> <length>` with a data block of user and password,
    /// separated by a space. Refuses any other command.
    pub fn execute_text_authentication(&mut self, rest: &[u8]) -> RequestOutcome {
        let Some(end) = memchr::memchr(b'\n', rest) else {
            return match rest.len() > MAX_LINE {
                true => RequestOutcome::Close(0),
                false => RequestOutcome::Incomplete,
            };
        };
        if end < MIN_LINE {
            return RequestOutcome::Close(end + 1);
        }
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        let used = end + 1;
        let mut arguments = tokens(line);
        let is_set = arguments.next() == Some(b"set");
        let length = arguments.nth(3).and_then(numbers::digits_u32).filter(|_| is_set);
        let Some(length) = length else {
            self.replies.extend_from_slice(b"CLIENT_ERROR unauthenticated\r\n");
            return RequestOutcome::Done(used);
        };
        let length = length as usize;
        if length > MAX_BLOCK {
            self.replies.extend_from_slice(b"CLIENT_ERROR auth token too long\r\n");
            return RequestOutcome::Done(used);
        }
        let Some(block) = rest[used..].get(..length + 2) else { return RequestOutcome::Incomplete };
        let reply: &[u8] = match block.strip_suffix(b"\r\n") {
            None => b"CLIENT_ERROR bad command line termination\r\n",
            Some(token) => match memchr::memchr(b' ', token) {
                None => b"CLIENT_ERROR bad authentication token format\r\n",
                Some(space) => {
                    self.counters.auth_cmds.add(1);
                    self.authenticated = self.context.authenticate(&token[..space], &token[space + 1..]);
                    if self.authenticated {
                        b"STORED\r\n"
                    } else {
                        self.counters.auth_errors.add(1);
                        b"CLIENT_ERROR authentication failure\r\n"
                    }
                }
            },
        };
        self.replies.extend_from_slice(reply);
        RequestOutcome::Done(used + length + 2)
    }

    pub fn execute_stats(&mut self, line: &[u8]) -> RequestOutcome {
        let tokens = Tokens::of(line);
        let arguments = &tokens.as_slice()[1..];
        let section = arguments.first().copied().unwrap_or_default();
        match section {
            // As a memcached that is not to list keys (`-X`).
            b"detail" => self.replies.extend_from_slice(b"CLIENT_ERROR stats detail not allowed\r\n"),
            b"cachedump" => return self.cachedump(&arguments[1..]),
            stats_reply::POLICY if !self.context.policy_section.is_fresh() => {
                return RequestOutcome::NeedsPolicy;
            }
            _ => {
                let replies = &mut self.replies;
                let mut write = |name: &str, value: &str| {
                    for part in ["STAT ", name, " ", value, "\r\n"] {
                        replies.extend_from_slice(part.as_bytes());
                    }
                };
                let known = stats_reply::write_section(self.context, section, &mut write);
                let end: &[u8] = match (known, section) {
                    (false, _) => ERROR,
                    (true, b"reset") => b"RESET\r\n",
                    (true, _) => b"END\r\n",
                };
                self.replies.extend_from_slice(end);
            }
        }
        RequestOutcome::Done(0)
    }
}
