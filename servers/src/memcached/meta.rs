//! The meta commands' lines: a verb, a key, and flags of one letter, some with an argument.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::command::{BAD_FORMAT, KEY_MAX, Words, length};
use super::numbers;

/// More flags than this, and memcached refuses the line.
const MOST_WORDS: usize = 20;
/// The longest opaque, its letter included.
const LONGEST_OPAQUE: usize = 32;

const BAD_TOKEN: &[u8] = b"CLIENT_ERROR bad token in command line format\r\n";
const OPAQUE_TOO_LONG: &[u8] = b"CLIENT_ERROR opaque token too long\r\n";

/// A key as it is stored, and whether it was given in base64.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key<'a> {
    Plain(&'a [u8]),
    /// Decoded.
    Binary(Vec<u8>),
}

impl Key<'_> {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Key::Plain(bytes) => bytes,
            Key::Binary(bytes) => bytes,
        }
    }

    pub fn is_binary(&self) -> bool {
        matches!(self, Key::Binary(_))
    }
}

/// A meta command's key and flags.
#[derive(Debug, Default)]
pub struct Meta<'a> {
    key: Option<Key<'a>>,
    /// What is behind the key, and behind a data block's length: to be answered in the same order.
    pub flags: &'a [u8],
    /// Expiries as the client gave them.
    pub vivify: Option<i32>,
    pub ttl: Option<i32>,
    pub recache: Option<i32>,
    pub wants_value: bool,
    pub no_update: bool,
    pub quiet: bool,
    pub remove_value: bool,
    pub stale: bool,
    pub client_flags: u32,
    /// `C`: the number that the item must have.
    pub compare: Option<u64>,
    /// `E`: the number that it is to have.
    pub number: Option<u64>,
    /// `M`: the mode, 0 where there is none.
    pub mode: u8,
    pub initial: u64,
    pub delta: u64,
    /// Bytes of `ms`'s data block.
    pub length: usize,
}

/// Why a meta command's line is refused.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    pub answer: &'static [u8],
    /// Bytes of a data block that follows all the same.
    pub swallow: usize,
}

impl<'a> Meta<'a> {
    pub fn key(&self) -> &[u8] {
        self.key.as_ref().map_or(&[], Key::bytes)
    }

    pub fn key_is_binary(&self) -> bool {
        self.key.as_ref().is_some_and(Key::is_binary)
    }

    /// Parses the line of `verb`: `g`, `s`, `d`, `a` or `e`.
    pub fn parse(verb: u8, line: &'a [u8]) -> Result<Self, Refusal> {
        let words = Words::of(line);
        let words = words.get();
        let refuse = |answer| Refusal { answer, swallow: 0 };
        let flags_from = if verb == b's' { 3 } else { 2 };
        if words.len() < flags_from {
            return Err(refuse(BAD_FORMAT));
        }
        let mut meta = Meta { delta: 1, ..Meta::default() };
        if verb == b's' {
            meta.length = length(words[2]).ok_or(refuse(BAD_FORMAT))?;
        }
        let swallow = if verb == b's' { meta.length + 2 } else { 0 };
        let refuse = |answer| Refusal { answer, swallow };
        let flags = &words[flags_from..];
        // memcached's tokenizer gives up on what can't be a flag, and finds no words at all then.
        if flags.iter().any(|flag| !matches!(flag[0], b'A'..=b'z' | b'0'..=b'9')) {
            return Err(Refusal { answer: BAD_FORMAT, swallow: 0 });
        }
        if words[1].len() > KEY_MAX {
            return Err(refuse(BAD_FORMAT));
        }
        if words.len() > MOST_WORDS {
            return Err(refuse(b"CLIENT_ERROR options flags are too long\r\n"));
        }
        meta.key = Some(Key::Plain(words[1]));
        meta.flags = match flags.first() {
            Some(first) => &line[first.as_ptr() as usize - line.as_ptr() as usize..],
            None => &[],
        };
        meta.read_flags(words[1], flags).map_err(refuse)?;
        Ok(meta)
    }

