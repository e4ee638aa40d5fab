//! What is asked: keys, values, and the share of updates.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::Distribution;

/// What requests are like.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// Bytes of a key, at least the digits of the last record's number, at most 250.
    pub key: Distribution,
    /// Bytes of a value.
    pub value: Distribution,
    /// How many records there are.
    pub records: u64,
    /// The share of requests that set rather than get, 0 to 1.
    pub update: f64,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            key: Distribution::Fixed(30.0),
            value: Distribution::Fixed(200.0),
            records: 10_000,
            update: 0.0,
        }
    }
}

/// When requests of an open loop are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Arrival {
    /// Exponential gaps (a Poisson process).
    #[default]
    Exponential,
    /// The gaps of Facebook's ETC pool, scaled to the rate.
    Etc,
}

impl Arrival {
    /// The gaps for a mean of so many seconds, in seconds.
    pub(crate) fn gaps(self, mean: f64) -> Gaps {
        match self {
            Arrival::Exponential => Gaps { distribution: Distribution::Exponential(1.0), scale: mean },
            Arrival::Etc => {
                Gaps { distribution: Distribution::EtcGap, scale: mean / Distribution::EtcGap.mean() }
            }
        }
    }
}

pub(crate) struct Gaps {
    distribution: Distribution,
    scale: f64,
}

impl Gaps {
    pub(crate) fn draw(&self, random: &mut SmallRng) -> f64 {
        self.distribution.draw(random) * self.scale
    }
}

/// Writes the requests of a workload.
pub(crate) struct Requests {
    workload: Workload,
    digits: usize,
    random: SmallRng,
}

/// What kind of request was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Get,
    Set,
}

/// The bytes that values are made of.
const FILLER: [u8; 1024] = [b'L'; 1024];
/// The largest value that is ever asked for.
const VALUE_MAX: f64 = (1 << 30) as f64;

impl Requests {
    pub(crate) fn new(workload: &Workload, seed: u64) -> Self {
        let digits = workload.records.saturating_sub(1).to_string().len();
        Self { workload: workload.clone(), digits, random: SmallRng::seed_from_u64(seed) }
    }

    pub(crate) fn random(&mut self) -> &mut SmallRng {
        &mut self.random
    }

    /// Appends the next request.
    pub(crate) fn next(&mut self, out: &mut Vec<u8>) -> Kind {
        let record = self.random.random_range(0..self.workload.records.max(1));
        if self.workload.update > 0.0 && self.random.random::<f64>() < self.workload.update {
            self.set(record, out);
            Kind::Set
        } else {
            out.extend_from_slice(b"get ");
            self.key(record, out);
            out.extend_from_slice(b"\r\n");
            Kind::Get
        }
    }

    /// Appends a `set` of a record.
    pub(crate) fn set(&mut self, record: u64, out: &mut Vec<u8>) {
        let size = self.workload.value.draw(&mut self.random).min(VALUE_MAX) as usize;
        out.extend_from_slice(b"set ");
        self.key(record, out);
        out.extend_from_slice(b" 0 0 ");
        out.extend_from_slice(itoa::Buffer::new().format(size).as_bytes());
        out.extend_from_slice(b"\r\n");
        let mut left = size;
        while left > 0 {
            let part = left.min(FILLER.len());
            out.extend_from_slice(&FILLER[..part]);
            left -= part;
        }
        out.extend_from_slice(b"\r\n");
    }

    /// A record's key: its number with zeros before it, as long as the record's own draw says.
    fn key(&self, record: u64, out: &mut Vec<u8>) {
        let drawn = match self.workload.key {
            Distribution::Fixed(size) => size,
            // The record is the seed, so that a record's key is the same each time.
            ref other => other.draw(&mut SmallRng::seed_from_u64(record)),
        };
        let size = (drawn as usize).clamp(self.digits, 250);
        let mut digits = itoa::Buffer::new();
        let number = digits.format(record).as_bytes();
        out.resize(out.len() + size - number.len(), b'0');
        out.extend_from_slice(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(workload: &Workload, record: u64) -> Vec<u8> {
        let mut out = Vec::new();
        Requests::new(workload, 1).key(record, &mut out);
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
        let workload = Workload { value: Distribution::Fixed(3000.0), ..Workload::default() };
        let mut out = Vec::new();
        Requests::new(&workload, 1).set(5, &mut out);
        let line = out.iter().position(|&byte| byte == b'\n').unwrap();
        assert!(out[..line].ends_with(b" 0 0 3000\r"));
        assert_eq!(out.len() - line - 1, 3002);
    }

    #[test]
    fn gaps_have_the_asked_mean() {
        let mut random = SmallRng::seed_from_u64(3);
        for arrival in [Arrival::Exponential, Arrival::Etc] {
            let gaps = arrival.gaps(0.001);
            let mean = (0..100_000).map(|_| gaps.draw(&mut random)).sum::<f64>() / 100_000.0;
            assert!((mean / 0.001 - 1.0).abs() < 0.03, "{arrival:?}: {mean}");
        }
    }
}
