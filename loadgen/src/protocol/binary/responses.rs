//! Responses in the binary protocol.

use crate::error::Error;
use crate::protocol::binary::header::{GET, GETK, GETKQ, HEADER, NOOP, RESPONSE_MAGIC};
use crate::protocol::response::{Response, ResponseSink};

/// Splits received bytes into responses.
#[derive(Debug, Default)]
pub(crate) struct BinaryParser {
    /// An incomplete header with extras and key.
    head: Vec<u8>,
    /// Remaining bytes of a value or of an error text.
    remaining: usize,
    /// Whether the remaining bytes belong to a value.
    in_value: bool,
    /// The response to report after the remaining bytes.
    pending: Option<Response>,
    /// Values of the current multiget so far.
    values: u32,
    /// Whether a key of the current multiget was answered with an error.
    failed: bool,
}

impl BinaryParser {
    pub(crate) fn feed(&mut self, mut input: &[u8], sink: &mut impl ResponseSink) -> Result<(), Error> {
        while !input.is_empty() {
            if self.remaining > 0 {
                let (now, later) = input.split_at(self.remaining.min(input.len()));
                if self.in_value {
                    sink.bytes(now);
                }
                (self.remaining, input) = (self.remaining - now.len(), later);
                self.end(sink)?;
                continue;
            }
            // The header contains the lengths of extras and key.
            let complete = self.head_length();
            let (now, later) = input.split_at((complete - self.head.len()).min(input.len()));
            self.head.extend_from_slice(now);
            input = later;
            if self.head[0] != RESPONSE_MAGIC {
                return Err(Error::Protocol(format!(
                    "a response begins with {:#04x} instead of the binary protocol's {RESPONSE_MAGIC:#04x}",
                    self.head[0]
                )));
            }
            if self.head.len() >= HEADER && self.head.len() == self.head_length() {
                self.begin(sink)?;
                self.head.clear();
                self.end(sink)?;
            }
        }
        Ok(())
    }

    /// Length of header, extras and key.
    fn head_length(&self) -> usize {
        let Some(head) = self.head.get(..HEADER) else { return HEADER };
        HEADER + usize::from(head[4]) + usize::from(u16::from_be_bytes([head[2], head[3]]))
    }

    fn end(&mut self, sink: &mut impl ResponseSink) -> Result<(), Error> {
        match self.pending.take_if(|_| self.remaining == 0) {
            Some(response) => sink.response(response),
            None => Ok(()),
        }
    }

    fn begin(&mut self, sink: &mut impl ResponseSink) -> Result<(), Error> {
        let (head, after) = self.head.split_at(HEADER);
        let number = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (opcode, status) = (head[1], u16::from_be_bytes([head[6], head[7]]));
        let body = number(8) as usize;
        let remaining = body.checked_sub(after.len()).ok_or_else(|| {
            Error::Protocol(format!(
                "a response body of {body} bytes has {} bytes of extras and key",
                after.len()
            ))
        })?;
        let key = &after[usize::from(head[4])..];
        let cas = u64::from(number(16)) << 32 | u64::from(number(20));
        (self.remaining, self.in_value) = (remaining, false);
        let is_get = matches!(opcode, GET | GETK | GETKQ);
        self.pending = Some(match status {
            0 if is_get => {
                self.in_value = true;
                sink.value(key, remaining, cas);
                if opcode == GETKQ {
                    self.values += 1;
                    self.pending = None;
                    return Ok(());
                }
                Response::Values(1)
            }
            0 if opcode == NOOP => {
                let values = std::mem::take(&mut self.values);
                if std::mem::take(&mut self.failed) { Response::Error } else { Response::Values(values) }
            }
            0 => Response::Done,
            1 if is_get => Response::Values(0),
            1 => Response::NotFound,
            2 => Response::Exists,
            5 => Response::NotStored,
            _ if opcode == GETKQ => {
                // The multiget has one response, which the no-op's ends.
                self.failed = true;
                self.pending = None;
                return Ok(());
            }
            _ => Response::Error,
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::binary::header::{APPEND, INCREMENT, SET, write_header};
    use crate::protocol::response::tests::ResponseLog;

    fn response(opcode: u8, status: u16, cas: u64, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_header(opcode, key.len(), extras.len(), value.len(), cas, &mut out);
        out[0] = RESPONSE_MAGIC;
        out[6..8].copy_from_slice(&status.to_be_bytes());
        [&out[..], extras, key, value].concat()
    }

    #[test]
    fn responses_and_values_are_parsed_from_chunks_of_any_size() {
        let input = [
            response(GETK, 0, 9, &[0; 4], b"key", b"value"),
            response(GETK, 1, 0, b"", b"", b"Not found"),
            response(SET, 0, 10, b"", b"", b""),
            response(GETKQ, 0, 3, &[0; 4], b"a", b""),
            response(GETKQ, 0, 4, &[0; 4], b"b", b"x"),
            response(NOOP, 0, 0, b"", b"", b""),
            response(NOOP, 0, 0, b"", b"", b""),
            response(SET, 2, 0, b"", b"", b"Data exists"),
            response(GETKQ, 0x82, 0, b"", b"", b"Out of memory"),
            response(NOOP, 0, 0, b"", b"", b""),
            response(INCREMENT, 0, 0, b"", b"", &7_u64.to_be_bytes()),
            response(INCREMENT, 1, 0, b"", b"", b"Not found"),
            response(SET, 0x82, 0, b"", b"", b"Out of memory"),
            response(APPEND, 5, 0, b"", b"", b"Not stored"),
        ]
        .concat();
        for chunk in 1..=input.len() {
            let (mut parser, mut log) = (BinaryParser::default(), ResponseLog::default());
            input.chunks(chunk).for_each(|part| parser.feed(part, &mut log).unwrap());
            use Response::{Done, Error, Exists, NotFound, NotStored, Values};
            assert_eq!(
                log.responses,
                [
                    Values(1),
                    Values(0),
                    Done,
                    Values(2),
                    Values(0),
                    Exists,
                    Error,
                    Done,
                    NotFound,
                    Error,
                    NotStored
                ],
                "chunks of {chunk}"
            );
            let value = |key: &[u8], cas, bytes: &[u8]| (key.to_vec(), bytes.len(), cas, bytes.to_vec());
            let expected = [value(b"key", 9, b"value"), value(b"a", 3, b""), value(b"b", 4, b"x")];
            assert_eq!(log.values, expected, "chunks of {chunk}");
        }
    }

    #[test]
    fn an_invalid_response_is_an_error() {
        let mut short = response(GETK, 0, 0, &[0; 4], b"key", b"");
        short[11] = 2;
        for input in [&b"ERROR\r\nERROR\r\nERROR\r\nERROR\r\n"[..], &short] {
            assert!(BinaryParser::default().feed(input, &mut ResponseLog::default()).is_err());
        }
    }
}
