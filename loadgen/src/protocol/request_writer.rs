//! Writes the requests of a workload as bytes.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::config::Protocol;
use crate::protocol::message::RequestFields;
use crate::protocol::{binary, resp, text};
use crate::workload::distribution::Distribution;
use crate::workload::mix::Operation;
use crate::workload::popularity::Picker;
use crate::workload::verify::{ExpectedValue, fill};
use crate::workload::{KEY_MAX, Workload};

/// The largest value that is stored, in bytes.
const VALUE_MAX: f64 = (1 << 30) as f64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WrittenRequest {
    pub(crate) operation: Operation,
    /// The record, the first one of a multiget.
    pub(crate) record: u64,
    /// Number of keys; 0 for a `set` or `cas` that follows a `get`.
    pub(crate) keys: u16,
}

#[derive(Debug)]
pub(crate) struct RequestWriter {
    pub(crate) workload: Workload,
    protocol: Protocol,
    cumulative_shares: Vec<(f64, Operation)>,
    digits: usize,
    picker: Picker,
    expected: ExpectedValue,
    key: Vec<u8>,
}

impl RequestWriter {
    /// `step` of `steps` is the index of this writer among those of the run.
    pub(crate) fn new(workload: &Workload, protocol: Protocol, seed: u64, step: u64, steps: u64) -> Self {
        Self {
            cumulative_shares: workload.mix.cumulative_shares(),
            protocol,
            digits: workload.records.saturating_sub(1).to_string().len(),
            picker: Picker::new(workload.popularity, workload.records, seed, step, steps),
            workload: workload.clone(),
            expected: ExpectedValue::default(),
            key: Vec::new(),
        }
    }

    fn is_binary(&self) -> bool {
        self.protocol == Protocol::Binary
    }

    pub(crate) fn random(&mut self) -> &mut SmallRng {
        self.picker.random()
    }

    /// Appends the next request.
    pub(crate) fn next(&mut self, out: &mut Vec<u8>) -> WrittenRequest {
        let operation = match self.cumulative_shares[..] {
            [(_, only)] => only,
            _ => {
                let point = self.picker.random().random::<f64>();
                let drawn = self.cumulative_shares.iter().find(|(sum, _)| point < *sum);
                drawn.map_or(Operation::Get, |(_, operation)| *operation)
            }
        };
        let record = if operation.stores() { self.picker.pick_to_store() } else { self.picker.pick() };
        let keys = if operation == Operation::Get { self.workload.multiget.max(1) } else { 1 };
        if keys > 1 {
            self.write_multiget(record, keys, out);
        } else {
            self.write(operation, record, 0, out);
        }
        WrittenRequest { operation, record, keys }
    }

    fn write_multiget(&mut self, first: u64, keys: u16, out: &mut Vec<u8>) {
        if !self.is_binary() {
            out.extend_from_slice(b"get");
        }
        let mut record = first;
        for left in (0..keys).rev() {
            if self.is_binary() {
                let mut key = std::mem::take(&mut self.key);
                self.replace_key(record, &mut key);
                binary::multiget_key(&key, out);
                self.key = key;
            } else {
                out.push(b' ');
                self.append_key(record, out);
            }
            if left > 0 {
                record = self.picker.pick();
            }
        }
        if self.is_binary() {
            binary::end_multiget(out);
        } else {
            out.extend_from_slice(b"\r\n");
        }
    }

    /// Appends a request for one key, with its value.
    fn write(&mut self, operation: Operation, record: u64, cas: u64, out: &mut Vec<u8>) {
        let mut key = std::mem::take(&mut self.key);
        self.replace_key(record, &mut key);
        if matches!(operation, Operation::Incr | Operation::Decr) {
            key.insert(0, b'n');
            key.truncate(KEY_MAX);
        }
        let mut size = 0;
        if operation.stores() {
            size = self.workload.value.draw(self.picker.random()).min(VALUE_MAX) as usize;
        }
        let fields = RequestFields { key: &key, size, ttl: self.workload.ttl.as_secs(), cas };
        let write = match self.protocol {
            Protocol::Text | Protocol::Udp => text::write,
            Protocol::Binary => binary::write,
            Protocol::Resp => resp::write,
        };
        write(operation, fields, out);
        if operation.stores() {
            if self.workload.verify {
                self.expected.begin(&key, size);
                self.expected.write(size, out);
            } else {
                fill(size, b'L', out);
            }
            if !self.is_binary() {
                out.extend_from_slice(b"\r\n");
            }
        }
        self.key = key;
    }

    pub(crate) fn set(&mut self, record: u64, out: &mut Vec<u8>) {
        self.write(Operation::Set, record, 0, out);
    }

    pub(crate) fn cas(&mut self, record: u64, cas: u64, out: &mut Vec<u8>) {
        self.write(Operation::Set, record, cas, out);
    }

