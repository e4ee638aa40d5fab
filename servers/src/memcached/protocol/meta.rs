//! The meta commands: parses lines of a verb, a key, and flags of one letter, some with an
//! argument, and writes the flags of replies.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::{BAD_FORMAT, KEY_MAX, data_block_length, split, tokens};
use crate::memcached::numbers;

/// The most tokens on a line; memcached refuses longer lines.
const MAX_TOKENS: usize = 20;
/// The longest opaque, in bytes, with its letter.
const MAX_OPAQUE: usize = 32;

const BAD_TOKEN: &[u8] = b"CLIENT_ERROR bad token in command line format\r\n";
pub const OPAQUE_TOO_LONG: &[u8] = b"CLIENT_ERROR opaque token too long\r\n";

/// `mg`, `ms`, `md`, `ma` and `me`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetaVerb {
    Get,
    Set,
    Delete,
    Arithmetic,
    Debug,
}

/// A meta command's key and flags. Expiries are as sent.
#[derive(Debug, Default)]
pub struct MetaRequest<'a> {
    key: Cow<'a, [u8]>,
    /// The flags as sent, which replies repeat in the same order.
    pub flags: &'a [u8],
    /// `N`: create the item with this expiry.
    pub vivify: Option<i32>,
    /// `T`: the new expiry.
    pub ttl: Option<i32>,
    /// `R`: offer to recache if the remaining time is less.
    pub recache: Option<i32>,
    /// `v`
    pub wants_value: bool,
    /// `u`: do not record the access.
    pub no_update: bool,
    /// `q`
    pub quiet: bool,
    /// `x`: remove the value but keep the item.
    pub remove_value: bool,
    /// `I`: mark the item stale, or accept a stale value.
    pub invalidate: bool,
    /// `F`
    pub client_flags: u32,
    /// `C`: the CAS unique that the item must have.
    pub expected_cas: Option<u64>,
    /// `E`: the item's new CAS unique.
    pub new_cas: Option<u64>,
    /// `M`: the mode; 0 if not given.
    pub mode: u8,
    /// `J`: the initial value of a vivified number.
    pub initial: u64,
    /// `D`: the amount of an arithmetic command. Default: 1.
    pub delta: u64,
    /// Bytes of `ms`'s data block.
    pub length: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub struct MetaError {
    pub reply: &'static [u8],
    /// Bytes of the data block that follows nevertheless, with its terminator.
    pub discard: usize,
}

impl<'a> MetaRequest<'a> {
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Whether the client sent the key in base64.
    pub fn key_is_binary(&self) -> bool {
        matches!(self.key, Cow::Owned(_))
    }

    pub fn parse(verb: MetaVerb, line: &'a [u8]) -> Result<Self, MetaError> {
        let tokens = split(line);
        let error = |reply| MetaError { reply, discard: 0 };
        let has_data_block = verb == MetaVerb::Set;
        let flags_from = if has_data_block { 3 } else { 2 };
        if tokens.len() < flags_from {
            return Err(error(BAD_FORMAT));
        }
        let mut request = MetaRequest { delta: 1, ..MetaRequest::default() };
        if has_data_block {
            request.length = data_block_length(tokens[2]).ok_or(error(BAD_FORMAT))?;
        }
        let flags = &tokens[flags_from..];
        // memcached's tokenizer stops at a character that cannot be a flag, and then finds no
        // tokens at all.
        if flags.iter().any(|flag| !matches!(flag[0], b'A'..=b'z' | b'0'..=b'9')) {
            return Err(error(BAD_FORMAT));
        }
        let discard = if has_data_block { request.length + 2 } else { 0 };
        let error = |reply| MetaError { reply, discard };
        if tokens[1].len() > KEY_MAX {
            // `ma` answers as for a flag.
            return Err(error(if verb == MetaVerb::Arithmetic { BAD_TOKEN } else { BAD_FORMAT }));
        }
        if tokens.len() > MAX_TOKENS {
            return Err(error(b"CLIENT_ERROR options flags are too long\r\n"));
        }
        request.key = Cow::Borrowed(tokens[1]);
        let offset = |first: &&[u8]| first.as_ptr() as usize - line.as_ptr() as usize;
        request.flags = flags.first().map_or(&[], |first| &line[offset(first)..]);
        request.parse_flags(tokens[1], flags).map_err(error)?;
        Ok(request)
    }