    fn read_flags(&mut self, key: &'a [u8], flags: &[&'a [u8]]) -> Result<(), &'static [u8]> {
        let mut seen = [false; 128];
        let mut wrong = None;
        for flag in flags {
            let (&letter, argument) = flag.split_first().ok_or(BAD_FORMAT)?;
            if std::mem::replace(&mut seen[usize::from(letter)], true) {
                return Err(b"CLIENT_ERROR duplicate flag\r\n");
            }
            // Anything wrong is told only once all flags have been seen to be flags.
            if let Err(answer) = self.read_flag(letter, argument, key)? {
                wrong = Some(answer);
            }
        }
        wrong.map_or(Ok(()), Err)
    }

    /// The outer error is told at once.
    fn read_flag(
        &mut self,
        letter: u8,
        argument: &[u8],
        key: &[u8],
    ) -> Result<Result<(), &'static [u8]>, &'static [u8]> {
        let expiry = || numbers::digits_i32(argument).filter(|_| !argument.is_empty());
        let number = || numbers::digits(argument).filter(|_| !argument.is_empty());
        let set = |place: &mut Option<i32>| {
            *place = expiry();
            place.map(drop).ok_or(BAD_TOKEN)
        };
        Ok(match letter {
            b'b' => match decode(key) {
                Some(key) => {
                    self.key = Some(Key::Binary(key));
                    Ok(())
                }
                None => Err(&b"CLIENT_ERROR error decoding key\r\n"[..]),
            },
            b'N' => set(&mut self.vivify),
            b'T' => set(&mut self.ttl),
            b'R' => set(&mut self.recache),
            b'C' => {
                self.compare = number();
                self.compare.map(drop).ok_or(BAD_TOKEN)
            }
            b'E' => {
                self.number = number();
                self.number.map(drop).ok_or(BAD_TOKEN)
            }
            b'F' => match numbers::digits_u32(argument).filter(|_| !argument.is_empty()) {
                Some(flags) => {
                    self.client_flags = flags;
                    Ok(())
                }
                None => Err(BAD_FORMAT),
            },
            b'J' => match number() {
                Some(initial) => {
                    self.initial = initial;
                    Ok(())
                }
                None => Err(&b"CLIENT_ERROR invalid numeric initial value\r\n"[..]),
            },
            b'D' => match number() {
                Some(delta) => {
                    self.delta = delta;
                    Ok(())
                }
                None => Err(&b"CLIENT_ERROR invalid numeric delta value\r\n"[..]),
            },
            b'M' => {
                self.mode = argument.first().copied().unwrap_or(b' ');
                Ok(())
            }
            b'v' => {
                self.wants_value = true;
                Ok(())
            }
            b'u' => {
                self.no_update = true;
                Ok(())
            }
            b'q' => {
                self.quiet = true;
                Ok(())
            }
            b'x' => {
                self.remove_value = true;
                Ok(())
            }
            b'I' => {
                self.stale = true;
                Ok(())
            }
            b'O' if argument.len() + 1 > LONGEST_OPAQUE => Err(OPAQUE_TOO_LONG),
            b'l' | b'h' | b'O' | b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' => Ok(()),
            _ => return Err(b"CLIENT_ERROR invalid flag\r\n"),
        })
    }
}

/// `None` where it is no base64 of at least a byte.
pub fn decode(key: &[u8]) -> Option<Vec<u8>> {
    STANDARD.decode(key).ok().filter(|key| !key.is_empty())
}

/// Appends ` k` and the key, as an answer has it.
pub fn write_key(key: &[u8], binary: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(b" k");
    if binary {
        out.extend_from_slice(STANDARD.encode(key).as_bytes());
        out.extend_from_slice(b" b");
    } else {
        out.extend_from_slice(key);
    }
}

/// Appends a key in base64.
pub fn write_base64(key: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(STANDARD.encode(key).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_with_their_arguments() {
        let meta = Meta::parse(b's', b"ms key 5 T30 F7 C9 E10 MS O123 q k").unwrap();
        assert_eq!((meta.key(), meta.length, meta.ttl, meta.client_flags), (&b"key"[..], 5, Some(30), 7));
        assert_eq!((meta.compare, meta.number, meta.mode), (Some(9), Some(10), b'S'));
        assert!(meta.quiet);
        assert_eq!(meta.flags, b"T30 F7 C9 E10 MS O123 q k");
        let meta = Meta::parse(b'g', b"mg Zm9v v b").unwrap();
        assert_eq!((meta.key(), meta.key_is_binary(), meta.wants_value), (&b"foo"[..], true, true));
        assert_eq!(Meta::parse(b'd', b"md key").unwrap().flags, b"");
    }

    #[test]
    fn what_is_wrong_is_told_and_a_data_block_swallowed() {
        let refused = |verb, line: &'static [u8]| Meta::parse(verb, line).unwrap_err();
        assert_eq!(refused(b'g', b"mg"), Refusal { answer: BAD_FORMAT, swallow: 0 });
        assert_eq!(refused(b's', b"ms key x"), Refusal { answer: BAD_FORMAT, swallow: 0 });
        assert_eq!(refused(b's', b"ms key 5 Tx"), Refusal { answer: BAD_TOKEN, swallow: 7 });
        assert_eq!(refused(b'g', b"mg key v v").answer, b"CLIENT_ERROR duplicate flag\r\n");
        assert_eq!(refused(b'g', b"mg key !").answer, BAD_FORMAT);
        assert_eq!(refused(b'g', b"mg key Y").answer, b"CLIENT_ERROR invalid flag\r\n");
        assert_eq!(refused(b'g', b"mg not*base b").answer, b"CLIENT_ERROR error decoding key\r\n");
    }
}
