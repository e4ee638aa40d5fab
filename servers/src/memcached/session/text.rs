//! Executes the classic text commands: storage, administration, authentication.

use super::stats::{self, Written};
use super::{Outcome, Session, SessionStep};
use crate::memcached::config::VERSION;
use crate::memcached::logging;
use crate::memcached::mutation::{self, Delta, DeltaOutcome, StoreRequest};
use crate::memcached::numbers;
use crate::memcached::protocol::classic::{self, BAD_EXPIRY, Command, DumpFormat, StoreLine};
use crate::memcached::protocol::store_reply::{StoreCommand, StoreReply};
use crate::memcached::protocol::{
    BAD_FORMAT, ERROR, KEY_MAX, NOT_A_NUMBER, OK, OUT_OF_MEMORY, has_noreply, next_token, split, tokens,
    tuning,
};

/// An incomplete line that is longer than this, in bytes, closes the connection, unless it is a
/// get. memcached executes a line of up to its read buffer, if it comes in one read, and closes
/// above 2048 bytes if not. How many reads a line takes is the kernel's choice, so it must not
/// decide here.
const MAX_LINE: usize = 16 << 10;
/// The same for a client that has not authenticated.
const MAX_UNAUTHENTICATED_LINE: usize = 2048;
/// An incomplete get that is longer than this, in bytes, closes the connection.
const MAX_GET_LINE: usize = 1 << 20;
/// A long line may begin with at most this many spaces.
const MAX_LEADING_SPACES: usize = 100;
/// So many keys of a get count as another request of the client's turn: a turn is a quarter of a
/// millisecond at most.
const KEYS_OF_A_REQUEST: usize = 50;
const MAX_VERBOSITY: u32 = 3;
/// The largest data block with credentials, in bytes.
const MAX_CREDENTIALS: usize = 16 << 10;
/// The shortest valid line of a client that has not authenticated, in bytes.
const MIN_LINE: usize = 6;

/// Limits the length of a line whose end was not received.
fn check_incomplete(line: &[u8]) -> SessionStep {
    if line.len() <= MAX_LINE {
        return SessionStep::NeedInput;
    }
    let spaces = line.iter().position(|&byte| byte != b' ').unwrap_or(line.len());
    let command = &line[spaces..];
    let is_get = [&b"get "[..], b"gets ", b"gat ", b"gats "].iter().any(|get| command.starts_with(get));
    match spaces <= MAX_LEADING_SPACES && is_get && line.len() <= MAX_GET_LINE {
        true => SessionStep::NeedInput,
        false => SessionStep::Close,
    }
}