    fn parse_flags(&mut self, key: &'a [u8], flags: &[&'a [u8]]) -> Result<(), &'static [u8]> {
        let mut seen = [false; 128];
        let mut invalid_argument = None;
        for flag in flags {
            let (&letter, argument) = flag.split_first().ok_or(BAD_FORMAT)?;
            if std::mem::replace(&mut seen[usize::from(letter)], true) {
                return Err(b"CLIENT_ERROR duplicate flag\r\n");
            }
            match self.parse_flag(letter, argument, key) {
                Ok(()) => {}
                // That of `F` has no message in memcached.
                Err(FlagError::Argument(BAD_FORMAT)) => {
                    invalid_argument.get_or_insert(BAD_FORMAT);
                }
                Err(FlagError::Argument(reply)) => invalid_argument = Some(reply),
                Err(FlagError::Unknown) => return Err(b"CLIENT_ERROR invalid flag\r\n"),
            }
        }
        invalid_argument.map_or(Ok(()), Err)
    }

    fn parse_flag(&mut self, letter: u8, argument: &[u8], key: &[u8]) -> Result<(), FlagError> {
        let expiry = || numbers::digits_i32(argument).ok_or(FlagError::Argument(BAD_TOKEN));
        let number = |reply| numbers::digits(argument).ok_or(FlagError::Argument(reply));
        match letter {
            b'b' => {
                let decoded = STANDARD.decode(key).ok().filter(|key| !key.is_empty());
                let invalid = FlagError::Argument(b"CLIENT_ERROR error decoding key\r\n");
                self.key = Cow::Owned(decoded.ok_or(invalid)?);
            }
            b'N' => self.vivify = Some(expiry()?),
            b'T' => self.ttl = Some(expiry()?),
            b'R' => self.recache = Some(expiry()?),
            b'C' => self.expected_cas = Some(number(BAD_TOKEN)?),
            b'E' => self.new_cas = Some(number(BAD_TOKEN)?),
            b'F' => {
                let flags = numbers::digits_u32(argument);
                self.client_flags = flags.ok_or(FlagError::Argument(BAD_FORMAT))?;
            }
            b'J' => self.initial = number(b"CLIENT_ERROR invalid numeric initial value\r\n")?,
            b'D' => self.delta = number(b"CLIENT_ERROR invalid numeric delta value\r\n")?,
            b'M' => self.mode = argument.first().copied().unwrap_or(b' '),
            b'v' => self.wants_value = true,
            b'u' => self.no_update = true,
            b'q' => self.quiet = true,
            b'x' => self.remove_value = true,
            b'I' => self.invalidate = true,
            b'O' if argument.len() + 1 > MAX_OPAQUE => return Err(FlagError::Argument(OPAQUE_TOO_LONG)),
            b'l' | b'h' | b'O' | b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' => {}
            _ => return Err(FlagError::Unknown),
        }
        Ok(())
    }
}

enum FlagError {
    Unknown,
    /// The reply says so if no other flag is unknown.
    Argument(&'static [u8]),
}

pub fn write_number(number: impl itoa::Integer, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

pub fn write_flag(letter: u8, number: impl itoa::Integer, out: &mut Vec<u8>) {
    out.extend_from_slice(&[b' ', letter]);
    write_number(number, out);
}

pub fn write_ttl(expiry: u32, now: u32, out: &mut Vec<u8>) {
    match expiry {
        0 => out.extend_from_slice(b" t-1"),
        // As in memcached, where the remaining time is unsigned.
        expiry => write_flag(b't', expiry.saturating_sub(now), out),
    }
}

/// Writes the flags of a reply in the order in which they were sent: opaque and key, and what
/// `write` makes of each other letter.
pub fn write_flags(
    flags: &[u8],
    key: &[u8],
    key_is_binary: bool,
    out: &mut Vec<u8>,
    mut write: impl FnMut(u8, &mut Vec<u8>),
) {
    for flag in tokens(flags) {
        match flag[0] {
            b'O' => {
                out.push(b' ');
                out.extend_from_slice(flag);
            }
            b'k' if key_is_binary => {
                out.extend_from_slice(b" k");
                write_base64(key, out);
                out.extend_from_slice(b" b");
            }
            b'k' => {
                out.extend_from_slice(b" k");
                out.extend_from_slice(key);
            }
            letter => write(letter, out),
        }
    }
}

pub fn write_base64(key: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(STANDARD.encode(key).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_parse_with_their_arguments() {
        let request = MetaRequest::parse(MetaVerb::Set, b"ms key 5 T30 F7 C9 E10 MS O123 q k").unwrap();
        assert_eq!(
            (request.key(), request.length, request.ttl, request.client_flags),
            (&b"key"[..], 5, Some(30), 7)
        );
        assert_eq!((request.expected_cas, request.new_cas, request.mode), (Some(9), Some(10), b'S'));
        assert!(request.quiet);
        assert_eq!(request.flags, b"T30 F7 C9 E10 MS O123 q k");
        let request = MetaRequest::parse(MetaVerb::Get, b"mg Zm9v v b").unwrap();
        assert_eq!((request.key(), request.key_is_binary(), request.wants_value), (&b"foo"[..], true, true));
        assert_eq!(MetaRequest::parse(MetaVerb::Delete, b"md key").unwrap().flags, b"");
    }

    #[test]
    fn an_invalid_line_has_a_reply_and_discards_its_data_block() {
        let error = |verb, line: &'static [u8]| MetaRequest::parse(verb, line).unwrap_err();
        assert_eq!(error(MetaVerb::Get, b"mg"), MetaError { reply: BAD_FORMAT, discard: 0 });
        assert_eq!(error(MetaVerb::Set, b"ms key x"), MetaError { reply: BAD_FORMAT, discard: 0 });
        assert_eq!(error(MetaVerb::Set, b"ms key 5 Tx"), MetaError { reply: BAD_TOKEN, discard: 7 });
        assert_eq!(error(MetaVerb::Get, b"mg key v v").reply, b"CLIENT_ERROR duplicate flag\r\n");
        assert_eq!(error(MetaVerb::Get, b"mg key !").reply, BAD_FORMAT);
        assert_eq!(error(MetaVerb::Get, b"mg key Y").reply, b"CLIENT_ERROR invalid flag\r\n");
        assert_eq!(error(MetaVerb::Get, b"mg not*base b").reply, b"CLIENT_ERROR error decoding key\r\n");
    }
}
