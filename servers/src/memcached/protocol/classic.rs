//! The classic text protocol: parses lines as memcached's `proto_parser.c` does, and writes items
//! and lists of keys.

use std::io::Write;

use super::meta::{MetaVerb, write_base64, write_number};
use super::{BAD_FORMAT, ERROR, KEY_MAX, OK, data_block_length, has_noreply, next_token, split, tokens};
use crate::memcached::clock::Clock;
use crate::memcached::mutation::Condition;
use crate::memcached::numbers;
use crate::memcached::store::{ItemBits, ItemHeader};

pub const BAD_EXPIRY: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";
const BAD_DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta argument\r\n";
const BAD_DELETE: &[u8] = b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";

/// A line. `touch` is the expiry of `gat` and `gats`, as sent. A data block follows `Store`.
/// `MetaRequest::parse` parses the rest of `Meta`. `Admin` is any other line, also of an unknown
/// command.
#[derive(Debug, PartialEq, Eq)]
pub enum Command<'a> {
    Get { with_cas: bool, touch: Option<i32>, keys: &'a [u8] },
    Store(StoreLine<'a>),
    Meta(MetaVerb),
    MetaNoop,
    Delete { key: &'a [u8], noreply: bool },
    Delta { key: &'a [u8], amount: u64, increments: bool, noreply: bool },
    Touch { key: &'a [u8], expiry: i32, noreply: bool },
    Stats,
    Version,
    Quit,
    Admin,
    Invalid { reply: &'static [u8], noreply: bool },
}

impl Command<'_> {
    /// Whether the command reads an item, or nothing. The flags of a meta get decide whether it
    /// also writes.
    pub fn is_get(&self) -> bool {
        matches!(
            self,
            Self::Get { touch: None, .. }
                | Self::Meta(MetaVerb::Get)
                | Self::MetaNoop
                | Self::Version
                | Self::Invalid { .. }
        )
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct StoreLine<'a> {
    pub condition: Condition,
    pub key: &'a [u8],
    /// Flags, expiry and CAS unique, if all are valid.
    pub numbers: Option<(u32, i32, u64)>,
    pub length: usize,
    pub noreply: bool,
}

const MIN_LINE: usize = 4;

/// Parses a line without its terminator, which had `terminator` bytes. A `resumed` get was parsed
/// before and is known to be valid.
pub fn parse(line: &[u8], terminator: usize, resumed: bool) -> Command<'_> {
    if line.len() + terminator < MIN_LINE {
        return invalid(BAD_FORMAT);
    }
    // As in memcached, a line that begins with a space has an empty name.
    let name = &line[..memchr::memchr(b' ', line).unwrap_or(line.len())];
    let rest = &line[name.len()..];
    match name {
        b"get" => parse_get(rest, false, resumed),
        b"gets" => parse_get(rest, true, resumed),
        b"gat" => parse_gat(rest, false, resumed),
        b"gats" => parse_gat(rest, true, resumed),
        b"set" => parse_store(Condition::Always, line),
        b"cas" => parse_store(Condition::CasMatches, line),
        b"add" => parse_store(Condition::Absent, line),
        b"replace" => parse_store(Condition::Present, line),
        b"append" => parse_store(Condition::Append, line),
        b"prepend" => parse_store(Condition::Prepend, line),
        b"mg" => Command::Meta(MetaVerb::Get),
        b"ms" => Command::Meta(MetaVerb::Set),
        b"md" => Command::Meta(MetaVerb::Delete),
        b"ma" => Command::Meta(MetaVerb::Arithmetic),
        b"me" => Command::Meta(MetaVerb::Debug),
        b"mn" => Command::MetaNoop,
        b"delete" | b"incr" | b"decr" | b"touch" => parse_change(line),
        b"stats" => Command::Stats,
        b"version" => Command::Version,
        b"quit" => Command::Quit,
        _ => Command::Admin,
    }
}

fn invalid(reply: &'static [u8]) -> Command<'static> {
    Command::Invalid { reply, noreply: false }
}

/// A line may have any number of keys, and all this happens in one turn. So they are not looked at
/// one by one: a key is too long where so many bytes have no space among them.
fn keys_are_valid(mut keys: &[u8]) -> bool {
    while keys.len() > KEY_MAX {
        match memchr::memrchr(b' ', &keys[..=KEY_MAX]) {
            Some(space) => keys = &keys[space + 1..],
            None => return false,
        }
    }
    true
}

fn parse_get(keys: &[u8], with_cas: bool, resumed: bool) -> Command<'_> {
    if !resumed && (tokens(keys).next().is_none() || !keys_are_valid(keys)) {
        return invalid(BAD_FORMAT);
    }
    Command::Get { with_cas, touch: None, keys }
}

fn parse_gat(rest: &[u8], with_cas: bool, resumed: bool) -> Command<'_> {
    let Some((expiry, end)) = next_token(rest, 0) else { return invalid(BAD_FORMAT) };
    match (parse_get(&rest[end..], with_cas, resumed), numbers::digits_i32(expiry)) {
        (Command::Get { keys, .. }, touch @ Some(_)) => Command::Get { with_cas, touch, keys },
        (Command::Get { .. }, None) => invalid(BAD_EXPIRY),
        (invalid, _) => invalid,
    }
}

fn parse_store(condition: Condition, line: &[u8]) -> Command<'_> {
    let tokens = split(line);
    let [_, key, flags, expiry, length, ref rest @ ..] = tokens[..] else { return invalid(BAD_FORMAT) };
    // Without a valid length there is no data block: what follows is parsed as a line.
    let Some(length) = data_block_length(length) else { return invalid(BAD_FORMAT) };
    let cas = match condition {
        Condition::CasMatches => rest.first().and_then(|number| numbers::digits(number)),
        _ => Some(0),
    };
    let numbers = (|| Some((numbers::flags(flags)?, numbers::expiry(expiry)?, cas?)))();
    Command::Store(StoreLine { condition, key, numbers, length, noreply: has_noreply(&tokens) })
}

fn parse_change(line: &[u8]) -> Command<'_> {
    let tokens = split(line);
    let noreply = has_noreply(&tokens);
    let refused = |reply| Command::Invalid { reply, noreply };
    match tokens[..] {
        // Old clients send a delay, which must be 0.
        [b"delete", key] | [b"delete", key, b"0" | b"noreply"] | [b"delete", key, b"0", b"noreply"] => {
            if key.len() <= KEY_MAX { Command::Delete { key, noreply } } else { refused(BAD_FORMAT) }
        }
        [b"delete", _, _] | [b"delete", _, _, _] => refused(BAD_DELETE),
        [b"delete", _, ..] => invalid(ERROR),
        [_, key, _, ..] if key.len() > KEY_MAX => refused(BAD_FORMAT),
        [b"touch", key, expiry, ..] => match numbers::digits_i32(expiry) {
            Some(expiry) => Command::Touch { key, expiry, noreply },
            None => refused(BAD_EXPIRY),
        },
        [name, key, amount, ..] => match numbers::digits(amount) {
            Some(amount) => Command::Delta { key, amount, increments: name == b"incr", noreply },
            None => refused(BAD_DELTA),
        },
        _ => invalid(BAD_FORMAT),
    }
}

pub fn write_value_line(key: &[u8], header: &ItemHeader, with_cas: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    out.push(b' ');
    write_number(header.flags, out);
    out.push(b' ');
    write_number(header.length, out);
    if with_cas {
        out.push(b' ');
        write_number(header.cas, out);
    }
    out.extend_from_slice(b"\r\n");
}

/// A list of keys, by the command that asks for it. A `max_keys` of 0 is any number of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DumpFormat {
    Metadump,
    Mgdump,
    Cachedump { max_keys: u32 },
}

