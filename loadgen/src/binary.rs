//! The binary protocol: requests up to the value, and what servers answer.
//!
//! As memcached's `protocol_binary.h` and its wiki's page "BinaryProtocolRevamped" have it.

use crate::answers::{Answer, Sink};
use crate::error::Error;
use crate::text::Details;
use crate::workload::Operation;

const HEADER: usize = 24;
const REQUEST: u8 = 0x80;
const ANSWER: u8 = 0x81;

const GET: u8 = 0x00;
const SET: u8 = 0x01;
const NOOP: u8 = 0x0a;
const GET_KEY: u8 = 0x0c;
const GET_KEY_QUIETLY: u8 = 0x0d;
const INCR: u8 = 0x05;
const DECR: u8 = 0x06;
const AUTHENTICATE: u8 = 0x21;

/// A counter that is not there is not made (the expiration of `incr`).
const DO_NOT_CREATE: [u8; 4] = [0xff; 4];

fn header(opcode: u8, key: usize, extras: usize, value: usize, unique: u64, out: &mut Vec<u8>) {
    // Keys and extras are short, and values are at most a gigabyte.
    let (key, extras, body) = (key as u16, extras as u8, (key + extras + value) as u32);
    out.extend_from_slice(&[REQUEST, opcode]);
    out.extend_from_slice(&key.to_be_bytes());
    out.extend_from_slice(&[extras, 0, 0, 0]);
    out.extend_from_slice(&body.to_be_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&unique.to_be_bytes());
}

/// Writes a request for one key. A value follows where the operation stores.
pub(crate) fn write(operation: Operation, details: Details<'_>, out: &mut Vec<u8>) {
    let Details { key, size, ttl, unique } = details;
    let ttl = u32::try_from(ttl).unwrap_or(u32::MAX).to_be_bytes();
    let mut extras = [0; 20];
    let (opcode, extras): (u8, &[u8]) = match operation {
        Operation::Get | Operation::Cas | Operation::MetaGet => (GET_KEY, &[]),
        Operation::Set | Operation::Add | Operation::Replace | Operation::MetaSet => {
            extras[4..8].copy_from_slice(&ttl);
            let opcode = match operation {
                Operation::Add => 0x02,
                Operation::Replace => 0x03,
                _ => SET,
            };
            (opcode, &extras[..8])
        }
        Operation::Append => (0x0e, &[]),
        Operation::Prepend => (0x0f, &[]),
        Operation::Delete => (0x04, &[]),
        Operation::Touch => {
            extras[..4].copy_from_slice(&ttl);
            (0x1c, &extras[..4])
        }
        Operation::Incr | Operation::Decr => {
            extras[..8].copy_from_slice(&1_u64.to_be_bytes());
            extras[16..].copy_from_slice(&DO_NOT_CREATE);
            (if operation == Operation::Incr { INCR } else { DECR }, &extras[..])
        }
    };
    let size = if operation.stores() { size } else { 0 };
    header(opcode, key.len(), extras.len(), size, unique, out);
    out.extend_from_slice(extras);
    out.extend_from_slice(key);
}

/// Writes one key of a get of several, which [`end_of_several`] ends.
pub(crate) fn one_of_several(key: &[u8], out: &mut Vec<u8>) {
    header(GET_KEY_QUIETLY, key.len(), 0, 0, 0, out);
    out.extend_from_slice(key);
}

/// Keys that are not there are not answered: this is, once all are.
pub(crate) fn end_of_several(out: &mut Vec<u8>) {
    header(NOOP, 0, 0, 0, 0, out);
}

/// Writes who asks (SASL PLAIN, RFC 4616).
pub(crate) fn authenticate(user: &str, password: &str, out: &mut Vec<u8>) {
    const MECHANISM: &[u8] = b"PLAIN";
    let message = [b"\0", user.as_bytes(), b"\0", password.as_bytes()].concat();
    header(AUTHENTICATE, MECHANISM.len(), 0, message.len(), 0, out);
    out.extend_from_slice(MECHANISM);
    out.extend_from_slice(&message);
}

/// Splits what a server sends into answers.
#[derive(Debug, Default)]
pub(crate) struct BinaryAnswers {
    /// A header, extras and key that are not whole yet.
    head: Vec<u8>,
    /// Bytes of a value, or of an error's text, that are still to come.
    rest: usize,
    /// Whether those are a value.
    value: bool,
    /// What is told when they have come.
    then: Option<Answer>,
    /// Values of a get of several, so far.
    values: u32,
    /// Whether one of those was refused.
    refused: bool,
}

