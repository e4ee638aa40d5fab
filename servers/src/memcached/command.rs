//! A line of the classic text protocol, parsed: what memcached's `proto_parser.c` would make of it.

use super::numbers;
use super::storing::Condition;

/// The longest key.
pub const KEY_MAX: usize = 250;

pub const ERROR: &[u8] = b"ERROR\r\n";
pub const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
pub const BAD_EXPIRY: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";
pub const BAD_DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta argument\r\n";
pub const BAD_DELETE: &[u8] = b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";

/// What a line asks for. Borrows from the line.
#[derive(Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// `get`, `gets`, `gat`, `gats`: the keys are the rest of the line.
    Get {
        with_cas: bool,
        touch: Option<i32>,
        keys: &'a [u8],
    },
    /// `set` and its kin; a data block follows.
    Store(StoreLine<'a>),
    /// `mg`, `ms`, `md`, `ma`, `me`: the verb's second letter, and the whole line.
    Meta(u8),
    MetaNoop,
    Delete {
        key: &'a [u8],
        noreply: bool,
    },
    Count {
        key: &'a [u8],
        delta: u64,
        up: bool,
        noreply: bool,
    },
    Touch {
        key: &'a [u8],
        expiry: i32,
        noreply: bool,
    },
    Stats,
    Version,
    Quit,
    /// Another command, that an operator may give.
    Admin,
    /// An answer that needs no look at the store; nothing if the line said `noreply`.
    Refuse {
        answer: &'static [u8],
        noreply: bool,
    },
}

/// The line of a storing command.
#[derive(Debug, PartialEq, Eq)]
pub struct StoreLine<'a> {
    pub condition: Condition,
    pub key: &'a [u8],
    /// Flags, expiry and number, if they are valid.
    pub numbers: Option<(u32, i32, u64)>,
    /// Bytes of the data block, without its end of line.
    pub length: usize,
    pub noreply: bool,
}

/// The first word of a line from a place on, and where it ends. Only spaces part words.
pub fn word_from(line: &[u8], from: usize) -> Option<(&[u8], usize)> {
    let start = from + line[from..].iter().position(|&byte| byte != b' ')?;
    let end = memchr::memchr(b' ', &line[start..]).map_or(line.len(), |length| start + length);
    Some((&line[start..end], end))
}

/// The words of a line.
pub fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let (word, end) = word_from(line, from)?;
        from = end;
        Some(word)
    })
}

/// So many words are looked at, the command's name included; memcached's tokenizer stops there too.
pub const MOST_WORDS: usize = 23;

/// A line's first words, and how many there are.
pub struct Words<'a> {
    words: [&'a [u8]; MOST_WORDS],
    count: usize,
}

impl<'a> Words<'a> {
    pub fn of(line: &'a [u8]) -> Self {
        let mut found = Self { words: [&[]; MOST_WORDS], count: 0 };
        for (place, word) in found.words.iter_mut().zip(words(line)) {
            *place = word;
            found.count += 1;
        }
        found
    }

    pub fn get(&self) -> &[&'a [u8]] {
        &self.words[..self.count]
    }
}

/// A line with its end is at least this long.
const SHORTEST: usize = 4;

/// Parses a line, without its end, which had `ending` bytes. A get that was `begun` is known to be valid.
pub fn parse(line: &[u8], ending: usize, begun: bool) -> Command<'_> {
    if line.len() + ending < SHORTEST {
        return refuse(BAD_FORMAT);
    }
    // A line that begins with a space has an empty name, as in memcached.
    let name = &line[..memchr::memchr(b' ', line).unwrap_or(line.len())];
    let rest = &line[name.len()..];
    match name {
        b"get" => parse_get(rest, false, begun),
        b"gets" => parse_get(rest, true, begun),
        b"gat" => parse_gat(rest, false, begun),
        b"gats" => parse_gat(rest, true, begun),
        b"set" => parse_store(Condition::Always, line, false),
        b"cas" => parse_store(Condition::Unchanged, line, true),
        b"add" => parse_store(Condition::Absent, line, false),
        b"replace" => parse_store(Condition::Present, line, false),
        b"append" => parse_store(Condition::Append { vivify: false }, line, false),
        b"prepend" => parse_store(Condition::Prepend { vivify: false }, line, false),
        b"mg" | b"ms" | b"md" | b"ma" | b"me" => Command::Meta(name[1]),
        b"mn" => Command::MetaNoop,
        b"delete" => parse_delete(line),
        b"incr" => parse_count(line, true),
        b"decr" => parse_count(line, false),
        b"touch" => parse_touch(line),
        b"stats" => Command::Stats,
        b"version" => Command::Version,
        b"quit" => Command::Quit,
        _ => Command::Admin,
    }
}

fn refuse(answer: &'static [u8]) -> Command<'static> {
    Command::Refuse { answer, noreply: false }
}

/// The keys stay one piece of the line: there may be any number of them.
fn keys_are_valid(keys: &[u8]) -> bool {
    keys.len() <= KEY_MAX || words(keys).all(|key| key.len() <= KEY_MAX)
}

fn parse_get(keys: &[u8], with_cas: bool, begun: bool) -> Command<'_> {
    if !begun && (words(keys).next().is_none() || !keys_are_valid(keys)) {
        return refuse(BAD_FORMAT);
    }
    Command::Get { with_cas, touch: None, keys }
}

fn parse_gat(rest: &[u8], with_cas: bool, begun: bool) -> Command<'_> {
    let mut arguments = words(rest);
    let (Some(expiry), Some(_)) = (arguments.next(), arguments.next()) else { return refuse(BAD_FORMAT) };
    let Some(touch) = numbers::digits_i32(expiry) else { return refuse(BAD_EXPIRY) };
    let start = rest.iter().position(|&byte| byte != b' ').unwrap_or(0) + expiry.len();
    let keys = &rest[start..];
    if !begun && !keys_are_valid(keys) {
        return refuse(BAD_FORMAT);
    }
    Command::Get { with_cas, touch: Some(touch), keys }
}