    /// Appends a `set` of a record's counter to 0.
    pub(crate) fn set_counter(&mut self, record: u64, out: &mut Vec<u8>) {
        let mut key = vec![b'n'];
        self.append_key(record, &mut key);
        key.truncate(KEY_MAX);
        let fields = RequestFields { key: &key, size: 1, ttl: 0, cas: 0 };
        if self.is_binary() {
            binary::write(Operation::Set, fields, out);
            out.push(b'0');
        } else {
            text::write(Operation::Set, fields, out);
            out.extend_from_slice(b"0\r\n");
        }
    }

    pub(crate) fn has_counters(&self) -> bool {
        self.workload.mix.contains(Operation::Incr) || self.workload.mix.contains(Operation::Decr)
    }

    pub(crate) fn is_key_of(&mut self, record: u64, key: &[u8]) -> bool {
        let mut buffer = std::mem::take(&mut self.key);
        self.replace_key(record, &mut buffer);
        let same = buffer == key;
        self.key = buffer;
        same
    }

    /// Replaces the contents of `key` with the key of a record.
    fn replace_key(&self, record: u64, key: &mut Vec<u8>) {
        key.clear();
        self.append_key(record, key);
    }

    /// Appends a record's key: its number, padded with zeros to the size that is drawn for the
    /// record.
    fn append_key(&self, record: u64, out: &mut Vec<u8>) {
        let drawn = match self.workload.key {
            Distribution::Fixed(size) => size,
            // The record's number is the seed, so its key always has the same size.
            ref other => other.draw(&mut SmallRng::seed_from_u64(record)),
        };
        let mut digits = itoa::Buffer::new();
        let text = digits.format(record).as_bytes();
        let size = (drawn.round() as usize).clamp(self.digits.max(text.len()), KEY_MAX);
        out.resize(out.len() + size - text.len(), b'0');
        out.extend_from_slice(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(workload: &Workload) -> RequestWriter {
        RequestWriter::new(workload, Protocol::Text, 1, 0, 1)
    }

    fn key(workload: &Workload, record: u64) -> Vec<u8> {
        let mut out = Vec::new();
        writer(workload).append_key(record, &mut out);
        out
    }

    #[test]
    fn a_record_always_has_the_same_key_and_no_two_records_share_one() {
        let workload = Workload { key: Distribution::EtcKey, records: 3000, ..Workload::default() };
        let keys: std::collections::HashSet<_> = (0..3000).map(|record| key(&workload, record)).collect();
        assert_eq!(keys.len(), 3000);
        assert_eq!(key(&workload, 17), key(&workload, 17));
    }

    #[test]
    fn keys_hold_their_number_and_have_at_most_250_bytes() {
        let short = Workload { key: Distribution::Fixed(1.0), records: 1000, ..Workload::default() };
        assert_eq!(key(&short, 7), b"007");
        let long = Workload { key: Distribution::Fixed(9999.0), ..Workload::default() };
        assert_eq!(key(&long, 7).len(), 250);
    }

    #[test]
    fn a_set_announces_the_length_of_its_value() {
        for verify in [false, true] {
            let workload = Workload { value: Distribution::Fixed(3000.0), verify, ..Workload::default() };
            let mut out = Vec::new();
            writer(&workload).set(5, &mut out);
            let line = out.iter().position(|&byte| byte == b'\n').unwrap();
            assert!(out[..line].ends_with(b" 0 0 3000\r"));
            assert_eq!(out.len() - line - 1, 3002);
        }
    }

    #[test]
    fn operations_follow_their_weights_and_the_text_protocol() {
        let workload = Workload {
            mix: "get=4,set=3,delete=1,touch=1,cas=1,incr=1,mg=2,ms=2,add=1,append=1,decr=1".parse().unwrap(),
            key: Distribution::Fixed(4.0),
            value: Distribution::Fixed(2.0),
            records: 1,
            multiget: 2,
            ttl: std::time::Duration::from_secs(60),
            ..Workload::default()
        };
        let mut writer = writer(&workload);
        let mut by_operation = std::collections::HashMap::<Operation, (u32, Vec<u8>)>::new();
        for _ in 0..20_000 {
            let mut out = Vec::new();
            let request = writer.next(&mut out);
            let entry = by_operation.entry(request.operation).or_default();
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
            let (count, text) = &by_operation[&operation];
            assert_eq!(text, expected, "{operation:?}");
            let share = f64::from(*count) / 20_000.0 / workload.mix.share(operation);
            assert!((0.9..1.1).contains(&share), "{operation:?}: {share}");
        }
        let mut out = Vec::new();
        writer.cas(0, 77, &mut out);
        assert_eq!(out, b"cas 0000 0 60 2 77\r\nLL\r\n");
    }
}
