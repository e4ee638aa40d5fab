//! What the server must, may and must not answer.

use std::collections::HashMap;
use std::time::Instant;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// The server counts lifetimes in whole seconds, and reads the clock ten times a second. On a busy machine it may be late.
const LATE: f64 = 2.0;

#[derive(Debug)]
struct Entry {
    version: u64,
    size: usize,
    stored: Instant,
    /// In seconds; 0 is for ever.
    lifetime: u32,
}

/// Every key that was stored and not deleted, flushed or found missing since.
#[derive(Debug, Default)]
pub struct Model {
    entries: HashMap<u64, Entry>,
    versions: u64,
    /// Gets of values that were there.
    pub hits: u64,
    /// Keys that were missing although they had been stored and had not expired. Each must have been evicted.
    pub lost: u64,
}

impl Model {
    pub fn next_value(&mut self, key: u64, size: usize) -> (u64, Vec<u8>) {
        self.versions += 1;
        (self.versions, value(key, self.versions, size))
    }

    pub fn stored(&mut self, key: u64, version: u64, size: usize, lifetime: u32) {
        self.entries.insert(key, Entry { version, size, stored: Instant::now(), lifetime });
    }

    pub fn touched(&mut self, key: u64, lifetime: u32) {
        if let Some(entry) = self.entries.get_mut(&key) {
            (entry.stored, entry.lifetime) = (Instant::now(), lifetime);
        }
    }

    pub fn removed(&mut self, key: u64) {
        self.entries.remove(&key);
    }

    pub fn flushed(&mut self) {
        self.entries.clear();
    }

    /// A get, touch or delete of the key found nothing.
    pub fn missed(&mut self, key: u64) {
        if let Some(entry) = self.entries.remove(&key) {
            // Seconds are counted from the start of one, so a lifetime of n seconds may be n - 1.
            let age = entry.stored.elapsed().as_secs_f64();
            self.lost += u64::from(entry.lifetime == 0 || age + LATE < f64::from(entry.lifetime));
        }
    }

    /// Whether a key may be there at all, at a moment after `asked`.
    pub fn may_have(&mut self, key: u64, asked: Instant) -> Result<(), String> {
        let Some(entry) = self.entries.get(&key) else {
            return Err(format!("key {key} was found, and had been deleted, flushed or never stored"));
        };
        let age = asked.saturating_duration_since(entry.stored).as_secs_f64();
        if entry.lifetime != 0 && age > f64::from(entry.lifetime) + LATE {
            return Err(format!(
                "key {key} was found {age:.1} s after it was stored for {} s",
                entry.lifetime
            ));
        }
        self.hits += 1;
        Ok(())
    }

    pub fn verify(&mut self, key: u64, found: &[u8], asked: Instant) -> Result<(), String> {
        self.may_have(key, asked)?;
        let entry = &self.entries[&key];
        if found == value(key, entry.version, entry.size) {
            return Ok(());
        }
        let begin = String::from_utf8_lossy(&found[..found.len().min(40)]).into_owned();
        Err(format!(
            "key {key} has {} bytes that begin with {begin:?} instead of the {} bytes of version {}",
            found.len(),
            entry.size,
            entry.version
        ))
    }
}

/// The value of a version: every byte depends on key and version.
fn value(key: u64, version: u64, size: usize) -> Vec<u8> {
    let mut bytes = format!("{key}:{version}:").into_bytes();
    let head = bytes.len().min(size);
    bytes.resize(size, 0);
    SmallRng::seed_from_u64(key ^ version << 32).fill_bytes(&mut bytes[head..]);
    bytes
}
