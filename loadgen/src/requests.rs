//! Requests as bytes, in the text protocol.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::Distribution;
use crate::popularity::Picker;
use crate::value::{Expected, fill};
use crate::workload::{Operation, Workload};

/// The largest value that is ever asked for.
const VALUE_MAX: f64 = (1 << 30) as f64;
/// The longest key that the protocol takes.
const KEY_MAX: usize = 250;

/// A request that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) operation: Operation,
    /// The record, of several the first.
    pub(crate) record: u64,
    /// How many keys.
    pub(crate) keys: u16,
}

/// Writes the requests of a workload.
#[derive(Debug)]
pub(crate) struct Requests {
    workload: Workload,
    steps: Vec<(f64, Operation)>,
    digits: usize,
    picker: Picker,
    expected: Expected,
    key: Vec<u8>,
}

impl Requests {
    /// `step` and `steps`: which of several generators of this workload it is.
    pub(crate) fn new(workload: &Workload, seed: u64, step: u64, steps: u64) -> Self {
        Self {
            steps: workload.mix.steps(),
            digits: workload.records.saturating_sub(1).to_string().len(),
            picker: Picker::new(workload.popularity, workload.records, seed, step, steps),
            workload: workload.clone(),
            expected: Expected::default(),
            key: Vec::new(),
        }
    }

    pub(crate) fn random(&mut self) -> &mut SmallRng {
        self.picker.random()
    }

    pub(crate) fn verifies(&self) -> bool {
        self.workload.verify
    }

    /// Appends the next request.
    pub(crate) fn next(&mut self, out: &mut Vec<u8>) -> Asked {
        let operation = match self.steps[..] {
            [(_, only)] => only,
            _ => {
                let point = self.picker.random().random::<f64>();
                let step = self.steps.iter().find(|(sum, _)| point < *sum);
                step.map_or(Operation::Get, |(_, operation)| *operation)
            }
        };
        let record = match operation {
            Operation::Set | Operation::MetaSet => self.picker.pick_to_store(),
            _ => self.picker.pick(),
        };
        let mut keys = 1;
        match operation {
            Operation::Get => {
                out.extend_from_slice(b"get ");
                self.write_key(record, out);
                while keys < self.workload.multiget {
                    keys += 1;
                    out.push(b' ');
                    let other = self.picker.pick();
                    self.write_key(other, out);
                }
                out.extend_from_slice(b"\r\n");
            }
            Operation::Set => self.set(record, out),
            Operation::Delete => self.line(b"delete ", record, b"\r\n", out),
            Operation::Touch => {
                out.extend_from_slice(b"touch ");
                self.write_key(record, out);
                out.push(b' ');
                number(self.workload.ttl.as_secs(), out);
                out.extend_from_slice(b"\r\n");
            }
            Operation::Cas => self.line(b"gets ", record, b"\r\n", out),
            Operation::Incr => {
                out.extend_from_slice(b"incr ");
                self.write_counter_key(record, out);
                out.extend_from_slice(b" 1\r\n");
            }
            Operation::MetaGet => self.line(b"mg ", record, b" v k\r\n", out),
            Operation::MetaSet => {
                let size = self.size();
                out.extend_from_slice(b"ms ");
                self.write_key(record, out);
                out.push(b' ');
                number(size as u64, out);
                if !self.workload.ttl.is_zero() {
                    out.extend_from_slice(b" T");
                    number(self.workload.ttl.as_secs(), out);
                }
                out.extend_from_slice(b"\r\n");
                self.value(record, size, out);
            }
        }
        Asked { operation, record, keys }
    }

    fn line(&mut self, before: &[u8], record: u64, after: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(before);
        self.write_key(record, out);
        out.extend_from_slice(after);
    }

    fn size(&mut self) -> usize {
        self.workload.value.draw(self.picker.random()).min(VALUE_MAX) as usize
    }

    /// Appends a `set` of a record.
    pub(crate) fn set(&mut self, record: u64, out: &mut Vec<u8>) {
        self.store(b"set ", record, None, out);
    }

    /// Appends a `cas` of a record.
    pub(crate) fn cas(&mut self, record: u64, unique: u64, out: &mut Vec<u8>) {
        self.store(b"cas ", record, Some(unique), out);
    }

    fn store(&mut self, verb: &[u8], record: u64, unique: Option<u64>, out: &mut Vec<u8>) {
        let size = self.size();
        out.extend_from_slice(verb);
        self.write_key(record, out);
        out.extend_from_slice(b" 0 ");
        number(self.workload.ttl.as_secs(), out);
        out.push(b' ');
        number(size as u64, out);
        if let Some(unique) = unique {
            out.push(b' ');
            number(unique, out);
        }
        out.extend_from_slice(b"\r\n");
        self.value(record, size, out);
    }

    /// Appends a `set` of a record's counter.
    pub(crate) fn set_counter(&mut self, record: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(b"set ");
        self.write_counter_key(record, out);
        out.extend_from_slice(b" 0 0 1\r\n0\r\n");
    }

    pub(crate) fn has_counters(&self) -> bool {
        self.workload.mix.has(Operation::Incr)
    }

