//! Sessions of the text protocol, compared with a model: a map of the stored items. With little
//! memory, items may be missing that the model has, and be refused, but none is another one than
//! what was stored last.
#![no_main]

mod command;
mod item;

use std::collections::HashMap;

use fuzz::{FuzzedConnection, FuzzedServer, PASSWORD, Setup, USER};

use crate::command::{Between, Command};
use crate::item::{Item, apply_delta, got, meta_got};

/// The longest key, in bytes.
const LONGEST_KEY: usize = 250;
/// Keys of items that only fill the memory.
const FILLERS: u8 = 128;
/// The longest value of those that share a segment of a small memory, in bytes. Longer ones have
/// pages of their own.
const SHARED: u16 = 4 << 10;
const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
const NOT_A_NUMBER: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";

/// One of sixteen keys, of one to 250 bytes.
fn name(key: u8) -> String {
    let key = usize::from(key % 16);
    let length = [1, 1, 2, 3, 8, 9, 30, 31, 64, 100, 127, 128, 200, 248, 249, LONGEST_KEY][key];
    let letter = (b'a' + key as u8) as char;
    letter.to_string().repeat(length)
}

struct Model<'a> {
    connection: FuzzedConnection<'a>,
    setup: Setup,
    chunk_size: usize,
    items: HashMap<String, Item>,
}

/// A command and what is expected of it.
struct Storing<'a> {
    line: String,
    key: String,
    block: &'a [u8],
    reply: &'a [u8],
    /// The item after it; `None` if it stays as it is.
    new: Option<Item>,
    /// Whether the server deletes the old item when it refuses to store the new one.
    removes_refused: bool,
}

