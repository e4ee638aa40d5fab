//! Sessions of the text protocol, compared with a model: a map of the stored items.
#![no_main]

use std::collections::HashMap;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use servers::memcached::fuzzing::converse;

#[derive(Debug, Arbitrary)]
enum Command {
    Set { key: u8, flags: u16, value: Vec<u8>, quiet: bool },
    Repeat { key: u8, byte: u8, length: u16 },
    Add { key: u8, value: Vec<u8> },
    Replace { key: u8, value: Vec<u8> },
    Append { key: u8, value: Vec<u8> },
    Prepend { key: u8, value: Vec<u8> },
    Cas { key: u8, value: Vec<u8>, stale: bool },
    Get { keys: Vec<u8> },
    SetExpired { key: u8 },
    Delete { key: u8 },
    Count { key: u8, amount: u64, up: bool },
    Number { key: u8, number: u64 },
    Touch { key: u8 },
    MetaGet { key: u8, value: bool, flags: bool, size: bool },
    MetaSet { key: u8, value: Vec<u8>, mode: u8 },
    MetaDelete { key: u8, quiet: bool },
    MetaCount { key: u8, delta: u64, up: bool, vivify: Option<u64> },
    Flush,
    Noop,
}

#[derive(Clone)]
struct Item {
    flags: u16,
    value: Vec<u8>,
}

/// One of twelve keys, of different lengths.
fn name(key: u8) -> String {
    let key = key % 12;
    format!("key-{key}{}", "x".repeat(usize::from(key) * 20))
}

/// Parses a number as memcached does.
fn number(value: &[u8]) -> Option<u64> {
    // Bytes that are not UTF-8 are neither digits nor spaces.
    let text = String::from_utf8_lossy(value);
    let text = text.trim_start_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
    let (negative, text) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let behind = text[digits..].bytes().next();
    if digits == 0 || behind.is_some_and(|byte| !b" \t\n\x0b\x0c\r".contains(&byte)) {
        return None;
    }
    let value: u64 = text[..digits].parse().ok()?;
    match negative {
        false => Some(value),
        true => Some(value.wrapping_neg()).filter(|value| (*value as i64) >= 0),
    }
}

/// Changes an item's number. `None` if it is not a number.
fn apply_delta(item: &mut Item, amount: u64, up: bool) -> Option<u64> {
    let old = number(&item.value)?;
    let new = if up { old.wrapping_add(amount) } else { old.saturating_sub(amount) };
    let mut text = new.to_string().into_bytes();
    text.resize(text.len().max(item.value.len()), b' ');
    item.value = text;
    Some(new)
}

#[derive(Default)]
struct Model {
    items: HashMap<String, Item>,
    input: Vec<u8>,
    replies: Vec<u8>,
}

impl Model {
    /// Adds a command and its expected reply.
    fn expect(&mut self, line: &str, value: Option<&[u8]>, reply: &[u8]) {
        self.input.extend_from_slice(line.as_bytes());
        self.input.extend_from_slice(b"\r\n");
        if let Some(value) = value {
            self.input.extend_from_slice(value);
            self.input.extend_from_slice(b"\r\n");
        }
        self.replies.extend_from_slice(reply);
    }

