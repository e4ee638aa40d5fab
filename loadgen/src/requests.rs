//! Requests as bytes.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use slab::Slab;

use crate::Distribution;
use crate::popularity::Picker;
use crate::text::Details;
use crate::trace::{Traced, TracedRequests};
use crate::value::{Expected, fill};
use crate::workload::{Operation, Workload};
use crate::{binary, text};

/// The largest value that is ever asked for.
const VALUE_MAX: f64 = (1 << 30) as f64;
/// The longest key that the protocol takes.
pub(crate) const KEY_MAX: usize = 250;

/// A request that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) operation: Operation,
    /// The record, of several the first. For a trace the place of its request.
    pub(crate) record: u64,
    /// How many keys.
    pub(crate) keys: u16,
}

/// Writes the requests of a workload.
#[derive(Debug)]
pub(crate) struct Requests {
    workload: Workload,
    binary: bool,
    steps: Vec<(f64, Operation)>,
    digits: usize,
    picker: Picker,
    trace: Option<TracedRequests>,
    /// Requests of the trace that are under way.
    traced: Slab<Traced>,
    expected: Expected,
    key: Vec<u8>,
}

impl Requests {
    /// `step` and `steps`: which of several generators of this workload it is.
    pub(crate) fn new(workload: &Workload, binary: bool, seed: u64, step: u64, steps: u64) -> Self {
        Self {
            steps: workload.mix.steps(),
            binary,
            digits: workload.records.saturating_sub(1).to_string().len(),
            picker: Picker::new(workload.popularity, workload.records, seed, step, steps),
            workload: workload.clone(),
            trace: None,
            traced: Slab::new(),
            expected: Expected::default(),
            key: Vec::new(),
        }
    }

    /// Takes requests from a trace.
    pub(crate) fn follow(&mut self, trace: TracedRequests) {
        self.trace = Some(trace);
    }

    /// The trace, where there is one.
    pub(crate) fn trace(&mut self) -> Option<&mut TracedRequests> {
        self.trace.as_mut()
    }

    pub(crate) fn random(&mut self) -> &mut SmallRng {
        self.picker.random()
    }

    pub(crate) fn verifies(&self) -> bool {
        self.workload.verify
    }

    /// Whether what was not found is stored.
    pub(crate) fn fills(&self) -> bool {
        self.workload.fill
    }

    /// Appends the next request; `None` where a trace is over.
    pub(crate) fn next(&mut self, out: &mut Vec<u8>) -> Option<Asked> {
        if let Some(trace) = &mut self.trace {
            let traced = trace.next()?;
            let operation = traced.operation;
            let record = self.traced.insert(traced) as u64;
            self.write(operation, record, 0, out);
            return Some(Asked { operation, record, keys: 1 });
        }
        let operation = match self.steps[..] {
            [(_, only)] => only,
            _ => {
                let point = self.picker.random().random::<f64>();
                let step = self.steps.iter().find(|(sum, _)| point < *sum);
                step.map_or(Operation::Get, |(_, operation)| *operation)
            }
        };
        let record = if operation.stores() { self.picker.pick_to_store() } else { self.picker.pick() };
        let keys = if operation == Operation::Get { self.workload.multiget.max(1) } else { 1 };
        if keys > 1 {
            self.several(record, keys, out);
        } else {
            self.write(operation, record, 0, out);
        }
        Some(Asked { operation, record, keys })
    }

    /// A get of several keys.
    fn several(&mut self, first: u64, keys: u16, out: &mut Vec<u8>) {
        if !self.binary {
            out.extend_from_slice(b"get");
        }
        let mut record = first;
        for left in (0..keys).rev() {
            if self.binary {
                let mut key = std::mem::take(&mut self.key);
                self.write_key_into(record, &mut key);
                binary::one_of_several(&key, out);
                self.key = key;
            } else {
                out.push(b' ');
                self.write_key(record, out);
            }
            if left > 0 {
                record = self.picker.pick();
            }
        }
        if self.binary {
            binary::end_of_several(out);
        } else {
            out.extend_from_slice(b"\r\n");
        }
    }

