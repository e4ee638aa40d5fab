//! Commands for operators, and what a server without slabs answers to those that are about slabs.

use super::command::{BAD_EXPIRY, BAD_FORMAT, ERROR, Words, is_quiet};
use super::numbers;
use super::report;
use super::session::{Flow, Session};
use super::settings::LEAST_MEMORY;

const OK: &[u8] = b"OK\r\n";
/// The highest level of `verbosity`.
const MOST_VERBOSE: u32 = 3;

impl Session<'_> {
    pub(super) fn admin(&mut self, line: &[u8]) -> Flow {
        let words = Words::of(line);
        let words = words.get();
        let Some((&name, arguments)) = words.split_first() else {
            self.out.extend_from_slice(ERROR);
            return Flow::Done(0);
        };
        let noreply = is_quiet(words);
        let answer: &[u8] = match name {
            b"flush_all" => self.flush_command(arguments, noreply),
            b"verbosity" => match arguments.first().and_then(|level| numbers::digits_u32(level)) {
                Some(level) => {
                    self.shared.set_verbosity(level.min(MOST_VERBOSE));
                    OK
                }
                None => BAD_FORMAT,
            },
            b"cache_memlimit" => self.change_limit(arguments),
            b"shutdown" => return self.shut_down(arguments),
            b"watch" => b"CLIENT_ERROR watch commands not allowed\r\n",
            b"refresh_certs" if self.shared.settings.tls.is_some() => match self.shared.reload() {
                Ok(()) => OK,
                Err(error) => {
                    self.out.extend_from_slice(format!("SERVER_ERROR {error}\r\n").as_bytes());
                    return Flow::Done(0);
                }
            },
            b"slabs" => slabs(arguments),
            b"lru" => lru(arguments),
            b"lru_crawler" => match arguments {
                [b"metadump" | b"mgdump", b"all" | b"hash" | b"1"] => {
                    return self.dump_keys(arguments[0] == b"metadump");
                }
                _ => lru_crawler(arguments),
            },
            _ if words.len() > 1 && words[words.len() - 1].starts_with(b"HTTP/") => return Flow::Close(0),
            _ => ERROR,
        };
        self.reply(noreply, answer);
        Flow::Done(0)
    }

    fn flush_command(&mut self, arguments: &[&[u8]], noreply: bool) -> &'static [u8] {
        if !self.shared.settings.flush_allowed {
            self.stats.cmd_flush.add(1);
            return b"CLIENT_ERROR flush_all not allowed\r\n";
        }
        let delay = match arguments {
            [] => 0,
            [_] if noreply => 0,
            [delay, ..] => match numbers::digits_i32(delay) {
                Some(delay) => delay,
                None => {
                    self.stats.cmd_flush.add(1);
                    return BAD_EXPIRY;
                }
            },
        };
        self.flush(delay.into());
        OK
    }

    /// Has all items gone now, or after a delay. False where that is not allowed.
    pub(super) fn flush(&mut self, delay: i64) -> bool {
        self.stats.cmd_flush.add(1);
        if !self.shared.settings.flush_allowed {
            return false;
        }
        // As in memcached: a delay of 0 or one that is past means now.
        let at = self.store().clock().expiry(delay);
        self.store().flush((delay > 0 && at > self.now).then_some(at));
        true
    }

    fn change_limit(&mut self, arguments: &[&[u8]]) -> &'static [u8] {
        match arguments.first().and_then(|mebibytes| numbers::digits_u32(mebibytes)) {
            None => ERROR,
            Some(mebibytes) if u64::from(mebibytes) << 20 < LEAST_MEMORY => {
                b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n"
            }
            Some(1_000_000_001..) => b"MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\n",
            Some(mebibytes) if self.store().set_limit(u64::from(mebibytes) << 20) => OK,
            Some(_) => b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n",
        }
    }

    fn shut_down(&mut self, arguments: &[&[u8]]) -> Flow {
        let answer: &[u8] = match arguments {
            _ if !self.shared.settings.shutdown_allowed => b"SERVER_ERROR: shutdown not enabled\r\n",
            [] | [b"graceful"] => {
                self.shared.ask_to_stop();
                return Flow::Close(0);
            }
            _ => b"CLIENT_ERROR invalid shutdown mode\r\n",
        };
        self.out.extend_from_slice(answer);
        Flow::Done(0)
    }

    /// Answers with all keys, a part of the store at a time.
    fn dump_keys(&mut self, with_details: bool) -> Flow {
        if !self.shared.settings.dump_allowed {
            let answer: &[u8] = match with_details {
                true => b"ERROR metadump not allowed\r\n",
                false => b"ERROR key dump not allowed\r\n",
            };
            self.out.extend_from_slice(answer);
            return Flow::Done(0);
        }
        let (store, now) = (self.store(), self.now);
        let mut from = self.dump.take().unwrap_or((0, 0));
        loop {
            let out = &mut self.out;
            let next = store.walk(from, now, |key, header| {
                if with_details {
                    report::metadump_line(store.clock(), key, header, out);
                } else {
                    report::mgdump_line(key, out);
                }
            });
            match next {
                None => break,
                Some(next) => from = next,
            }
            if self.is_full() {
                self.dump = Some(from);
                return Flow::Pause;
            }
        }
        self.out.extend_from_slice(if with_details { b"END\r\n" } else { b"EN\r\n" });
        Flow::Done(0)
    }

    pub(super) fn stats_command(&mut self, line: &[u8]) -> Flow {
        let words = Words::of(line);
        let arguments = &words.get()[1..];
        let section = arguments.first().copied().unwrap_or_default();
        let settings = &self.shared.settings;
        match section {
            b"detail" => {
                // Nothing is counted by prefix, so there is nothing to switch on.
                let answer: &[u8] = match arguments.get(1) {
                    _ if !settings.dump_allowed => b"CLIENT_ERROR stats detail not allowed\r\n",
                    Some(&b"on" | &b"off") => OK,
                    Some(&b"dump") => b"END\r\n",
                    _ => b"CLIENT_ERROR usage: stats detail on|off|dump\r\n",
                };
                self.out.extend_from_slice(answer);
            }
            b"cachedump" => self.cachedump(&arguments[1..]),
            _ => {
                let out = &mut self.out;
                let mut put = |name: &str, value: &str| {
                    for piece in ["STAT ", name, " ", value, "\r\n"] {
                        out.extend_from_slice(piece.as_bytes());
                    }
                };
                let known = report::stats(self.shared, section, &mut put);
                let end: &[u8] = match (known, section) {
                    (false, _) => ERROR,
                    (true, b"reset") => b"RESET\r\n",
                    (true, _) => b"END\r\n",
                };
                self.out.extend_from_slice(end);
            }
        }
        Flow::Done(0)
    }

    /// The keys of a class, of which there is one; at most as many as memcached's 2 MiB of them.
    fn cachedump(&mut self, arguments: &[&[u8]]) {
        const MOST: usize = 2 << 20;
        if !self.shared.settings.dump_allowed {
            self.out.extend_from_slice(b"CLIENT_ERROR stats cachedump not allowed\r\n");
            return;
        }
        let [class, limit, ..] = arguments else {
            self.out.extend_from_slice(b"CLIENT_ERROR bad command line\r\n");
            return;
        };
        let (Some(class), Some(limit)) = (numbers::digits_u32(class), numbers::digits_u32(limit)) else {
            self.out.extend_from_slice(BAD_FORMAT);
            return;
        };
        if class > 63 {
            self.out.extend_from_slice(b"CLIENT_ERROR Illegal slab id\r\n");
            return;
        }
        let mut from = (class == 1).then_some((0, 0));
        let (mut count, start) = (0, self.out.len());
        while let Some(here) = from {
            let out = &mut self.out;
            let clock = self.shared.store.clock();
            from = self.shared.store.walk(here, self.now, |key, header| {
                if (limit == 0 || count < limit) && out.len() - start < MOST {
                    count += 1;
                    report::cachedump_line(clock, key, header, out);
                }
            });
            if self.out.len() - start >= MOST || (limit > 0 && count >= limit) {
                break;
            }
        }
        self.out.extend_from_slice(b"END\r\n");
    }
}