impl Session<'_> {
    /// Executes the line at the start of `rest`, and receives as much of its data block as is
    /// there.
    pub(super) fn execute_text(&mut self, rest: &[u8]) -> Outcome {
        let Some(end) = memchr::memchr(b'\n', &rest[self.scanned..]) else {
            self.scanned = rest.len();
            return Err(check_incomplete(rest));
        };
        let end = self.scanned + end;
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        let used = end + 1;
        // A line that stops before its end is passed again, and continues there.
        self.scanned = end;
        let more = self.execute_line(line, used - line.len(), &rest[used..])?;
        self.scanned = 0;
        Ok(used + more)
    }

    /// Executes a line, whose terminator had `terminator` bytes. Returns how many bytes of `after`,
    /// the input behind the line, were used.
    fn execute_line(&mut self, line: &[u8], terminator: usize, after: &[u8]) -> Outcome {
        let (store, now) = (self.store(), self.now);
        let command = classic::parse(line, terminator, self.keys_done > 0);
        if self.gets_only && !command.is_get() {
            self.reply(ERROR);
            return Err(SessionStep::Close);
        }
        match command {
            Command::Get { with_cas, touch, keys } => return self.classic_get(with_cas, touch, keys),
            Command::Store(command) => return Ok(self.classic_store(&command, after)),
            Command::Meta(verb) => return self.execute_meta(verb, line, after),
            Command::MetaNoop => self.reply(b"MN\r\n"),
            Command::Delete { key, noreply } => {
                let found = store.lock(key, now).remove();
                self.counters.count_delete(found);
                self.reply_unless(noreply, if found { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" });
            }
            Command::Delta { key, amount, increments, noreply } => {
                self.classic_delta(key, amount, increments, noreply);
            }
            Command::Touch { key, expiry, noreply } => {
                let mut entry = store.lock(key, now);
                let found = entry.header().is_some();
                entry.set_expiry(self.expiry(expiry));
                entry.record_fetch();
                drop(entry);
                self.counters.count_touch(found);
                self.reply_unless(noreply, if found { b"TOUCHED\r\n" } else { b"NOT_FOUND\r\n" });
            }
            Command::Stats => return self.classic_stats(line),
            Command::Version => self.reply(format!("VERSION {VERSION}\r\n").as_bytes()),
            Command::Quit => return Err(SessionStep::Close),
            Command::Admin => return self.execute_admin(line),
            Command::Invalid { reply, noreply } => self.reply_unless(noreply, reply),
        }
        Ok(0)
    }

    fn reply_unless(&mut self, noreply: bool, reply: &[u8]) {
        if !noreply {
            self.reply(reply);
        }
    }

    fn classic_get(&mut self, with_cas: bool, touch: Option<i32>, keys: &[u8]) -> Outcome {
        let store = self.store();
        let touch = touch.map(|expiry| self.expiry(expiry));
        for number in 1usize.. {
            let Some((key, end)) = next_token(keys, self.keys_done) else { break };
            if self.is_buffer_full() {
                return Err(SessionStep::Send);
            }
            if number.is_multiple_of(KEYS_OF_A_REQUEST) && self.spend_turn() {
                return Err(SessionStep::Yield);
            }
            self.keys_done = end;
            let mut entry = store.lock(key, self.now);
            if let Some(expiry) = touch {
                entry.set_expiry(expiry);
            }
            entry.record_fetch();
            let found = entry.value();
            self.counters.count_get_or_touch(touch.is_some(), found.is_some());
            if let Some((header, value)) = found {
                self.reserve_for(&value, key.len() + 64);
                classic::write_value_line(key, &header, with_cas, &mut self.replies);
                self.write_value(value, b"\r\n");
            }
        }
        if self.is_buffer_full() {
            return Err(SessionStep::Send);
        }
        self.keys_done = 0;
        self.reply(b"END\r\n");
        Ok(0)
    }

    fn classic_store(&mut self, line: &StoreLine<'_>, after: &[u8]) -> usize {
        let StoreLine { condition, key, length, noreply, .. } = *line;
        let Some((flags, expiry, expected_cas)) = line.numbers.filter(|_| key.len() <= KEY_MAX) else {
            self.reply_unless(noreply, BAD_FORMAT);
            self.discard_input(length + 2);
            return 0;
        };
        let expiry = self.expiry(expiry);
        let request = StoreRequest { condition, flags, expiry, expected_cas, length, ..Default::default() };
        let reply = StoreReply::Classic { noreply };
        self.begin_store(StoreCommand { key, meta_flags: &[], request, reply }, after)
    }

    fn classic_delta(&mut self, key: &[u8], amount: u64, increments: bool, noreply: bool) {
        let delta = Delta { amount, increments, ..Delta::default() };
        let mut entry = self.store().lock(key, self.now);
        let outcome = mutation::apply_delta(self.store(), &mut entry, delta);
        drop(entry);
        self.counters.count_delta(outcome, increments);
        match outcome {
            DeltaOutcome::Changed { value, .. } => {
                self.reply_unless(noreply, itoa::Buffer::new().format(value).as_bytes());
                self.reply_unless(noreply, b"\r\n");
            }
            DeltaOutcome::NotANumber => self.reply_unless(noreply, NOT_A_NUMBER),
            DeltaOutcome::OutOfMemory => self.reply_unless(noreply, OUT_OF_MEMORY),
            // The others need a CAS unique, or an initial value.
            _ => self.reply_unless(noreply, b"NOT_FOUND\r\n"),
        }
    }

    fn execute_admin(&mut self, line: &[u8]) -> Outcome {
        let (tokens, context) = (split(line), self.context);
        let (name, arguments) = tokens.split_first().map_or((&[][..], &[][..]), |(name, rest)| (*name, rest));
        let noreply = has_noreply(&tokens);
        let crawler_disabled = context.crawler_disabled.load();
        let message;
        let reply: &[u8] = match (name, arguments) {
            (b"flush_all", _) => self.flush_all(arguments, noreply),
            (b"verbosity", _) => match arguments.first().and_then(|level| numbers::digits_u32(level)) {
                Some(level) => {
                    logging::set_verbosity(level.min(MAX_VERBOSITY));
                    OK
                }
                None => BAD_FORMAT,
            },
            (b"cache_memlimit", _) => self.set_memory_limit(arguments),
            (b"shutdown", _) if !context.config.shutdown_allowed => b"SERVER_ERROR: shutdown not enabled\r\n",
            (b"shutdown", [] | [b"graceful"]) => {
                context.shutdown.add_permits(1);
                return Err(SessionStep::Close);
            }
            (b"shutdown", _) => b"CLIENT_ERROR invalid shutdown mode\r\n",
            (b"watch", _) => b"CLIENT_ERROR watch commands not allowed\r\n",
            (b"refresh_certs", _) if context.config.tls.is_none() => b"Error TLS not enabled\r\n",
            (b"refresh_certs", _) => match context.reload() {
                Ok(()) => OK,
                Err(error) => {
                    message = format!("SERVER_ERROR {error}\r\n");
                    message.as_bytes()
                }
            },
            (b"slabs", _) => tuning::slabs(arguments),
            (b"lru", _) => tuning::lru(arguments),
            (b"lru_crawler", [name @ (b"metadump" | b"mgdump"), classes]) if !crawler_disabled => {
                let format = if *name == b"mgdump" { DumpFormat::Mgdump } else { DumpFormat::Metadump };
                return self.dump_classes(format, classes);
            }
            (b"lru_crawler", _) => tuning::lru_crawler(&context.crawler_disabled, arguments),
            _ if tokens.len() > 1 && tokens[tokens.len() - 1].starts_with(b"HTTP/") => {
                return Err(SessionStep::Close);
            }
            _ => ERROR,
        };
        self.reply_unless(noreply, reply);
        Ok(0)
    }

    fn flush_all(&mut self, arguments: &[&[u8]], noreply: bool) -> &'static [u8] {
        let delay = match arguments {
            [_] if noreply => Some(0),
            [delay, ..] if self.context.config.flush_allowed => numbers::digits_i32(delay),
            _ => Some(0),
        };
        match delay.map(|delay| self.flush(delay.into())) {
            Some(true) => OK,
            Some(false) => b"CLIENT_ERROR flush_all not allowed\r\n",
            None => {
                self.counters.cmd_flush.add(1);
                BAD_EXPIRY
            }
        }
    }

    fn set_memory_limit(&mut self, arguments: &[&[u8]]) -> &'static [u8] {
        match arguments.first().and_then(|mebibytes| numbers::digits_u32(mebibytes)) {
            None => ERROR,
            Some(..8) => b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n",
            Some(1_000_000_001..) => b"MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\n",
            Some(mebibytes) if self.store().set_limit(u64::from(mebibytes) << 20) => OK,
            Some(_) => b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n",
        }
    }

    /// Executes `set <any key> <flags> <expiry> <length>` with a data block of user and password,
    /// separated by a space. Refuses any other command.
    pub(super) fn execute_text_authentication(&mut self, rest: &[u8]) -> Outcome {
        let Some(end) = memchr::memchr(b'\n', rest) else {
            return Err(if rest.len() > MAX_UNAUTHENTICATED_LINE {
                SessionStep::Close
            } else {
                SessionStep::NeedInput
            });
        };
        if end < MIN_LINE {
            return Err(SessionStep::Close);
        }
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        let used = end + 1;
        let mut arguments = tokens(line);
        let is_set = arguments.next() == Some(b"set");
        let length = arguments.nth(3).and_then(numbers::digits_u32).filter(|_| is_set);
        let Some(length) = length.map(|length| length as usize) else {
            self.reply(b"CLIENT_ERROR unauthenticated\r\n");
            return Ok(used);
        };
        if length > MAX_CREDENTIALS {
            self.reply(b"CLIENT_ERROR auth token too long\r\n");
            return Ok(used);
        }
        let block = rest[used..].get(..length + 2).ok_or(SessionStep::NeedInput)?;
        let reply: &[u8] = match block.strip_suffix(b"\r\n") {
            None => b"CLIENT_ERROR bad command line termination\r\n",
            Some(token) => match memchr::memchr(b' ', token) {
                None => b"CLIENT_ERROR bad authentication token format\r\n",
                Some(space) if self.authenticate(Some((&token[..space], &token[space + 1..]))) => {
                    b"STORED\r\n"
                }
                Some(_) => b"CLIENT_ERROR authentication failure\r\n",
            },
        };
        self.reply(reply);
        Ok(used + length + 2)
    }

    fn classic_stats(&mut self, line: &[u8]) -> Outcome {
        let tokens = split(line);
        let section = *tokens.get(1).unwrap_or(&&[][..]);
        let replies = &mut self.replies;
        let reply: &[u8] = match section {
            // As a memcached that is not to list keys (`-X`).
            b"detail" => b"CLIENT_ERROR stats detail not allowed\r\n",
            b"cachedump" => return self.cachedump(&tokens[2..]),
            _ => {
                let done = &mut self.conns_done;
                let written = stats::write_section(self.context, section, done, &mut |name, value| {
                    for part in ["STAT ", name, " ", value, "\r\n"] {
                        replies.extend_from_slice(part.as_bytes());
                    }
                });
                match (written, section) {
                    (Written::Nothing, _) => ERROR,
                    (Written::Part, _) => return Err(SessionStep::Send),
                    (Written::All, b"reset") => b"RESET\r\n",
                    (Written::All, _) => b"END\r\n",
                }
            }
        };
        self.reply(reply);
        Ok(0)
    }
}
