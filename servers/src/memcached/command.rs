//! A command line, parsed: what memcached's `process_command_ascii` would make of it.

use super::numbers;
use super::store::Condition;

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
        touch: Option<i64>,
        keys: &'a [u8],
    },
    /// `set` and its kin; a data block follows.
    Store(StoreCommand<'a>),
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
        expiry: i64,
        noreply: bool,
    },
    Flush {
        delay: i64,
        noreply: bool,
    },
    Stats {
        section: &'a [u8],
    },
    Version,
    Verbosity {
        level: Option<u32>,
        noreply: bool,
    },
    Quit,
    /// An answer that needs no look at the store; nothing if the line said `noreply`.
    Refuse {
        answer: &'static [u8],
        noreply: bool,
    },
}

/// The line of a storing command.
#[derive(Debug, PartialEq, Eq)]
pub struct StoreCommand<'a> {
    pub condition: Condition,
    pub key: &'a [u8],
    pub flags: u32,
    pub expiry: i64,
    /// Bytes of the data block, without its end of line.
    pub length: usize,
    pub noreply: bool,
}

/// The words of a line. Only spaces part them.
pub fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|&byte| byte == b' ').filter(|word| !word.is_empty())
}

/// No command but the gets has more words.
const MOST_WORDS: usize = 10;

/// Parses a line, without its end.
pub fn parse(line: &[u8]) -> Command<'_> {
    let mut all = words(line);
    let Some(name) = all.next() else { return refuse(ERROR) };
    if let Some(get) = parse_get(name, line) {
        return get;
    }
    let mut arguments: [&[u8]; MOST_WORDS] = [&[]; MOST_WORDS];
    let mut count = 0;
    for word in all {
        if count == MOST_WORDS {
            return refuse(ERROR);
        }
        arguments[count] = word;
        count += 1;
    }
    parse_with(name, &arguments[..count])
}

fn refuse(answer: &'static [u8]) -> Command<'static> {
    Command::Refuse { answer, noreply: false }
}

fn parse_get<'a>(name: &[u8], line: &'a [u8]) -> Option<Command<'a>> {
    let (with_cas, touches) = match name {
        b"get" => (false, false),
        b"gets" => (true, false),
        b"gat" => (false, true),
        b"gats" => (true, true),
        _ => return None,
    };
    // The keys stay one piece of the line: there may be any number of them.
    let mut rest = after_word(line);
    if words(rest).next().is_none() {
        return Some(refuse(ERROR));
    }
    let mut touch = None;
    if touches {
        let expiry = words(rest).next().unwrap_or_default();
        rest = after_word(rest);
        // Without a key behind the expiry memcached answers END, as for a get of nothing found.
        touch = match numbers::length(expiry) {
            Some(expiry) => Some(i64::from(expiry)),
            None => return Some(refuse(BAD_EXPIRY)),
        };
    }
    if words(rest).any(|key| key.len() > KEY_MAX) {
        return Some(refuse(BAD_FORMAT));
    }
    Some(Command::Get { with_cas, touch, keys: rest })
}

/// What follows the first word.
fn after_word(line: &[u8]) -> &[u8] {
    let start = line.iter().position(|&byte| byte != b' ').unwrap_or(line.len());
    let word = line[start..].iter().position(|&byte| byte == b' ').unwrap_or(line.len() - start);
    &line[start + word..]
}

