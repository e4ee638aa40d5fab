//! The classic text commands, and what is told apart by the first word of a line.

use super::VERSION;
use super::command::{self, Command, StoreLine};
use super::meta::Meta;
use super::reply::Reply;
use super::session::{Flow, Session};
use super::storing::{self, Counted, Delta, Incoming};

/// A line of another command than a get that is longer and has no end closes the connection.
const LONGEST_LINE: usize = 2048;
/// Nor may a line of keys be longer.
const LONGEST_GET: usize = 1 << 20;
/// So many spaces may be before a long line's first word.
const MOST_SPACES: usize = 100;

impl Session<'_> {
    /// Answers the line that `rest` begins with, and takes what follows of its data block.
    pub(super) fn text(&mut self, rest: &[u8]) -> Flow {
        let Some(end) = memchr::memchr(b'\n', &rest[self.searched..]) else {
            self.searched = rest.len();
            return judge_unfinished(rest);
        };
        let end = self.searched + end;
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        let used = end + 1;
        match self.line(line, used - line.len(), &rest[used..]) {
            Flow::Done(more) => {
                self.searched = 0;
                Flow::Done(used + more)
            }
            Flow::Close(_) => Flow::Close(used),
            // The line is not done: it is found again, and goes on where it was.
            flow => flow,
        }
    }

    /// Answers a line; returns how much of what is `after` it was used as well.
    fn line(&mut self, line: &[u8], ending: usize, after: &[u8]) -> Flow {
        let (stats, now) = (self.stats, self.now);
        let store = self.store();
        match command::parse(line, ending, self.answered > 0) {
            Command::Get { with_cas, touch, keys } => return self.get(with_cas, touch, keys),
            Command::Store(command) => return Flow::Done(self.classic_store(&command, after)),
            Command::Meta(verb) => return self.meta(verb, line, after),
            Command::MetaNoop => self.out.extend_from_slice(b"MN\r\n"),
            Command::Delete { key, noreply } => {
                let mut slot = store.lock(key, now);
                let found = slot.header().is_some();
                slot.remove();
                drop(slot);
                stats.count_delete(found);
                self.reply(noreply, if found { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" });
            }
            Command::Count { key, delta, up, noreply } => self.classic_count(key, delta, up, noreply),
            Command::Touch { key, expiry, noreply } => {
                let mut slot = store.lock(key, now);
                let found = slot.header().is_some();
                slot.set_expiry(store.clock().expiry(expiry.into()));
                slot.touch();
                drop(slot);
                stats.count_touch(found);
                self.reply(noreply, if found { b"TOUCHED\r\n" } else { b"NOT_FOUND\r\n" });
            }
            Command::Stats => return self.stats_command(line),
            Command::Version => {
                self.out.extend_from_slice(b"VERSION ");
                self.out.extend_from_slice(VERSION.as_bytes());
                self.out.extend_from_slice(b"\r\n");
            }
            Command::Quit => return Flow::Close(0),
            Command::Admin => return self.admin(line),
            Command::Refuse { answer, noreply } => self.reply(noreply, answer),
        }
        Flow::Done(0)
    }

    fn get(&mut self, with_cas: bool, touch: Option<i32>, keys: &[u8]) -> Flow {
        let store = self.store();
        let touch = touch.map(|expiry| store.clock().expiry(expiry.into()));
        while let Some((key, end)) = command::word_from(keys, self.answered) {
            if self.is_full() {
                return Flow::Pause;
            }
            self.answered = end;
            let mut slot = store.lock(key, self.now);
            if let Some(expiry) = touch {
                slot.set_expiry(expiry);
            }
            slot.touch();
            let Some((header, value)) = slot.value() else {
                match touch {
                    Some(_) => self.stats.count_touch(false),
                    None => self.stats.count_get(false),
                }
                continue;
            };
            match touch {
                Some(_) => self.stats.count_touch(true),
                None => self.stats.count_get(true),
            }
            let mut digits = itoa::Buffer::new();
            let out = &mut self.out;
            out.reserve(key.len() + value.bytes().len() + 64);
            out.extend_from_slice(b"VALUE ");
            out.extend_from_slice(key);
            out.push(b' ');
            out.extend_from_slice(digits.format(header.flags).as_bytes());
            out.push(b' ');
            out.extend_from_slice(digits.format(header.length).as_bytes());
            if with_cas {
                out.push(b' ');
                out.extend_from_slice(digits.format(header.cas).as_bytes());
            }
            out.extend_from_slice(b"\r\n");
            let large = Self::send_value(out, value, b"\r\n");
            drop(slot);
            self.send_large(large);
        }
        if self.is_full() {
            return Flow::Pause;
        }
        self.answered = 0;
        self.out.extend_from_slice(b"END\r\n");
        Flow::Done(0)
    }

    fn classic_store(&mut self, line: &StoreLine<'_>, after: &[u8]) -> usize {
        let StoreLine { condition, key, length, noreply, .. } = *line;
        let Some((flags, expiry, compare)) = line.numbers.filter(|_| key.len() <= command::KEY_MAX) else {
            self.reply(noreply, command::BAD_FORMAT);
            self.swallow(length + 2);
            return 0;
        };
        let item = Incoming {
            condition,
            key,
            flags,
            expiry: self.store().clock().expiry(expiry.into()),
            compare,
            number: None,
            accepts_stale: false,
            bits: super::store::Bits::default(),
            length,
        };
        self.begin_store(&item, Reply::Text { noreply }, after)
    }

    fn classic_count(&mut self, key: &[u8], amount: u64, up: bool, noreply: bool) {
        let delta = Delta { amount, up, compare: 0, number: None };
        let counted = storing::count(self.store(), &mut self.store().lock(key, self.now), delta);
        self.stats.count_delta(counted, up);
        match counted {
            Counted::Value(value, _) => {
                let mut digits = itoa::Buffer::new();
                self.reply(noreply, digits.format(value).as_bytes());
                self.reply(noreply, b"\r\n");
            }
            // Nothing is compared with.
            Counted::NotFound | Counted::Exists => self.reply(noreply, b"NOT_FOUND\r\n"),
            Counted::NotANumber => {
                self.reply(noreply, b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n")
            }
            Counted::OutOfMemory => self.reply(noreply, b"SERVER_ERROR out of memory\r\n"),
        }
    }

    fn meta(&mut self, verb: u8, line: &[u8], after: &[u8]) -> Flow {
        match Meta::parse(verb, line) {
            Ok(meta) => Flow::Done(match verb {
                b's' => self.meta_set(&meta, after),
                _ => {
                    match verb {
                        b'g' => self.meta_get(&meta),
                        b'd' => self.meta_delete(&meta),
                        b'a' => self.meta_arithmetic(&meta),
                        _ => self.meta_debug(&meta),
                    }
                    0
                }
            }),
            Err(refusal) => {
                let answer = match verb {
                    b'a' if refusal.answer != command::BAD_FORMAT => {
                        b"CLIENT_ERROR invalid or duplicate flag\r\n"
                    }
                    _ => refusal.answer,
                };
                self.out.extend_from_slice(answer);
                self.swallow(refusal.swallow);
                Flow::Done(0)
            }
        }
    }
}

/// A line without an end so far may only be so long.
fn judge_unfinished(line: &[u8]) -> Flow {
    if line.len() <= LONGEST_LINE {
        return Flow::Wait;
    }
    let spaces = line.iter().position(|&byte| byte != b' ').unwrap_or(line.len());
    let command = &line[spaces..];
    let is_get = [&b"get "[..], b"gets "].iter().any(|get| command.starts_with(get));
    if spaces <= MOST_SPACES && is_get && line.len() <= LONGEST_GET {
        return Flow::Wait;
    }
    Flow::Close(0)
}