impl BinaryAnswers {
    pub(crate) fn feed(&mut self, mut input: &[u8], sink: &mut impl Sink) -> Result<(), Error> {
        while !input.is_empty() {
            if self.rest > 0 {
                let (now, later) = input.split_at(self.rest.min(input.len()));
                if self.value {
                    sink.bytes(now);
                }
                (self.rest, input) = (self.rest - now.len(), later);
                self.end(sink)?;
                continue;
            }
            // A header first, which says how much more of it there is.
            let whole = self.head_length();
            let (now, later) = input.split_at((whole - self.head.len()).min(input.len()));
            self.head.extend_from_slice(now);
            input = later;
            if self.head[0] != ANSWER {
                return Err(Error::Protocol(format!(
                    "an answer begins with {:#04x}, and not as the binary protocol's do",
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

    /// Bytes up to the value.
    fn head_length(&self) -> usize {
        let Some(head) = self.head.get(..HEADER) else { return HEADER };
        HEADER + usize::from(head[4]) + usize::from(u16::from_be_bytes([head[2], head[3]]))
    }

    fn end(&mut self, sink: &mut impl Sink) -> Result<(), Error> {
        match self.then.take_if(|_| self.rest == 0) {
            Some(answer) => sink.answer(answer),
            None => Ok(()),
        }
    }

    fn begin(&mut self, sink: &mut impl Sink) -> Result<(), Error> {
        let (head, after) = self.head.split_at(HEADER);
        let number = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (opcode, status) = (head[1], u16::from_be_bytes([head[6], head[7]]));
        let body = number(8) as usize;
        let rest = body.checked_sub(after.len()).ok_or_else(|| {
            Error::Protocol(format!("an answer of {body} bytes has {} bytes before its value", after.len()))
        })?;
        let key = &after[usize::from(head[4])..];
        let unique = u64::from(number(16)) << 32 | u64::from(number(20));
        (self.rest, self.value) = (rest, false);
        let gets = matches!(opcode, GET | GET_KEY | GET_KEY_QUIETLY);
        self.then = Some(match status {
            0 if gets => {
                self.value = true;
                sink.value(key, rest, unique);
                if opcode == GET_KEY_QUIETLY {
                    self.values += 1;
                    self.then = None;
                    return Ok(());
                }
                Answer::Values(1)
            }
            0 if opcode == NOOP => {
                let values = std::mem::take(&mut self.values);
                if std::mem::take(&mut self.refused) { Answer::Refused } else { Answer::Values(values) }
            }
            0 => Answer::Done,
            1 if gets => Answer::Values(0),
            1 => Answer::NotFound,
            2 => Answer::Exists,
            5 => Answer::NotStored,
            _ if opcode == GET_KEY_QUIETLY => {
                // One answer for all of them, with the end.
                self.refused = true;
                self.then = None;
                return Ok(());
            }
            _ => Answer::Refused,
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers::tests::Seen;

    fn answer(opcode: u8, status: u16, unique: u64, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        header(opcode, key.len(), extras.len(), value.len(), unique, &mut out);
        out[0] = ANSWER;
        out[6..8].copy_from_slice(&status.to_be_bytes());
        [&out[..], extras, key, value].concat()
    }

    #[test]
    fn answers_and_values_are_found_however_the_bytes_are_cut() {
        let input = [
            answer(GET_KEY, 0, 9, &[0; 4], b"key", b"value"),
            answer(GET_KEY, 1, 0, b"", b"", b"Not found"),
            answer(SET, 0, 10, b"", b"", b""),
            answer(GET_KEY_QUIETLY, 0, 3, &[0; 4], b"a", b""),
            answer(GET_KEY_QUIETLY, 0, 4, &[0; 4], b"b", b"x"),
            answer(NOOP, 0, 0, b"", b"", b""),
            answer(NOOP, 0, 0, b"", b"", b""),
            answer(SET, 2, 0, b"", b"", b"Data exists"),
            answer(GET_KEY_QUIETLY, 0x82, 0, b"", b"", b"Out of memory"),
            answer(NOOP, 0, 0, b"", b"", b""),
            answer(INCR, 0, 0, b"", b"", &7_u64.to_be_bytes()),
            answer(INCR, 1, 0, b"", b"", b"Not found"),
            answer(SET, 0x82, 0, b"", b"", b"Out of memory"),
            answer(0x0e, 5, 0, b"", b"", b"Not stored"),
        ]
        .concat();
        for piece in 1..=input.len() {
            let (mut answers, mut seen) = (BinaryAnswers::default(), Seen::default());
            input.chunks(piece).for_each(|part| answers.feed(part, &mut seen).unwrap());
            use Answer::{Done, Exists, NotFound, NotStored, Refused, Values};
            assert_eq!(
                seen.answers,
                [
                    Values(1),
                    Values(0),
                    Done,
                    Values(2),
                    Values(0),
                    Exists,
                    Refused,
                    Done,
                    NotFound,
                    Refused,
                    NotStored
                ],
                "pieces of {piece}"
            );
            let value =
                |key: &[u8], unique, bytes: &[u8]| (key.to_vec(), bytes.len(), unique, bytes.to_vec());
            let expected = [value(b"key", 9, b"value"), value(b"a", 3, b""), value(b"b", 4, b"x")];
            assert_eq!(seen.values, expected, "pieces of {piece}");
        }
    }

    #[test]
    fn an_answer_that_is_none_is_an_error() {
        let mut short = answer(GET_KEY, 0, 0, &[0; 4], b"key", b"");
        short[11] = 2;
        for input in [&b"ERROR\r\nERROR\r\nERROR\r\nERROR\r\n"[..], &short] {
            assert!(BinaryAnswers::default().feed(input, &mut Seen::default()).is_err());
        }
    }
}
