//! Administrative commands, and the replies of a server without slabs to commands about slabs.

use super::parse::BAD_EXPIRY;
use crate::memcached::config::MIN_MEMORY_LIMIT;
use crate::memcached::protocol::numbers;
use crate::memcached::protocol::tokens::{BAD_FORMAT, ERROR, Tokens, has_noreply};
use crate::memcached::session::{RequestOutcome, Session};

const OK: &[u8] = b"OK\r\n";
/// The highest level of `verbosity`.
const MAX_VERBOSITY: u32 = 3;

impl Session<'_> {
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
            b"refresh_certs" if self.context.config.tls.is_some() => match self.context.reload() {
                Ok(()) => OK,
                Err(error) => {
                    self.replies.extend_from_slice(format!("SERVER_ERROR {error}\r\n").as_bytes());
                    return RequestOutcome::Done(0);
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
}

/// There are no slab classes to move pages between.
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

/// The eviction policy is fixed; valid settings are accepted without effect.
fn lru(arguments: &[&[u8]]) -> &'static [u8] {
    match arguments {
        [b"mode", b"flat" | b"segmented"] => OK,
        [b"temp_ttl", ttl] if numbers::digits_i32(ttl).is_some() => OK,
        [b"tune", _, _, _, _] => OK,
        _ => ERROR,
    }
}

/// Expired items are always removed in the background; valid settings are accepted without effect.
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