fn parse_with<'a>(name: &[u8], arguments: &[&'a [u8]]) -> Command<'a> {
    let noreply = arguments.last().is_some_and(|last| *last == b"noreply");
    let refuse_quietly = |answer| Command::Refuse { answer, noreply };
    match (name, arguments.len()) {
        (b"set", 4 | 5) => parse_store(Condition::Always, arguments, noreply),
        (b"add", 4 | 5) => parse_store(Condition::Absent, arguments, noreply),
        (b"replace", 4 | 5) => parse_store(Condition::Present, arguments, noreply),
        (b"append", 4 | 5) => parse_store(Condition::Append, arguments, noreply),
        (b"prepend", 4 | 5) => parse_store(Condition::Prepend, arguments, noreply),
        (b"cas", 5 | 6) => parse_store(Condition::Unchanged(0), arguments, noreply),
        (b"delete", 1..=3) => {
            let valid = arguments.len() == 1
                || (arguments.len() == 2 && (noreply || arguments[1] == b"0"))
                || (arguments.len() == 3 && arguments[1] == b"0" && noreply);
            if !valid {
                return refuse(BAD_DELETE);
            }
            if arguments[0].len() > KEY_MAX {
                return refuse_quietly(BAD_FORMAT);
            }
            Command::Delete { key: arguments[0], noreply }
        }
        (b"incr" | b"decr", 2 | 3) => {
            if arguments[0].len() > KEY_MAX {
                return refuse_quietly(BAD_FORMAT);
            }
            match numbers::unsigned(arguments[1]) {
                Some(delta) => Command::Count { key: arguments[0], delta, up: name == b"incr", noreply },
                None => refuse_quietly(BAD_DELTA),
            }
        }
        (b"touch", 2 | 3) => {
            if arguments[0].len() > KEY_MAX {
                return refuse_quietly(BAD_FORMAT);
            }
            match numbers::length(arguments[1]) {
                Some(expiry) => Command::Touch { key: arguments[0], expiry: expiry.into(), noreply },
                None => refuse_quietly(BAD_EXPIRY),
            }
        }
        (b"flush_all", 0..=2) => {
            let delay = match (arguments.len(), noreply) {
                (0, _) | (1, true) => Some(0),
                _ => numbers::length(arguments[0]).map(i64::from),
            };
            match delay {
                Some(delay) => Command::Flush { delay, noreply },
                None => refuse(BAD_EXPIRY),
            }
        }
        (b"stats", _) => Command::Stats { section: arguments.first().copied().unwrap_or_default() },
        (b"version", _) => Command::Version,
        (b"quit", _) => Command::Quit,
        (b"verbosity", 1 | 2) => {
            let level = numbers::flags(arguments[0]);
            Command::Verbosity { level, noreply }
        }
        _ => refuse(ERROR),
    }
}

fn parse_store<'a>(condition: Condition, arguments: &[&'a [u8]], noreply: bool) -> Command<'a> {
    let key = arguments[0];
    let refuse = Command::Refuse { answer: BAD_FORMAT, noreply };
    if key.len() > KEY_MAX {
        return refuse;
    }
    let numbers =
        (numbers::flags(arguments[1]), numbers::length(arguments[2]), numbers::length(arguments[3]));
    let (Some(flags), Some(expiry), Some(length)) = numbers else { return refuse };
    // The block's end of line must fit an int as well.
    let Some(length) = usize::try_from(length).ok().filter(|&length| length <= i32::MAX as usize - 2) else {
        return refuse;
    };
    let condition = match condition {
        Condition::Unchanged(_) => match numbers::unsigned(arguments[4]) {
            Some(cas) => Condition::Unchanged(cas),
            None => return refuse,
        },
        other => other,
    };
    Command::Store(StoreCommand { condition, key, flags, expiry: expiry.into(), length, noreply })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_line_parses_with_and_without_noreply() {
        let Command::Store(store) = parse(b"set k 1 -1 5 noreply") else { panic!() };
        assert_eq!((store.key, store.flags, store.expiry, store.length), (&b"k"[..], 1, -1, 5));
        assert!(store.noreply && store.condition == Condition::Always);
        let Command::Store(store) = parse(b"cas k 1 0 5 77") else { panic!() };
        assert_eq!(store.condition, Condition::Unchanged(77));
    }

    #[test]
    fn too_few_and_too_many_words_are_errors() {
        for line in ["", " ", "get", "gets ", "gat", "set k 0 0", "set k 0 0 1 noreply x", "incr k", "x"] {
            assert_eq!(parse(line.as_bytes()), refuse(ERROR), "{line:?}");
        }
        let long = [&b"set "[..], &b"a ".repeat(1000)].concat();
        assert_eq!(parse(&long), refuse(ERROR));
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for line in ["set k -1 0 1", "set k 0 x 1", "set k 0 0 -1", "set k 0 0 2147483646"] {
            assert_eq!(parse(line.as_bytes()), refuse(BAD_FORMAT), "{line:?}");
        }
        assert_eq!(parse(b"incr k x"), refuse(BAD_DELTA));
        assert_eq!(parse(b"touch k x"), refuse(BAD_EXPIRY));
    }

    #[test]
    fn a_key_may_have_250_bytes_and_no_more() {
        let line = |length| [b"get ", &b"k".repeat(length)[..]].concat();
        assert!(matches!(parse(&line(250)), Command::Get { .. }));
        assert_eq!(parse(&line(251)), refuse(BAD_FORMAT));
    }
}
