//! Recognizes a server that expects TLS from a client that does not speak it.

use std::io;

use crate::hyper::inspected_stream::Inspect;

/// How a TLS alert begins: its type, and the first part of its version (RFC 8446, section 5.1). HTTP/1 begins with
/// letters, HTTP/2 with the length of its first frame, whose first byte is 0.
const ALERT: [u8; 2] = [21, 3];

/// Compares the first bytes of a connection without TLS with an alert, which HTTP could make nothing of.
#[derive(Debug)]
pub(super) struct AlertCheck;

impl Inspect for AlertCheck {
    fn inspect(&mut self, position: usize, bytes: &[u8]) -> io::Result<()> {
        if position == 0 && bytes.starts_with(&ALERT) {
            let problem =
                "the server expects TLS, which a URI of https uses: it has answered with a TLS alert";
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        Ok(())
    }
}