/// There are no classes to move pages between.
fn slabs(arguments: &[&[u8]]) -> &'static [u8] {
    match arguments {
        [b"reassign", _, _] => b"CLIENT_ERROR slab reassignment disabled\r\n",
        [b"automove", level, ..] => match *level {
            b"0" | b"1" | b"2" | b"ratio" | b"freeratio" | b"window" => OK,
            level if numbers::digits_u32(level).is_some() => ERROR,
            _ => BAD_FORMAT,
        },
        _ => ERROR,
    }
}

/// There is one order of items, which can't be tuned.
fn lru(arguments: &[&[u8]]) -> &'static [u8] {
    match arguments {
        [b"mode", b"flat" | b"segmented"] => OK,
        [b"temp_ttl", ttl] if numbers::digits_i32(ttl).is_some() => OK,
        [b"tune", _, _, _, _] => OK,
        _ => ERROR,
    }
}

/// Expired items are found without being told to, always.
fn lru_crawler(arguments: &[&[u8]]) -> &'static [u8] {
    match arguments {
        [b"enable"] | [b"crawl", _] => OK,
        [b"disable"] => b"ERROR failed to stop lru crawler thread\r\n",
        [b"metadump" | b"mgdump", _] => b"BADCLASS invalid class id\r\n",
        [b"tocrawl", number] => match numbers::digits_u32(number) {
            Some(_) => OK,
            None => BAD_FORMAT,
        },
        [b"sleep", micros] => match numbers::digits_u32(micros) {
            Some(0..=1_000_000) => OK,
            Some(_) => b"CLIENT_ERROR sleep must be one second or less\r\n",
            None => BAD_FORMAT,
        },
        _ => ERROR,
    }
}
