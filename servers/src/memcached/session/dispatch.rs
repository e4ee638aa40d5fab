//! Passes input to the protocol that it belongs to.

use super::pending_input::PendingInput;
use super::state::{RequestOutcome, Session, SessionStep};
use crate::memcached::config::Protocol;
use crate::memcached::protocol::binary;

impl Session<'_> {
    /// Executes all complete requests in `input`. Returns how many bytes they took; the rest must be passed
    /// again, with more input after it.
    pub fn feed(&mut self, input: &[u8]) -> (usize, SessionStep) {
        let mut used = 0;
        loop {
            if self.is_buffer_full() {
                return (used, SessionStep::Send);
            }
            let rest = &input[used..];
            if rest.is_empty() {
                return (used, SessionStep::NeedInput);
            }
            match std::mem::replace(&mut self.pending, PendingInput::Request) {
                PendingInput::Discard(left) => {
                    let now = left.min(rest.len());
                    used += now;
                    if now < left {
                        self.pending = PendingInput::Discard(left - now);
                    }
                }
                PendingInput::DataBlock(block) => used += self.receive_data_block(block, rest),
                PendingInput::Request => {
                    if self.turn_requests_left == 0 {
                        self.renew_turn();
                        return (used, SessionStep::Yield);
                    }
                    match self.execute_request(rest) {
                        RequestOutcome::Done(more) => {
                            self.turn_requests_left -= 1;
                            used += more;
                        }
                        RequestOutcome::Incomplete => return (used, SessionStep::NeedInput),
                        RequestOutcome::BufferFull => return (used, SessionStep::Send),
                        RequestOutcome::Close(more) => return (used + more, SessionStep::Close),
                    }
                }
            }
        }
    }

    /// Executes the request at the start of `rest`, which is not empty.
    fn execute_request(&mut self, rest: &[u8]) -> RequestOutcome {
        let protocol = *self.protocol.get_or_insert(match rest[0] {
            binary::REQUEST_MAGIC => Protocol::Binary,
            _ => Protocol::Ascii,
        });
        match protocol {
            Protocol::Ascii if self.authenticated => self.execute_text(rest),
            Protocol::Ascii => self.execute_text_authentication(rest),
            Protocol::Binary => self.execute_binary(rest),
        }
    }
}