    fn value(&mut self, record: u64, size: usize, out: &mut Vec<u8>) {
        if self.workload.verify {
            let mut key = std::mem::take(&mut self.key);
            key.clear();
            self.write_key(record, &mut key);
            self.expected.begin(&key, size);
            self.expected.write(size, out);
            self.key = key;
        } else {
            fill(size, out);
        }
        out.extend_from_slice(b"\r\n");
    }

    fn write_counter_key(&self, record: u64, out: &mut Vec<u8>) {
        out.push(b'n');
        let start = out.len();
        self.write_key(record, out);
        out.truncate(start + KEY_MAX - 1);
    }

    /// Whether this is a record's key.
    pub(crate) fn is_key_of(&mut self, record: u64, key: &[u8]) -> bool {
        let mut own = std::mem::take(&mut self.key);
        own.clear();
        self.write_key(record, &mut own);
        let same = own == key;
        self.key = own;
        same
    }

    /// A record's key: its number with zeros before it, as long as the record's own draw says.
    pub(crate) fn write_key(&self, record: u64, out: &mut Vec<u8>) {
        let drawn = match self.workload.key {
            Distribution::Fixed(size) => size,
            // The record is the seed, so that a record's key is the same each time.
            ref other => other.draw(&mut SmallRng::seed_from_u64(record)),
        };
        let mut digits = itoa::Buffer::new();
        let text = digits.format(record).as_bytes();
        let size = (drawn as usize).clamp(self.digits.max(text.len()), KEY_MAX);
        out.resize(out.len() + size - text.len(), b'0');
        out.extend_from_slice(text);
    }
}

fn number(number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(workload: &Workload) -> Requests {
        Requests::new(workload, 1, 0, 1)
    }

    fn key(workload: &Workload, record: u64) -> Vec<u8> {
        let mut out = Vec::new();
        requests(workload).write_key(record, &mut out);
        out
    }

    #[test]
    fn a_record_has_one_key_and_two_records_never_share_one() {
        let workload = Workload { key: Distribution::EtcKey, records: 3000, ..Workload::default() };
        let keys: std::collections::HashSet<_> = (0..3000).map(|record| key(&workload, record)).collect();
        assert_eq!(keys.len(), 3000);
        assert_eq!(key(&workload, 17), key(&workload, 17));
    }

    #[test]
    fn keys_have_room_for_their_number_and_at_most_250_bytes() {
        let short = Workload { key: Distribution::Fixed(1.0), records: 1000, ..Workload::default() };
        assert_eq!(key(&short, 7), b"007");
        let long = Workload { key: Distribution::Fixed(9999.0), ..Workload::default() };
        assert_eq!(key(&long, 7).len(), 250);
    }

    #[test]
    fn a_set_announces_the_bytes_that_it_sends() {
        for verify in [false, true] {
            let workload = Workload { value: Distribution::Fixed(3000.0), verify, ..Workload::default() };
            let mut out = Vec::new();
            requests(&workload).set(5, &mut out);
            let line = out.iter().position(|&byte| byte == b'\n').unwrap();
            assert!(out[..line].ends_with(b" 0 0 3000\r"));
            assert_eq!(out.len() - line - 1, 3002);
        }
    }

    #[test]
    fn operations_come_by_their_weights_and_as_the_protocol_has_them() {
        let workload = Workload {
            mix: "get=4,set=3,delete=1,touch=1,cas=1,incr=1,mg=2,ms=2".parse().unwrap(),
            key: Distribution::Fixed(4.0),
            value: Distribution::Fixed(2.0),
            records: 1,
            multiget: 2,
            ttl: std::time::Duration::from_secs(60),
            ..Workload::default()
        };
        let mut requests = requests(&workload);
        let mut seen = std::collections::HashMap::<Operation, (u32, Vec<u8>)>::new();
        for _ in 0..15_000 {
            let mut out = Vec::new();
            let asked = requests.next(&mut out);
            let entry = seen.entry(asked.operation).or_default();
            *entry = (entry.0 + 1, out);
        }
        for (operation, expected) in [
            (Operation::Get, &b"get 0000 0000\r\n"[..]),
            (Operation::Set, b"set 0000 0 60 2\r\nLL\r\n"),
            (Operation::Delete, b"delete 0000\r\n"),
            (Operation::Touch, b"touch 0000 60\r\n"),
            (Operation::Cas, b"gets 0000\r\n"),
            (Operation::Incr, b"incr n0000 1\r\n"),
            (Operation::MetaGet, b"mg 0000 v k\r\n"),
            (Operation::MetaSet, b"ms 0000 2 T60\r\nLL\r\n"),
        ] {
            let (count, text) = &seen[&operation];
            assert_eq!(text, expected, "{operation:?}");
            let share = f64::from(*count) / 15_000.0 / workload.mix.share(operation);
            assert!((0.9..1.1).contains(&share), "{operation:?}: {share}");
        }
        let mut out = Vec::new();
        requests.cas(0, 77, &mut out);
        assert_eq!(out, b"cas 0000 0 60 2 77\r\nLL\r\n");
    }
}
