//! memcached's protocols: bytes to commands, and results to bytes. Nothing here knows a client or
//! executes anything; `session` does.

pub mod binary;
pub mod classic;
pub mod meta;
pub mod store_reply;
pub mod tuning;

use super::numbers;

/// The longest key, in bytes.
pub const KEY_MAX: usize = 250;

pub const OK: &[u8] = b"OK\r\n";
pub const ERROR: &[u8] = b"ERROR\r\n";
pub const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
pub const NOT_A_NUMBER: &[u8] = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
pub const OUT_OF_MEMORY: &[u8] = b"SERVER_ERROR out of memory\r\n";

/// The first token at or after offset `from`, and the offset of its end. Only spaces separate
/// tokens.
pub fn next_token(line: &[u8], from: usize) -> Option<(&[u8], usize)> {
    let start = from + line[from..].iter().position(|&byte| byte != b' ')?;
    let end = memchr::memchr(b' ', &line[start..]).map_or(line.len(), |length| start + length);
    Some((&line[start..end], end))
}

pub fn tokens(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let (token, end) = next_token(line, from)?;
        from = end;
        Some(token)
    })
}

/// The number of tokens that are parsed, including the command's name. memcached's tokenizer has
/// the same limit.
const MAX_TOKENS: usize = 23;

pub struct Tokens<'a> {
    tokens: [&'a [u8]; MAX_TOKENS],
    count: usize,
}

impl<'a> Tokens<'a> {
    pub fn of(line: &'a [u8]) -> Self {
        let mut found = Self { tokens: [&[]; MAX_TOKENS], count: 0 };
        for (slot, token) in found.tokens.iter_mut().zip(tokens(line)) {
            *slot = token;
            found.count += 1;
        }
        found
    }

    pub fn as_slice(&self) -> &[&'a [u8]] {
        &self.tokens[..self.count]
    }
}

/// Whether a command's last token is `noreply`.
pub fn has_noreply(tokens: &[&[u8]]) -> bool {
    tokens.last().is_some_and(|last| *last == b"noreply")
}

/// Parses the length of a data block. Together with its terminator, the length must fit a C `int`.
pub fn data_block_length(text: &[u8]) -> Option<usize> {
    let length = numbers::digits_i32(text)?;
    usize::try_from(length).ok().filter(|&length| length <= i32::MAX as usize - 2)
}
