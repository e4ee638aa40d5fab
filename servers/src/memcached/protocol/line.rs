//! Finds the text line at the start of a session's input.

use crate::memcached::session::{RequestOutcome, Session};

/// An incomplete line that is longer than this, in bytes, closes the connection, unless it is a get.
const MAX_LINE: usize = 2048;
/// An incomplete get that is longer than this, in bytes, closes the connection.
const MAX_GET_LINE: usize = 1 << 20;
/// A long line may begin with at most this many spaces.
const MAX_LEADING_SPACES: usize = 100;

impl Session<'_> {
    /// Executes the line at the start of `rest`, and receives as much of its data block as is there.
    pub fn execute_text(&mut self, rest: &[u8]) -> RequestOutcome {
        let Some(end) = memchr::memchr(b'\n', &rest[self.scanned..]) else {
            self.scanned = rest.len();
            return check_incomplete(rest);
        };
        let end = self.scanned + end;
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        let used = end + 1;
        match self.execute_line(line, used - line.len(), &rest[used..]) {
            RequestOutcome::Done(more) => {
                self.scanned = 0;
                RequestOutcome::Done(used + more)
            }
            RequestOutcome::Close(_) => RequestOutcome::Close(used),
            // The line is passed again, and continues where it stopped.
            outcome => outcome,
        }
    }
}

/// Limits the length of a line whose end was not received.
fn check_incomplete(line: &[u8]) -> RequestOutcome {
    if line.len() <= MAX_LINE {
        return RequestOutcome::Incomplete;
    }
    let spaces = line.iter().position(|&byte| byte != b' ').unwrap_or(line.len());
    let command = &line[spaces..];
    let is_get = [&b"get "[..], b"gets "].iter().any(|get| command.starts_with(get));
    if spaces <= MAX_LEADING_SPACES && is_get && line.len() <= MAX_GET_LINE {
        return RequestOutcome::Incomplete;
    }
    RequestOutcome::Close(0)
}