/// Whether the last of a command's words asks for silence.
pub fn is_quiet(words: &[&[u8]]) -> bool {
    words.last().is_some_and(|last| *last == b"noreply")
}

fn parse_store(condition: Condition, line: &[u8], with_cas: bool) -> Command<'_> {
    let words = Words::of(line);
    let words = words.get();
    if words.len() < 5 {
        return refuse(BAD_FORMAT);
    }
    let noreply = is_quiet(words);
    // Without a valid length nothing is known of a data block, and what follows is taken for a line.
    let Some(length) = length(words[4]) else { return refuse(BAD_FORMAT) };
    let cas = match (with_cas, words.get(5)) {
        (false, _) => Some(0),
        (true, number) => number.and_then(|number| numbers::digits(number)),
    };
    let numbers = (|| Some((numbers::flags(words[2])?, numbers::expiry(words[3])?, cas?)))();
    Command::Store(StoreLine { condition, key: words[1], numbers, length, noreply })
}

/// The length of a data block. Its end of line must fit an `int` as well.
pub fn length(text: &[u8]) -> Option<usize> {
    let length = numbers::digits_i32(text)?;
    usize::try_from(length).ok().filter(|&length| length <= i32::MAX as usize - 2)
}

fn parse_delete(line: &[u8]) -> Command<'_> {
    let words = Words::of(line);
    let words = words.get();
    let noreply = is_quiet(words);
    match words {
        [_] => refuse(BAD_FORMAT),
        // Old clients send a delay, which may only be 0.
        [_, key] | [_, key, b"0" | b"noreply"] | [_, key, b"0", b"noreply"] => {
            if key.len() > KEY_MAX {
                return Command::Refuse { answer: BAD_FORMAT, noreply };
            }
            Command::Delete { key, noreply }
        }
        [_, _, _] | [_, _, _, _] => Command::Refuse { answer: BAD_DELETE, noreply },
        _ => refuse(ERROR),
    }
}

fn parse_count(line: &[u8], up: bool) -> Command<'_> {
    let words = Words::of(line);
    let words = words.get();
    let noreply = is_quiet(words);
    match words {
        [_, key, delta, ..] if key.len() <= KEY_MAX => match numbers::digits(delta) {
            Some(delta) => Command::Count { key, delta, up, noreply },
            None => Command::Refuse { answer: BAD_DELTA, noreply },
        },
        [_, _, _, ..] => Command::Refuse { answer: BAD_FORMAT, noreply },
        _ => refuse(BAD_FORMAT),
    }
}

fn parse_touch(line: &[u8]) -> Command<'_> {
    let words = Words::of(line);
    let words = words.get();
    let noreply = is_quiet(words);
    match words {
        [_, key, expiry, ..] if key.len() <= KEY_MAX => match numbers::digits_i32(expiry) {
            Some(expiry) => Command::Touch { key, expiry, noreply },
            None => Command::Refuse { answer: BAD_EXPIRY, noreply },
        },
        [_, _, _, ..] => Command::Refuse { answer: BAD_FORMAT, noreply },
        _ => refuse(BAD_FORMAT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &[u8]) -> Command<'_> {
        super::parse(line, 2, false)
    }

    #[test]
    fn a_set_line_parses_with_and_without_noreply() {
        let Command::Store(store) = parse(b"set k 1 -1 5 noreply") else { panic!() };
        assert_eq!((store.key, store.numbers, store.length), (&b"k"[..], Some((1, -1, 0)), 5));
        assert!(store.noreply && store.condition == Condition::Always);
        let Command::Store(store) = parse(b"cas k 1 0 5 77") else { panic!() };
        assert_eq!((store.condition, store.numbers), (Condition::Unchanged, Some((1, 0, 77))));
    }

    #[test]
    fn too_few_words_are_errors() {
        for line in ["", "x", "get", "get  ", "gets ", "gat", "gat 1", "set k 0 0", "incr k", "delete"] {
            assert_eq!(parse(line.as_bytes()), refuse(BAD_FORMAT), "{line:?}");
        }
        assert_eq!(parse(b"delete a b c d e"), refuse(ERROR));
        assert_eq!(parse(b"delete a b"), refuse(BAD_DELETE));
        assert_eq!(parse(b" get a"), Command::Admin);
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for line in ["set k 0 0 -1", "set k 0 0 2147483646", "set k 0 0 x"] {
            assert_eq!(parse(line.as_bytes()), refuse(BAD_FORMAT), "{line:?}");
        }
        for line in ["set k -1 0 1", "set k 0 x 1", "cas k 0 0 1", "cas k 0 0 1 x"] {
            let Command::Store(store) = parse(line.as_bytes()) else { panic!("{line:?}") };
            assert_eq!(store.numbers, None, "{line:?}");
        }
        assert_eq!(parse(b"incr k x"), refuse(BAD_DELTA));
        assert_eq!(parse(b"touch k x"), refuse(BAD_EXPIRY));
        assert_eq!(parse(b"gat x k"), refuse(BAD_EXPIRY));
    }

    #[test]
    fn a_key_may_have_250_bytes_and_no_more() {
        let line = |length| [b"get ", &b"k".repeat(length)[..]].concat();
        assert!(matches!(parse(&line(250)), Command::Get { .. }));
        assert_eq!(parse(&line(251)), refuse(BAD_FORMAT));
        assert!(matches!(parse(b"gat 10 a b"), Command::Get { touch: Some(10), keys: b" a b", .. }));
    }
}