impl DumpFormat {
    /// What precedes and what follows the list; the reply while another client's list is being
    /// sent, and if clients may not list keys (`-X`).
    pub fn replies(self) -> [&'static [u8]; 4] {
        const BUSY: &[u8] = b"BUSY currently processing crawler request\r\n";
        match self {
            Self::Metadump => [OK, b"END\r\n", BUSY, b"ERROR metadump not allowed\r\n"],
            Self::Mgdump => [OK, b"EN\r\n", BUSY, b"ERROR key dump not allowed\r\n"],
            Self::Cachedump { .. } => [
                b"",
                b"END\r\n",
                b"SERVER_ERROR busy, another list of keys is being sent\r\n",
                b"CLIENT_ERROR stats cachedump not allowed\r\n",
            ],
        }
    }

    pub fn write_line(self, clock: &Clock, key: &[u8], header: &ItemHeader, out: &mut Vec<u8>) {
        let expiry = |never| if header.expiry == 0 { never } else { clock.unix_of(header.expiry) };
        // Writing to a vector does not fail.
        let _ = match self {
            Self::Metadump => {
                out.extend_from_slice(b"key=");
                // Percent-encoded, as in memcached.
                for &byte in key {
                    match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                        true => out.push(byte),
                        false => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
                    }
                }
                let (expiry, accessed) = (expiry(-1), clock.unix_of(header.accessed));
                let fetched = if header.bits.contains(ItemBits::FETCHED) { "yes" } else { "no" };
                let (cas, size, flags) = (header.cas, header.size(), header.flags);
                writeln!(
                    out,
                    " exp={expiry} la={accessed} cas={cas} fetch={fetched} cls=1 size={size} flags={flags} "
                )
            }
            // A meta get that could be sent back.
            Self::Mgdump => {
                out.extend_from_slice(b"mg ");
                if key.iter().all(u8::is_ascii_graphic) {
                    out.extend_from_slice(key);
                } else {
                    write_base64(key, out);
                    out.extend_from_slice(b" b");
                }
                out.write_all(b"\r\n")
            }
            Self::Cachedump { .. } => {
                out.extend_from_slice(b"ITEM ");
                out.extend_from_slice(key);
                write!(out, " [{} b; {} s]\r\n", { header.length }, expiry(0))
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &[u8]) -> Command<'_> {
        super::parse(line, 2, false)
    }

    #[test]
    fn set_and_cas_lines_parse() {
        let Command::Store(store) = parse(b"set k 1 -1 5 noreply") else { panic!() };
        assert_eq!((store.key, store.numbers, store.length), (&b"k"[..], Some((1, -1, 0)), 5));
        assert!(store.noreply && store.condition == Condition::Always);
        let Command::Store(store) = parse(b"cas k 1 0 5 77") else { panic!() };
        assert_eq!((store.condition, store.numbers), (Condition::CasMatches, Some((1, 0, 77))));
    }

    #[test]
    fn a_key_that_is_too_long_is_found_wherever_it_is() {
        for before in 0..600 {
            for length in [249, 250, 251, 252] {
                let line = [&b"get "[..], &b"ab ".repeat(before), &b"k".repeat(length), b" cd  ef"].concat();
                let is_valid = matches!(parse(&line), Command::Get { .. });
                assert_eq!(is_valid, length <= KEY_MAX, "{length} bytes after {before} keys");
            }
        }
    }
}
