//! memcached's protocols: bytes to commands, and results to bytes. Nothing here knows a client or
//! executes anything; `session` does.

pub mod binary;
pub mod classic;
pub mod meta;
pub mod store_reply;
pub mod tuning;

use arrayvec::ArrayVec;

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

/// The tokens of a line, with the command's name: as many as memcached's tokenizer finds.
pub type Tokens<'a> = ArrayVec<&'a [u8], 23>;

pub fn split(line: &[u8]) -> Tokens<'_> {
    tokens(line).take(Tokens::new_const().capacity()).collect()
}

pub fn has_noreply(tokens: &[&[u8]]) -> bool {
    tokens.last().is_some_and(|last| *last == b"noreply")
}

/// Parses the length of a data block. Together with its terminator, the length must fit a C `int`.
pub fn data_block_length(text: &[u8]) -> Option<usize> {
    let length = numbers::digits_i32(text)?;
    usize::try_from(length).ok().filter(|&length| length <= i32::MAX as usize - 2)
}
