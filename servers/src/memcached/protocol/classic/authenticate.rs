//! Authentication on the text protocol, as memcached's `-Y` defines it.

use crate::memcached::protocol::numbers;
use crate::memcached::protocol::tokens::tokens;
use crate::memcached::session::{RequestOutcome, Session};

/// The largest data block with credentials, in bytes.
const MAX_BLOCK: usize = 16 << 10;
/// The longest line before a client has authenticated, in bytes.
const MAX_LINE: usize = 2048;
/// The shortest valid line, in bytes.
const MIN_LINE: usize = 6;

impl Session<'_> {
    /// Executes `set <any key> <flags> <expiry> <length>` with a data block of user and password, separated by
    /// a space. Refuses any other command.
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
}