    fn store(&mut self, verb: &str, key: u8, flags: u16, value: &[u8], stores: bool) {
        let (key, length) = (name(key), value.len());
        let reply: &[u8] = if stores { b"STORED\r\n" } else { b"NOT_STORED\r\n" };
        self.expect(&format!("{verb} {key} {flags} 0 {length}"), Some(value), reply);
        if stores {
            self.items.insert(key, Item { flags, value: value.to_vec() });
        }
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Set { key, flags, value, quiet } => {
                let (key, length) = (name(key), value.len());
                let (word, reply) = if quiet { (" noreply", &b""[..]) } else { ("", &b"STORED\r\n"[..]) };
                self.expect(&format!("set {key} {flags} 0 {length}{word}"), Some(&value), reply);
                self.items.insert(key, Item { flags, value });
            }
            Command::Repeat { key, byte, length } => {
                self.store("set", key, 1, &vec![byte; usize::from(length) * 2], true);
            }
            Command::Add { key, value } => {
                let stores = !self.items.contains_key(&name(key));
                self.store("add", key, 2, &value, stores);
            }
            Command::Replace { key, value } => {
                let stores = self.items.contains_key(&name(key));
                self.store("replace", key, 3, &value, stores);
            }
            Command::Append { key, value } => self.concatenate("append", key, &value),
            Command::Prepend { key, value } => self.concatenate("prepend", key, &value),
            Command::Cas { key, value, stale } => {
                // The CAS unique is one that no item has.
                let (key, length) = (name(key), value.len());
                let line = format!("cas {key} 4 0 {length} 18446744073709551615");
                let reply: &[u8] =
                    if self.items.contains_key(&key) { b"EXISTS\r\n" } else { b"NOT_FOUND\r\n" };
                if !stale {
                    self.expect(&line, Some(&value), reply);
                }
            }
            Command::Get { keys } => {
                if keys.is_empty() {
                    return;
                }
                let names: Vec<String> = keys.iter().map(|key| name(*key)).collect();
                let mut reply = Vec::new();
                for name in &names {
                    if let Some(item) = self.items.get(name) {
                        reply.extend_from_slice(
                            format!("VALUE {name} {} {}\r\n", item.flags, item.value.len()).as_bytes(),
                        );
                        reply.extend_from_slice(&item.value);
                        reply.extend_from_slice(b"\r\n");
                    }
                }
                reply.extend_from_slice(b"END\r\n");
                self.expect(&format!("get {}", names.join(" ")), None, &reply);
            }
            Command::SetExpired { key } => {
                self.expect(&format!("set {} 0 -1 1", name(key)), Some(b"x"), b"STORED\r\n");
                self.items.remove(&name(key));
            }
            Command::Delete { key } => {
                let found = self.items.remove(&name(key)).is_some();
                self.expect(
                    &format!("delete {}", name(key)),
                    None,
                    if found { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" },
                );
            }
            Command::Number { key, number } => self.store("set", key, 5, number.to_string().as_bytes(), true),
            Command::Count { key, amount, up } => {
                let reply = match self.items.get_mut(&name(key)) {
                    None => "NOT_FOUND\r\n".to_owned(),
                    Some(item) => match apply_delta(item, amount, up) {
                        Some(new) => format!("{new}\r\n"),
                        None => "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n".to_owned(),
                    },
                };
                let verb = if up { "incr" } else { "decr" };
                self.expect(&format!("{verb} {} {amount}", name(key)), None, reply.as_bytes());
            }
            Command::Touch { key } => {
                let found = self.items.contains_key(&name(key));
                self.expect(
                    &format!("touch {} 1000", name(key)),
                    None,
                    if found { b"TOUCHED\r\n" } else { b"NOT_FOUND\r\n" },
                );
            }
            Command::MetaGet { key, value, flags, size } => {
                let mut line = format!("mg {}", name(key));
                let wanted = [(flags, " f"), (size, " s"), (value, " v")];
                wanted.iter().filter(|(wanted, _)| *wanted).for_each(|(_, flag)| line.push_str(flag));
                let reply = match self.items.get(&name(key)) {
                    None => b"EN\r\n".to_vec(),
                    Some(item) => {
                        let mut reply =
                            if value { format!("VA {}", item.value.len()) } else { "HD".to_owned() };
                        if flags {
                            reply.push_str(&format!(" f{}", item.flags));
                        }
                        if size {
                            reply.push_str(&format!(" s{}", item.value.len()));
                        }
                        let mut reply = (reply + "\r\n").into_bytes();
                        if value {
                            reply.extend_from_slice(&item.value);
                            reply.extend_from_slice(b"\r\n");
                        }
                        reply
                    }
                };
                self.expect(&line, None, &reply);
            }
            Command::MetaSet { key, value, mode } => {
                let key = name(key);
                let present = self.items.contains_key(&key);
                let (mode, stores) = match mode % 5 {
                    0 => ("", true),
                    1 => (" ME", !present),
                    2 => (" MR", present),
                    3 => (" MA", present),
                    _ => (" MP", present),
                };
                let line = format!("ms {key} {} F6{mode}", value.len());
                self.expect(&line, Some(&value), if stores { b"HD\r\n" } else { b"NS\r\n" });
                if stores {
                    let item = self.items.entry(key).or_insert(Item { flags: 6, value: Vec::new() });
                    match mode {
                        " MA" => item.value.extend_from_slice(&value),
                        " MP" => item.value = [&value[..], &item.value].concat(),
                        _ => *item = Item { flags: 6, value },
                    }
                }
            }
            Command::MetaDelete { key, quiet } => {
                let found = self.items.remove(&name(key)).is_some();
                let reply: &[u8] = match (found, quiet) {
                    (true, true) => b"",
                    (true, false) => b"HD\r\n",
                    (false, _) => b"NF\r\n",
                };
                self.expect(&format!("md {}{}", name(key), if quiet { " q" } else { "" }), None, reply);
            }
            Command::MetaCount { key, delta, up, vivify } => {
                let mut line = format!("ma {} v D{delta} {}", name(key), if up { "MI" } else { "MD" });
                if let Some(initial) = vivify {
                    line.push_str(&format!(" N0 J{initial}"));
                }
                let value = |number: u64| format!("VA {}\r\n{number}\r\n", number.to_string().len());
                let reply = match (self.items.get_mut(&name(key)), vivify) {
                    (Some(item), _) => match apply_delta(item, delta, up) {
                        Some(new) => value(new),
                        None => "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n".to_owned(),
                    },
                    (None, Some(initial)) => {
                        let item = Item { flags: 0, value: initial.to_string().into_bytes() };
                        self.items.insert(name(key), item);
                        value(initial)
                    }
                    (None, None) => "NF\r\n".to_owned(),
                };
                self.expect(&line, None, reply.as_bytes());
            }
            Command::Flush => {
                self.items.clear();
                self.expect("flush_all", None, b"OK\r\n");
            }
            Command::Noop => self.expect("mn", None, b"MN\r\n"),
        }
    }

    fn concatenate(&mut self, verb: &str, key: u8, value: &[u8]) {
        let (name, length) = (name(key), value.len());
        let found = self.items.contains_key(&name);
        let reply: &[u8] = if found { b"STORED\r\n" } else { b"NOT_STORED\r\n" };
        self.expect(&format!("{verb} {name} 9 0 {length}"), Some(value), reply);
        if let Some(item) = self.items.get_mut(&name) {
            match verb {
                "append" => item.value.extend_from_slice(value),
                _ => item.value = [value, &item.value].concat(),
            }
        }
    }
}

libfuzzer_sys::fuzz_target!(|input: (u16, Vec<Command>)| {
    let mut model = Model::default();
    input.1.into_iter().for_each(|command| model.execute(command));
    let (replies, open) = converse(model.input.chunks(usize::from(input.0) + 1));
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        open && replies == model.replies,
        "input {}\nreplies {}\nexpected {}",
        shown(&model.input),
        shown(&replies),
        shown(&model.replies)
    );
});
