//! The `stats` command.

use crate::memcached::protocol::tokens::{ERROR, Tokens};
use crate::memcached::session::{RequestOutcome, Session};
use crate::memcached::stats::stats_reply;

impl Session<'_> {
    pub fn execute_stats(&mut self, line: &[u8]) -> RequestOutcome {
        let tokens = Tokens::of(line);
        let arguments = &tokens.as_slice()[1..];
        let section = arguments.first().copied().unwrap_or_default();
        match section {
            b"detail" => {
                let counts = &self.context.prefix_counts;
                let reply: &[u8] = match arguments.get(1) {
                    _ if !self.context.config.dump_allowed => b"CLIENT_ERROR stats detail not allowed\r\n",
                    Some(&switch @ (b"on" | b"off")) => {
                        counts.enable(switch == b"on");
                        b"OK\r\n"
                    }
                    Some(&b"dump") => {
                        let mut replies = std::mem::take(&mut self.replies);
                        let (_, is_last) = self.write_prefix_part(&mut replies);
                        self.replies = replies;
                        if !is_last {
                            return RequestOutcome::BufferFull;
                        }
                        b"END\r\n"
                    }
                    _ => b"CLIENT_ERROR usage: stats detail on|off|dump\r\n",
                };
                self.replies.extend_from_slice(reply);
            }
            b"cachedump" => return self.cachedump(&arguments[1..]),
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
