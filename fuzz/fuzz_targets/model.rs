//! Whole sessions of text beside a model: a map with what was stored.
#![no_main]

use std::collections::HashMap;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use servers::memcached::fuzzing::converse;

#[derive(Debug, Arbitrary)]
enum Step {
    Set { key: u8, flags: u16, value: Vec<u8>, quiet: bool },
    Repeat { key: u8, byte: u8, length: u16 },
    Add { key: u8, value: Vec<u8> },
    Replace { key: u8, value: Vec<u8> },
    Append { key: u8, value: Vec<u8> },
    Prepend { key: u8, value: Vec<u8> },
    Cas { key: u8, value: Vec<u8>, stale: bool },
    Get { keys: Vec<u8> },
    Gone { key: u8 },
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

fn name(key: u8) -> String {
    let key = key % 12;
    format!("key-{key}{}", "x".repeat(usize::from(key) * 20))
}

/// What memcached takes for a number.
fn number(value: &[u8]) -> Option<u64> {
    // What is no text is no digit and no space either.
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

fn counted(item: &mut Item, amount: u64, up: bool) -> Option<u64> {
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
    question: Vec<u8>,
    answer: Vec<u8>,
}

impl Model {
    fn ask(&mut self, line: &str, value: Option<&[u8]>, answer: &[u8]) {
        self.question.extend_from_slice(line.as_bytes());
        self.question.extend_from_slice(b"\r\n");
        if let Some(value) = value {
            self.question.extend_from_slice(value);
            self.question.extend_from_slice(b"\r\n");
        }
        self.answer.extend_from_slice(answer);
    }

    fn store(&mut self, verb: &str, key: u8, flags: u16, value: &[u8], stores: bool) {
        let (key, length) = (name(key), value.len());
        let answer: &[u8] = if stores { b"STORED\r\n" } else { b"NOT_STORED\r\n" };
        self.ask(&format!("{verb} {key} {flags} 0 {length}"), Some(value), answer);
        if stores {
            self.items.insert(key, Item { flags, value: value.to_vec() });
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Set { key, flags, value, quiet } => {
                let (key, length) = (name(key), value.len());
                let (word, answer) = if quiet { (" noreply", &b""[..]) } else { ("", &b"STORED\r\n"[..]) };
                self.ask(&format!("set {key} {flags} 0 {length}{word}"), Some(&value), answer);
                self.items.insert(key, Item { flags, value });
            }
            Step::Repeat { key, byte, length } => {
                self.store("set", key, 1, &vec![byte; usize::from(length) * 2], true);
            }
            Step::Add { key, value } => {
                let stores = !self.items.contains_key(&name(key));
                self.store("add", key, 2, &value, stores);
            }
            Step::Replace { key, value } => {
                let stores = self.items.contains_key(&name(key));
                self.store("replace", key, 3, &value, stores);
            }
            Step::Append { key, value } => self.join("append", key, &value),
            Step::Prepend { key, value } => self.join("prepend", key, &value),
            Step::Cas { key, value, stale } => {
                // The number is asked for by the meta protocol, and given back or not.
                let (key, length) = (name(key), value.len());
                let line = format!("cas {key} 4 0 {length} 18446744073709551615");
                let answer: &[u8] =
                    if self.items.contains_key(&key) { b"EXISTS\r\n" } else { b"NOT_FOUND\r\n" };
                if !stale {
                    self.ask(&line, Some(&value), answer);
                }
            }
            Step::Get { keys } => {
                if keys.is_empty() {
                    return;
                }
                let names: Vec<String> = keys.iter().map(|key| name(*key)).collect();
                let mut answer = Vec::new();
                for name in &names {
                    if let Some(item) = self.items.get(name) {
                        answer.extend_from_slice(
                            format!("VALUE {name} {} {}\r\n", item.flags, item.value.len()).as_bytes(),
                        );
                        answer.extend_from_slice(&item.value);
                        answer.extend_from_slice(b"\r\n");
                    }
                }
                answer.extend_from_slice(b"END\r\n");
                self.ask(&format!("get {}", names.join(" ")), None, &answer);
            }
            Step::Gone { key } => {
                self.ask(&format!("set {} 0 -1 1", name(key)), Some(b"x"), b"STORED\r\n");
                self.items.remove(&name(key));
            }
            Step::Delete { key } => {
                let found = self.items.remove(&name(key)).is_some();
                self.ask(
                    &format!("delete {}", name(key)),
                    None,
                    if found { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" },
                );
            }
            Step::Number { key, number } => self.store("set", key, 5, number.to_string().as_bytes(), true),
            Step::Count { key, amount, up } => {
                let answer = match self.items.get_mut(&name(key)) {
                    None => "NOT_FOUND\r\n".to_owned(),
                    Some(item) => match counted(item, amount, up) {
                        Some(new) => format!("{new}\r\n"),
                        None => "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n".to_owned(),
                    },
                };
                let verb = if up { "incr" } else { "decr" };
                self.ask(&format!("{verb} {} {amount}", name(key)), None, answer.as_bytes());
            }
            Step::Touch { key } => {
                let found = self.items.contains_key(&name(key));
                self.ask(
                    &format!("touch {} 1000", name(key)),
                    None,
                    if found { b"TOUCHED\r\n" } else { b"NOT_FOUND\r\n" },
                );
            }
            Step::MetaGet { key, value, flags, size } => {
                let mut line = format!("mg {}", name(key));
                let wanted = [(flags, " f"), (size, " s"), (value, " v")];
                wanted.iter().filter(|(wanted, _)| *wanted).for_each(|(_, flag)| line.push_str(flag));
                let answer = match self.items.get(&name(key)) {
                    None => b"EN\r\n".to_vec(),
                    Some(item) => {
                        let mut answer =
                            if value { format!("VA {}", item.value.len()) } else { "HD".to_owned() };
                        if flags {
                            answer.push_str(&format!(" f{}", item.flags));
                        }
                        if size {
                            answer.push_str(&format!(" s{}", item.value.len()));
                        }
                        let mut answer = (answer + "\r\n").into_bytes();
                        if value {
                            answer.extend_from_slice(&item.value);
                            answer.extend_from_slice(b"\r\n");
                        }
                        answer
                    }
                };
                self.ask(&line, None, &answer);
            }
            Step::MetaSet { key, value, mode } => {
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
                self.ask(&line, Some(&value), if stores { b"HD\r\n" } else { b"NS\r\n" });
                if stores {
                    let item = self.items.entry(key).or_insert(Item { flags: 6, value: Vec::new() });
                    match mode {
                        " MA" => item.value.extend_from_slice(&value),
                        " MP" => item.value = [&value[..], &item.value].concat(),
                        _ => *item = Item { flags: 6, value },
                    }
                }
            }
            Step::MetaDelete { key, quiet } => {
                let found = self.items.remove(&name(key)).is_some();
                let answer: &[u8] = match (found, quiet) {
                    (true, true) => b"",
                    (true, false) => b"HD\r\n",
                    (false, _) => b"NF\r\n",
                };
                self.ask(&format!("md {}{}", name(key), if quiet { " q" } else { "" }), None, answer);
            }
            Step::MetaCount { key, delta, up, vivify } => {
                let mut line = format!("ma {} v D{delta} {}", name(key), if up { "MI" } else { "MD" });
                if let Some(initial) = vivify {
                    line.push_str(&format!(" N0 J{initial}"));
                }
                let value = |number: u64| format!("VA {}\r\n{number}\r\n", number.to_string().len());
                let answer = match (self.items.get_mut(&name(key)), vivify) {
                    (Some(item), _) => match counted(item, delta, up) {
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
                self.ask(&line, None, answer.as_bytes());
            }
            Step::Flush => {
                self.items.clear();
                self.ask("flush_all", None, b"OK\r\n");
            }
            Step::Noop => self.ask("mn", None, b"MN\r\n"),
        }
    }

    fn join(&mut self, verb: &str, key: u8, value: &[u8]) {
        let (name, length) = (name(key), value.len());
        let found = self.items.contains_key(&name);
        let answer: &[u8] = if found { b"STORED\r\n" } else { b"NOT_STORED\r\n" };
        self.ask(&format!("{verb} {name} 9 0 {length}"), Some(value), answer);
        if let Some(item) = self.items.get_mut(&name) {
            match verb {
                "append" => item.value.extend_from_slice(value),
                _ => item.value = [value, &item.value].concat(),
            }
        }
    }
}

libfuzzer_sys::fuzz_target!(|input: (u16, Vec<Step>)| {
    let mut model = Model::default();
    input.1.into_iter().for_each(|step| model.step(step));
    let (got, open) = converse(model.question.chunks(usize::from(input.0) + 1));
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        open && got == model.answer,
        "asked {}\ngot {}\nnot {}",
        shown(&model.question),
        shown(&got),
        shown(&model.answer)
    );
});