impl Model<'_> {
    /// Whether items may be missing.
    fn evicts(&self) -> bool {
        self.setup.is_small() && !self.setup.keeps_items()
    }

    /// Whether an item may be refused.
    fn may_refuse(&self) -> bool {
        self.setup.is_small() || self.setup.small_items()
    }

    /// Executes a command and returns the reply.
    fn request(&mut self, line: &str, block: Option<&[u8]>) -> Vec<u8> {
        let mut input = [line.as_bytes(), b"\r\n"].concat();
        if let Some(block) = block {
            input.extend_from_slice(block);
            input.extend_from_slice(b"\r\n");
        }
        let reply = self.connection.send(&input, self.chunk_size);
        assert!(self.connection.is_open(), "{line} has closed the connection: {}", shown(&reply));
        reply
    }

    fn expect(&mut self, line: &str, block: Option<&[u8]>, expected: &[u8]) {
        let reply = self.request(line, block);
        assert!(reply == expected, "{line}: {} instead of {}", shown(&reply), shown(expected));
    }

    /// Removes an item that the server has evicted. Until memory is needed, the others stay.
    fn notice_eviction(&mut self, key: &str) {
        if self.evicts() && self.request(&format!("mg {key}"), None) == b"EN\r\n" {
            self.items.remove(key);
        }
    }

    fn present(&mut self, key: &str) -> bool {
        self.notice_eviction(key);
        self.items.contains_key(key)
    }

    /// Takes the item that the server has, which must be one of these, or none.
    fn settle(&mut self, key: &str, allowed: &[Option<&Item>]) {
        let reply = self.request(&format!("get {key}"), None);
        let found = allowed.iter().find(|item| reply == got(key, item.as_deref(), None));
        match found {
            None => panic!("{key} is {} instead of one of {}", shown(&reply), allowed.len()),
            Some(Some(item)) => drop(self.items.insert(key.to_owned(), (*item).clone())),
            Some(None) => drop(self.items.remove(key)),
        }
    }

    fn store(&mut self, storing: Storing<'_>) {
        let Storing { line, key, block, reply, new, removes_refused } = storing;
        let old = self.items.get(&key).cloned();
        let actual = self.request(&line, Some(block));
        if actual == reply {
            let silent = reply.is_empty() && self.may_refuse();
            match new {
                Some(new) if silent => self.settle(&key, &[Some(&new), None]),
                Some(new) => drop(self.items.insert(key, new)),
                None => {}
            }
            return;
        }
        assert!(self.is_refusal(&actual), "{line}: {} instead of {}", shown(&actual), shown(reply));
        match removes_refused {
            true => self.settle(&key, &[None]),
            false if self.evicts() => self.settle(&key, &[old.as_ref(), None]),
            false => self.settle(&key, &[old.as_ref()]),
        }
    }

    fn is_refusal(&self, reply: &[u8]) -> bool {
        self.may_refuse() && reply.starts_with(b"SERVER_ERROR ") && reply.ends_with(b"\r\n")
    }

    /// `set`, `add` or `replace`.
    fn store_if(&mut self, verb: &str, key: u8, flags: u16, value: &[u8], quiet: bool) {
        let key = name(key);
        let stores = match verb {
            "add" => !self.present(&key),
            "replace" => self.present(&key),
            _ => true,
        };
        let noreply = if quiet { " noreply" } else { "" };
        self.store(Storing {
            line: format!("{verb} {key} {flags} 0 {}{noreply}", value.len()),
            key,
            block: value,
            reply: match (quiet, stores) {
                (true, _) => b"",
                (false, true) => b"STORED\r\n",
                (false, false) => b"NOT_STORED\r\n",
            },
            new: stores.then(|| Item { flags, value: value.to_vec() }),
            removes_refused: verb == "set",
        });
    }

    /// `append` or `prepend`.
    fn concatenate(&mut self, verb: &str, key: u8, value: &[u8]) {
        let key = name(key);
        self.notice_eviction(&key);
        let new = self.items.get(&key).map(|item| match verb {
            "append" => Item { value: [&item.value, value].concat(), ..*item },
            _ => Item { value: [value, &item.value].concat(), ..*item },
        });
        self.store(Storing {
            line: format!("{verb} {key} 9 0 {}", value.len()),
            key,
            block: value,
            reply: if new.is_some() { b"STORED\r\n" } else { b"NOT_STORED\r\n" },
            new,
            removes_refused: false,
        });
    }

    /// Gets the CAS unique of the item with this key. `None` if the key is not stored.
    fn read_cas(&mut self, key: &str, meta: bool) -> Option<u64> {
        if !self.present(key) {
            return None;
        }
        let item = self.items[key].clone();
        if meta {
            let reply = self.request(&format!("mg {key} c"), None);
            let text = String::from_utf8(reply).expect("a reply without a value is text");
            let cas = text.strip_prefix("HD c").and_then(|text| text.strip_suffix("\r\n"));
            return Some(cas.and_then(|cas| cas.parse().ok()).expect("a CAS unique"));
        }
        let reply = self.request(&format!("gets {key}"), None);
        let line = reply.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let cas = line.rsplit(|byte| *byte == b' ').next().and_then(|cas| str::from_utf8(cas).ok());
        let cas = cas.and_then(|cas| cas.parse().ok()).expect("a CAS unique");
        assert_eq!(shown(&reply), shown(&got(key, Some(&item), Some(cas))));
        Some(cas)
    }

    fn compare_and_swap(&mut self, number: u8, value: Vec<u8>, between: Between, meta: bool) {
        let key = name(number);
        if between == Between::Counted {
            self.execute(Command::Number { key: number, number: 7 });
        }
        let Some(mut cas) = self.read_cas(&key, meta) else {
            return self.expect(&format!("cas {key} 0 0 1 1"), Some(b"x"), b"NOT_FOUND\r\n");
        };
        let before = self.items.get(&key).cloned();
        match between {
            Between::Nothing => {}
            Between::Touched => self.expect(&format!("touch {key} 1000"), None, b"TOUCHED\r\n"),
            Between::Set => {
                let Item { flags, value } = self.items[&key].clone();
                self.store_if("set", number, flags, &value, false);
            }
            Between::Counted => self.execute(Command::Count { key: number, amount: 1, up: true }),
            Between::Appended => self.concatenate("append", number, b"0"),
            Between::Deleted => {
                self.items.remove(&key);
                self.expect(&format!("delete {key}"), None, b"DELETED\r\n");
            }
            Between::Miscounted => cas = cas.wrapping_add(1),
        }
        let stores = match between {
            Between::Nothing | Between::Touched => true,
            Between::Counted | Between::Appended => self.items.get(&key) == before.as_ref(),
            Between::Set | Between::Deleted | Between::Miscounted => false,
        };
        let present = self.present(&key);
        let (reply, meta_reply): (&[u8], &[u8]) = match (present, stores) {
            (false, _) => (b"NOT_FOUND\r\n", b"NF\r\n"),
            (true, true) => (b"STORED\r\n", b"HD\r\n"),
            (true, false) => (b"EXISTS\r\n", b"EX\r\n"),
        };
        self.store(Storing {
            line: match meta {
                true => format!("ms {key} {} F4 C{cas}", value.len()),
                false => format!("cas {key} 4 0 {} {cas}", value.len()),
            },
            key: key.clone(),
            block: &value,
            reply: if meta { meta_reply } else { reply },
            new: (present && stores).then(|| Item { flags: 4, value: value.clone() }),
            removes_refused: meta,
        });
        if present && stores && self.items.get(&key).is_some_and(|item| item.flags == 4) {
            let new = self.read_cas(&key, meta);
            assert!(new != Some(cas), "a CAS unique stays after a change");
        }
    }

    /// A change of a number. The model's item has it already, `old` is the one before.
    fn count(&mut self, line: &str, key: &str, old: Option<Item>, expected: &[u8]) {
        let actual = self.request(line, None);
        if actual != expected {
            assert!(self.is_refusal(&actual), "{line}: {} not {}", shown(&actual), shown(expected));
            self.settle(key, &[old.as_ref(), None]);
        }
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Set { key, flags, value, quiet } => self.store_if("set", key, flags, &value, quiet),
            Command::Repeat { key, byte, length } => {
                self.store_if("set", key, 1, &vec![byte; usize::from(length) * 2], false);
            }
            Command::Fill { key, count, length } => {
                // Many that share segments, which have to be moved, or a few that don't.
                let shares = length % 2 == 0;
                let length = if shares { length % SHARED } else { length };
                let count = if shares { count % FILLERS } else { count % 32 };
                for number in key..=key.saturating_add(count) {
                    let number = number % FILLERS;
                    let (key, value) = (format!("filler-{number}"), vec![number; usize::from(length)]);
                    self.store(Storing {
                        line: format!("set {key} 8 0 {length}"),
                        key,
                        block: &value,
                        reply: b"STORED\r\n",
                        new: Some(Item { flags: 8, value: value.clone() }),
                        removes_refused: true,
                    });
                }
            }
            Command::Add { key, value } => self.store_if("add", key, 2, &value, false),
            Command::Replace { key, value } => self.store_if("replace", key, 3, &value, false),
            Command::Append { key, value } => self.concatenate("append", key, &value),
            Command::Prepend { key, value } => self.concatenate("prepend", key, &value),
            Command::Cas { key, value, between, meta } => self.compare_and_swap(key, value, between, meta),
            Command::Get { keys } => {
                if keys.is_empty() {
                    return;
                }
                let names: Vec<String> = keys.iter().map(|key| name(*key)).collect();
                names.iter().for_each(|name| self.notice_eviction(name));
                let mut reply: Vec<u8> = Vec::new();
                for name in &names {
                    reply.extend_from_slice(&got(name, self.items.get(name), None));
                    reply.truncate(reply.len() - b"END\r\n".len());
                }
                reply.extend_from_slice(b"END\r\n");
                self.expect(&format!("get {}", names.join(" ")), None, &reply);
            }
            Command::SetExpired { key } => {
                let reply = self.request(&format!("set {} 0 -1 1", name(key)), Some(b"x"));
                assert!(reply == b"STORED\r\n" || self.is_refusal(&reply), "{}", shown(&reply));
                self.items.remove(&name(key));
            }
            Command::Delete { key } => {
                let found = self.present(&name(key));
                self.items.remove(&name(key));
                let reply: &[u8] = if found { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" };
                self.expect(&format!("delete {}", name(key)), None, reply);
            }
            Command::Number { key, number } => {
                self.store_if("set", key, 5, number.to_string().as_bytes(), false);
            }
            Command::Count { key, amount, up } => {
                let key = name(key);
                self.notice_eviction(&key);
                let old = self.items.get(&key).cloned();
                let reply = match self.items.get_mut(&key) {
                    None => "NOT_FOUND\r\n".to_owned(),
                    Some(item) => match apply_delta(item, amount, up) {
                        Some(new) => format!("{new}\r\n"),
                        None => NOT_A_NUMBER.to_owned(),
                    },
                };
                let verb = if up { "incr" } else { "decr" };
                self.count(&format!("{verb} {key} {amount}"), &key, old, reply.as_bytes());
            }
            Command::Touch { key } => {
                let found = self.present(&name(key));
                let reply: &[u8] = if found { b"TOUCHED\r\n" } else { b"NOT_FOUND\r\n" };
                self.expect(&format!("touch {} 1000", name(key)), None, reply);
            }
            Command::MetaGet { key, value, flags, size } => {
                self.notice_eviction(&name(key));
                let mut line = format!("mg {}", name(key));
                let wanted = [(flags, " f"), (size, " s"), (value, " v")];
                wanted.iter().filter(|(wanted, _)| *wanted).for_each(|(_, flag)| line.push_str(flag));
                let reply = match self.items.get(&name(key)) {
                    None => b"EN\r\n".to_vec(),
                    Some(item) => meta_got(item, value, flags, size),
                };
                self.expect(&line, None, &reply);
            }
            Command::MetaSet { key, value, mode } => {
                let key = name(key);
                let present = self.present(&key);
                let (mode, stores) = match mode % 5 {
                    0 => ("", true),
                    1 => (" ME", !present),
                    2 => (" MR", present),
                    3 => (" MA", present),
                    _ => (" MP", present),
                };
                let old = self.items.get(&key).cloned().unwrap_or(Item { flags: 6, value: Vec::new() });
                let new = match mode {
                    " MA" => Item { value: [&old.value[..], &value].concat(), ..old },
                    " MP" => Item { value: [&value[..], &old.value].concat(), ..old },
                    _ => Item { flags: 6, value: value.clone() },
                };
                self.store(Storing {
                    line: format!("ms {key} {} F6{mode}", value.len()),
                    key,
                    block: &value,
                    reply: if stores { b"HD\r\n" } else { b"NS\r\n" },
                    new: stores.then_some(new),
                    removes_refused: true,
                });
            }
            Command::MetaDelete { key, quiet } => {
                let found = self.present(&name(key));
                self.items.remove(&name(key));
                let reply: &[u8] = match (found, quiet) {
                    (true, true) => b"",
                    (true, false) => b"HD\r\n",
                    (false, _) => b"NF\r\n",
                };
                self.expect(&format!("md {}{}", name(key), if quiet { " q" } else { "" }), None, reply);
            }
            Command::MetaCount { key, delta, up, vivify } => {
                let key = name(key);
                self.notice_eviction(&key);
                let mut line = format!("ma {key} v D{delta} {}", if up { "MI" } else { "MD" });
                if let Some(initial) = vivify {
                    line.push_str(&format!(" N0 J{initial}"));
                }
                let value = |number: u64| format!("VA {}\r\n{number}\r\n", number.to_string().len());
                let old = self.items.get(&key).cloned();
                let reply = match (self.items.get_mut(&key), vivify) {
                    (Some(item), _) => apply_delta(item, delta, up).map_or(NOT_A_NUMBER.to_owned(), value),
                    (None, Some(initial)) => {
                        let item = Item { flags: 0, value: initial.to_string().into_bytes() };
                        self.items.insert(key.clone(), item);
                        value(initial)
                    }
                    (None, None) => "NF\r\n".to_owned(),
                };
                self.count(&line, &key, old, reply.as_bytes());
            }
            Command::TooLongKey { verb } => {
                let key = "k".repeat(LONGEST_KEY + 1);
                let lines = [
                    ("get", "", None),
                    ("gets", "", None),
                    ("delete", "", None),
                    ("incr", " 1", None),
                    ("touch", " 0", None),
                    ("mg", " v", None),
                    ("md", "", None),
                    ("ma", "", None),
                    ("set", " 0 0 4", Some(&b"get "[..])),
                    ("append", " 0 0 4", Some(b"get ")),
                    ("cas", " 0 0 4 1", Some(b"get ")),
                    ("ms", " 4", Some(b"get ")),
                ];
                let (verb, rest, block) = lines[usize::from(verb) % lines.len()];
                // `ma` answers as for a flag, like memcached 1.6.45.
                let flag: &[u8] = b"CLIENT_ERROR invalid or duplicate flag\r\n";
                let expected = if verb == "ma" { flag } else { BAD_FORMAT };
                self.expect(&format!("{verb} {key}{rest}"), block, expected);
            }
            Command::Flush => {
                self.items.clear();
                self.expect("flush_all", None, b"OK\r\n");
            }
            Command::Noop => self.expect("mn", None, b"MN\r\n"),
        }
    }

    /// Each item is what was stored last, or was evicted.
    fn check_all(&mut self) {
        let keys: Vec<String> = self.items.keys().cloned().collect();
        for key in keys {
            let item = self.items[&key].clone();
            match self.evicts() {
                true => self.settle(&key, &[Some(&item), None]),
                false => self.settle(&key, &[Some(&item)]),
            }
        }
    }
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(400)]).into_owned()
}

libfuzzer_sys::fuzz_target!(|input: (u8, u16, Vec<Command>)| {
    // With CAS uniques.
    let setup = Setup::new(input.0 & !(1 << 5));
    let server = FuzzedServer::new(setup);
    let connection = server.connect();
    let chunk_size = usize::from(input.1) + 1;
    let mut model = Model { connection, setup, chunk_size, items: HashMap::new() };
    if setup.users() {
        model.expect("get a", None, b"CLIENT_ERROR unauthenticated\r\n");
        let credentials = format!("{USER} {PASSWORD}");
        let line = format!("set login 0 0 {}", credentials.len());
        model.expect(&line, Some(credentials.as_bytes()), b"STORED\r\n");
    }
    input.2.into_iter().for_each(|command| model.execute(command));
    model.check_all();
});