    /// A request for one key, with its value.
    fn write(&mut self, operation: Operation, record: u64, unique: u64, out: &mut Vec<u8>) {
        let mut key = std::mem::take(&mut self.key);
        self.write_key_into(record, &mut key);
        if operation.counts() && self.trace.is_none() {
            key.insert(0, b'n');
            key.truncate(KEY_MAX);
        }
        let traced = self.trace.as_ref().and_then(|_| self.traced.get(record as usize));
        let (size, ttl) = match traced {
            Some(traced) => (traced.size as usize, traced.ttl.into()),
            None if operation.stores() => (self.size(), self.workload.ttl.as_secs()),
            None => (0, self.workload.ttl.as_secs()),
        };
        let details = Details { key: &key, size, ttl, unique };
        let write = if self.binary { binary::write } else { text::write };
        write(operation, details, out);
        if operation.stores() {
            if self.workload.verify {
                self.expected.begin(&key, size);
                self.expected.write(size, out);
            } else {
                // A trace counts in values of its own.
                fill(size, if self.trace.is_some() { b'0' } else { b'L' }, out);
            }
            if !self.binary {
                out.extend_from_slice(b"\r\n");
            }
        }
        self.key = key;
    }

    fn size(&mut self) -> usize {
        self.workload.value.draw(self.picker.random()).min(VALUE_MAX) as usize
    }

    /// Appends a `set` of a record.
    pub(crate) fn set(&mut self, record: u64, out: &mut Vec<u8>) {
        self.write(Operation::Set, record, 0, out);
    }

    /// Appends a `cas` of a record.
    pub(crate) fn cas(&mut self, record: u64, unique: u64, out: &mut Vec<u8>) {
        self.write(Operation::Set, record, unique, out);
    }

    /// Appends a `set` of a record's counter.
    pub(crate) fn set_counter(&mut self, record: u64, out: &mut Vec<u8>) {
        let mut key = vec![b'n'];
        self.write_key(record, &mut key);
        key.truncate(KEY_MAX);
        let details = Details { key: &key, size: 1, ttl: 0, unique: 0 };
        if self.binary {
            binary::write(Operation::Set, details, out);
            out.push(b'0');
        } else {
            text::write(Operation::Set, details, out);
            out.extend_from_slice(b"0\r\n");
        }
    }

    pub(crate) fn has_counters(&self) -> bool {
        self.workload.mix.has(Operation::Incr) || self.workload.mix.has(Operation::Decr)
    }

    /// A request has been answered, with all that came of it.
    pub(crate) fn done(&mut self, asked: Asked) {
        if self.trace.is_some() {
            self.traced.try_remove(asked.record as usize);
        }
    }

    /// Whether this is a record's key.
    pub(crate) fn is_key_of(&mut self, record: u64, key: &[u8]) -> bool {
        let mut own = std::mem::take(&mut self.key);
        self.write_key_into(record, &mut own);
        let same = own == key;
        self.key = own;
        same
    }

    fn write_key_into(&self, record: u64, key: &mut Vec<u8>) {
        key.clear();
        match &self.trace {
            Some(_) => key.extend_from_slice(self.traced.get(record as usize).map_or(b"", |it| &it.key)),
            None => self.write_key(record, key),
        }
    }

    /// A record's key: its number with zeros before it, as long as the record's own draw says.
    fn write_key(&self, record: u64, out: &mut Vec<u8>) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(workload: &Workload) -> Requests {
        Requests::new(workload, false, 1, 0, 1)
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
            mix: "get=4,set=3,delete=1,touch=1,cas=1,incr=1,mg=2,ms=2,add=1,append=1,decr=1".parse().unwrap(),
            key: Distribution::Fixed(4.0),
            value: Distribution::Fixed(2.0),
            records: 1,
            multiget: 2,
            ttl: std::time::Duration::from_secs(60),
            ..Workload::default()
        };
        let mut requests = requests(&workload);
        let mut seen = std::collections::HashMap::<Operation, (u32, Vec<u8>)>::new();
        for _ in 0..20_000 {
            let mut out = Vec::new();
            let asked = requests.next(&mut out).unwrap();
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
            (Operation::Decr, b"decr n0000 1\r\n"),
            (Operation::Add, b"add 0000 0 60 2\r\nLL\r\n"),
            (Operation::Append, b"append 0000 0 60 2\r\nLL\r\n"),
            (Operation::MetaGet, b"mg 0000 v k\r\n"),
            (Operation::MetaSet, b"ms 0000 2 T60\r\nLL\r\n"),
        ] {
            let (count, text) = &seen[&operation];
            assert_eq!(text, expected, "{operation:?}");
            let share = f64::from(*count) / 20_000.0 / workload.mix.share(operation);
            assert!((0.9..1.1).contains(&share), "{operation:?}: {share}");
        }
        let mut out = Vec::new();
        requests.cas(0, 77, &mut out);
        assert_eq!(out, b"cas 0000 0 60 2 77\r\nLL\r\n");
    }
}
