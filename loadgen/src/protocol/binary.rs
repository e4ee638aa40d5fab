//! The binary protocol, according to memcached's `protocol_binary.h` and the page
//! "BinaryProtocolRevamped" of its wiki.

use crate::error::Error;
use crate::protocol::message::{RequestFields, Response, ResponseSink};
use crate::workload::mix::Operation;

const HEADER: usize = 24;
const REQUEST_MAGIC: u8 = 0x80;
const RESPONSE_MAGIC: u8 = 0x81;

const GET: u8 = 0x00;
const SET: u8 = 0x01;
const ADD: u8 = 0x02;
const REPLACE: u8 = 0x03;
const DELETE: u8 = 0x04;
const INCREMENT: u8 = 0x05;
const DECREMENT: u8 = 0x06;
const NOOP: u8 = 0x0a;
const GETK: u8 = 0x0c;
const GETKQ: u8 = 0x0d;
const APPEND: u8 = 0x0e;
const PREPEND: u8 = 0x0f;
const TOUCH: u8 = 0x1c;
const SASL_AUTH: u8 = 0x21;

/// Appends a request header. `key`, `extras` and `value` are lengths in bytes.
fn write_header(opcode: u8, key: usize, extras: usize, value: usize, cas: u64, out: &mut Vec<u8>) {
    // Keys have at most 250 bytes, extras at most 20, and values at most a gigabyte.
    let (key, extras, body) = (key as u16, extras as u8, (key + extras + value) as u32);
    out.extend_from_slice(&[REQUEST_MAGIC, opcode]);
    out.extend_from_slice(&key.to_be_bytes());
    out.extend_from_slice(&[extras, 0, 0, 0]);
    out.extend_from_slice(&body.to_be_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&cas.to_be_bytes());
}

/// The expiration of `incr` and `decr` that keeps them from creating a missing counter.
const DO_NOT_CREATE: [u8; 4] = [0xff; 4];

/// Writes a request for one key. If the operation stores, the caller appends the value.
pub(crate) fn write(operation: Operation, fields: RequestFields<'_>, out: &mut Vec<u8>) {
    let RequestFields { key, size, ttl, cas } = fields;
    let ttl = u32::try_from(ttl).unwrap_or(u32::MAX).to_be_bytes();
    let mut extras = [0; 20];
    let (opcode, extras): (u8, &[u8]) = match operation {
        Operation::Get | Operation::Cas | Operation::MetaGet => (GETK, &[]),
        Operation::Set | Operation::Add | Operation::Replace | Operation::MetaSet => {
            extras[4..8].copy_from_slice(&ttl);
            let opcode = match operation {
                Operation::Add => ADD,
                Operation::Replace => REPLACE,
                _ => SET,
            };
            (opcode, &extras[..8])
        }
        Operation::Append => (APPEND, &[]),
        Operation::Prepend => (PREPEND, &[]),
        Operation::Delete => (DELETE, &[]),
        Operation::Touch => {
            extras[..4].copy_from_slice(&ttl);
            (TOUCH, &extras[..4])
        }
        Operation::Incr | Operation::Decr => {
            extras[..8].copy_from_slice(&1_u64.to_be_bytes());
            extras[16..].copy_from_slice(&DO_NOT_CREATE);
            (if operation == Operation::Incr { INCREMENT } else { DECREMENT }, &extras[..])
        }
    };
    let size = if operation.stores() { size } else { 0 };
    write_header(opcode, key.len(), extras.len(), size, cas, out);
    out.extend_from_slice(extras);
    out.extend_from_slice(key);
}

/// Writes one key of a multiget, as a quiet get. [`end_multiget`] ends the multiget.
pub(crate) fn multiget_key(key: &[u8], out: &mut Vec<u8>) {
    write_header(GETKQ, key.len(), 0, 0, 0, out);
    out.extend_from_slice(key);
}

/// Ends a multiget with a no-op. Quiet gets have no response for a miss, so the response to the
/// no-op is the end of theirs.
pub(crate) fn end_multiget(out: &mut Vec<u8>) {
    write_header(NOOP, 0, 0, 0, 0, out);
}

/// Writes a SASL PLAIN authentication request (RFC 4616).
pub(crate) fn authenticate(user: &str, password: &str, out: &mut Vec<u8>) {
    const MECHANISM: &[u8] = b"PLAIN";
    let message = [b"\0", user.as_bytes(), b"\0", password.as_bytes()].concat();
    write_header(SASL_AUTH, MECHANISM.len(), 0, message.len(), 0, out);
    out.extend_from_slice(MECHANISM);
    out.extend_from_slice(&message);
}

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
    use crate::protocol::binary::{APPEND, INCREMENT, SET, write_header};
    use crate::protocol::message::tests::ResponseLog;

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
