//! The items: a concurrent cache with a limit in bytes, and the commands' atomic steps on it.
//!
//! Reads go straight to the cache. Writes that look before they write (all do: for the cas number,
//! for what is replaced) take one of a set of locks by key, so that two of them on one key are one
//! after the other, while the cache stays readable.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, Lifecycle, OptionsBuilder, Weighter};

use super::clock::Clock;
use super::numbers;

/// A stored value and what belongs to it.
#[derive(Debug, Clone)]
pub struct Item {
    /// What the client gave with it.
    pub flags: u32,
    /// The cas number: changes with every change of the item.
    pub cas: u64,
    /// The value.
    pub data: Arc<[u8]>,
    expiry: u32,
    stored: u32,
}

/// What an item costs besides its key and value: two allocations with their headers, and its place in
/// the cache's table. Measured: see `docs/design.md`, "Memory of an item".
const OVERHEAD: u64 = 150;

#[derive(Debug, Clone)]
struct ByBytes;

impl Weighter<Box<[u8]>, Item> for ByBytes {
    fn weight(&self, key: &Box<[u8]>, item: &Item) -> u64 {
        weight(key.len(), item.data.len())
    }
}

fn weight(key: usize, value: usize) -> u64 {
    key as u64 + value as u64 + OVERHEAD
}

/// Counts evictions.
#[derive(Debug, Clone, Default)]
struct Evictions(Arc<AtomicU64>);

impl Lifecycle<Box<[u8]>, Item> for Evictions {
    type RequestState = ();

    fn on_evict(&self, (): &mut (), _: Box<[u8]>, _: Item) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// How a storing command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// It is stored.
    Done,
    /// Its condition does not hold.
    Refused,
    /// `cas`: someone else has changed it.
    Exists,
    /// `cas`: there is none.
    NotFound,
    /// `append`, `prepend`: the value would be larger than an item may be.
    TooLarge,
    /// The cache can't take an item of this size.
    OutOfMemory,
}

/// Which condition a storing command has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// `set`
    Always,
    /// `add`
    Absent,
    /// `replace`
    Present,
    /// `append`
    Append,
    /// `prepend`
    Prepend,
    /// `cas`
    Unchanged(u64),
}

/// How `incr` or `decr` ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// The new value.
    Value(u64),
    /// There is none.
    NotFound,
    /// It is no number.
    NotANumber,
    /// The cache can't take it.
    OutOfMemory,
}

/// A delayed or past `flush_all`.
#[derive(Debug, Default)]
struct Flushed {
    /// Items with a cas number up to this one are gone.
    cas: AtomicU64,
    /// From this second on, items that were stored before it are gone; 0 is never.
    at: AtomicU32,
}

/// How many locks writers share.
const STRIPES: usize = 256;

/// All items.
#[derive(Debug)]
pub struct Store {
    cache: Cache<Box<[u8]>, Item, ByBytes, DefaultHashBuilder, Evictions>,
    hasher: DefaultHashBuilder,
    stripes: Box<[Mutex<()>]>,
    clock: Clock,
    last_cas: AtomicU64,
    flushed: Flushed,
    evictions: Evictions,
    limit: u64,
    largest: usize,
}

impl Store {
    /// A store of at most `limit` bytes, of items of at most `largest`.
    pub fn new(limit: u64, largest: usize) -> Self {
        let evictions = Evictions::default();
        // A shard holds its part of the bytes, and must have room for several of the largest items.
        let by_size = (limit / (4 * largest.max(1) as u64)).clamp(1, 64) as usize;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let shards = by_size.min(cores * 4).next_power_of_two().min(by_size.max(1));
        let options = OptionsBuilder::new()
            .shards(shards)
            .estimated_items_capacity((limit / 512).clamp(64, 1 << 24) as usize)
            .weight_capacity(limit)
            .build();
        let cache = match options {
            Ok(options) => {
                Cache::with_options(options, ByBytes, DefaultHashBuilder::default(), evictions.clone())
            }
            // Only a missing field is an error of the options, and none is missing.
            Err(_) => Cache::with(1024, limit, ByBytes, DefaultHashBuilder::default(), evictions.clone()),
        };
        Self {
            cache,
            hasher: DefaultHashBuilder::default(),
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
            clock: Clock::start(),
            last_cas: AtomicU64::new(0),
            flushed: Flushed::default(),
            evictions,
            limit,
            largest,
        }
    }

    /// The clock that expiries go by.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The limit, in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The size of the largest item, in bytes.
    pub fn largest(&self) -> usize {
        self.largest
    }

    /// Bytes that the items take, by the store's own account.
    pub fn bytes(&self) -> u64 {
        self.cache.weight()
    }

    /// How many items there are, expired ones that nobody has asked for included.
    pub fn items(&self) -> usize {
        self.cache.len()
    }

    /// Items that were put out to make room.
    pub fn evictions(&self) -> u64 {
        self.evictions.0.load(Ordering::Relaxed)
    }

    /// Whether an item of this size could ever be stored.
    pub fn fits(&self, key: usize, value: usize) -> bool {
        weight(key, value) <= self.largest as u64
    }

    fn lock(&self, key: &[u8]) -> MutexGuard<'_, ()> {
        let stripe = self.hasher.hash_one(key) as usize % STRIPES;
        self.stripes[stripe].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_cas(&self) -> u64 {
        self.last_cas.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn is_alive(&self, item: &Item, now: u32) -> bool {
        if item.expiry != 0 && item.expiry <= now {
            return false;
        }
        if item.cas <= self.flushed.cas.load(Ordering::Relaxed) {
            return false;
        }
        let at = self.flushed.at.load(Ordering::Relaxed);
        at == 0 || now < at || item.stored >= at
    }

    /// Looks an item up. One that has expired, or was flushed, is taken out.
    pub fn get(&self, key: &[u8], now: u32) -> Option<Item> {
        let item = self.cache.get(key)?;
        if self.is_alive(&item, now) {
            return Some(item);
        }
        self.cache.remove_if(key, |item| !self.is_alive(item, now));
        None
    }

    fn insert(&self, key: &[u8], item: Item) -> bool {
        let heavy = weight(key.len(), item.data.len()) > self.cache.shard_capacity() / 4;
        self.cache.insert(key.into(), item);
        // The cache silently refuses what is too heavy for a shard; nothing else can be refused.
        !heavy || self.cache.contains_key(key)
    }

    /// Stores a value, if the condition holds.
    pub fn store(
        &self,
        condition: Condition,
        key: &[u8],
        flags: u32,
        expiry: u32,
        data: &[u8],
        now: u32,
    ) -> Stored {
        let _one_at_a_time = self.lock(key);
        let old = match condition {
            Condition::Always => None,
            _ => self.get(key, now),
        };
        let item =
            |data: Arc<[u8]>, flags, expiry| Item { flags, cas: self.next_cas(), data, expiry, stored: now };
        let new = match (condition, &old) {
            (Condition::Absent, Some(_)) | (Condition::Present, None) => return Stored::Refused,
            (Condition::Append | Condition::Prepend, None) => return Stored::Refused,
            (Condition::Unchanged(_), None) => return Stored::NotFound,
            (Condition::Unchanged(cas), Some(old)) if old.cas != cas => return Stored::Exists,
            (Condition::Append | Condition::Prepend, Some(old)) => {
                if !self.fits(key.len(), old.data.len() + data.len()) {
                    return Stored::TooLarge;
                }
                let joined = match condition {
                    Condition::Append => [&old.data[..], data].concat(),
                    _ => [data, &old.data[..]].concat(),
                };
                // Flags and expiry stay those of the first part (`protocol.txt`).
                item(joined.into(), old.flags, old.expiry)
            }
            _ => item(data.into(), flags, expiry),
        };
        if self.insert(key, new) { Stored::Done } else { Stored::OutOfMemory }
    }

    /// Takes an item out; `false` if there was none.
    pub fn delete(&self, key: &[u8], now: u32) -> bool {
        let _one_at_a_time = self.lock(key);
        let alive = self.get(key, now).is_some();
        alive && self.cache.remove(key).is_some()
    }

    /// Sets a new expiry, and returns the item.
    pub fn touch(&self, key: &[u8], expiry: u32, now: u32) -> Option<Item> {
        let _one_at_a_time = self.lock(key);
        let mut item = self.get(key, now)?;
        item.expiry = expiry;
        self.insert(key, item.clone());
        Some(item)
    }

    /// Adds to a number (wrapping at 64 bits), or takes away from it (not below 0).
    pub fn count(&self, key: &[u8], delta: u64, up: bool, now: u32) -> Counted {
        let _one_at_a_time = self.lock(key);
        let Some(old) = self.get(key, now) else { return Counted::NotFound };
        // 20 digits are as long as 64 bits get.
        let Some(value) = (old.data.len() <= 20).then(|| numbers::unsigned(&old.data)).flatten() else {
            return Counted::NotANumber;
        };
        let value = if up { value.wrapping_add(delta) } else { value.saturating_sub(delta) };
        let mut text = value.to_string().into_bytes();
        // A number that got shorter keeps its length, filled up with spaces, as in memcached.
        while text.len() < old.data.len() {
            text.push(b' ');
        }
        let new = Item { cas: self.next_cas(), data: text.into(), ..old };
        if self.insert(key, new) { Counted::Value(value) } else { Counted::OutOfMemory }
    }

    /// Makes all items of now gone, or at `at` those that are stored before it.
    pub fn flush(&self, at: Option<u32>) {
        match at {
            None => {
                self.flushed.at.store(0, Ordering::Relaxed);
                self.flushed.cas.store(self.last_cas.load(Ordering::Relaxed), Ordering::Relaxed);
                self.cache.clear();
            }
            Some(at) => self.flushed.at.store(at, Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u32 = 100;

    fn store() -> Store {
        Store::new(8 << 20, 1 << 20)
    }

    fn set(store: &Store, key: &[u8], data: &[u8]) -> u64 {
        assert_eq!(store.store(Condition::Always, key, 0, 0, data, NOW), Stored::Done);
        store.get(key, NOW).unwrap().cas
    }

    #[test]
    fn conditions_hold_or_do_not() {
        let store = store();
        let put = |condition, data: &[u8]| store.store(condition, b"k", 1, 0, data, NOW);
        assert_eq!(put(Condition::Present, b"x"), Stored::Refused);
        assert_eq!(put(Condition::Append, b"x"), Stored::Refused);
        assert_eq!(put(Condition::Unchanged(1), b"x"), Stored::NotFound);
        assert_eq!(put(Condition::Absent, b"b"), Stored::Done);
        assert_eq!(put(Condition::Absent, b"x"), Stored::Refused);
        assert_eq!(put(Condition::Append, b"c"), Stored::Done);
        assert_eq!(put(Condition::Prepend, b"a"), Stored::Done);
        let item = store.get(b"k", NOW).unwrap();
        assert_eq!(&item.data[..], b"abc");
        assert_eq!(put(Condition::Unchanged(item.cas + 1), b"x"), Stored::Exists);
        assert_eq!(put(Condition::Unchanged(item.cas), b"new"), Stored::Done);
        assert_eq!(put(Condition::Unchanged(item.cas), b"x"), Stored::Exists);
    }

    #[test]
    fn an_item_expires_in_its_second() {
        let store = store();
        store.store(Condition::Always, b"k", 0, NOW + 1, b"v", NOW);
        assert!(store.get(b"k", NOW).is_some());
        assert!(store.get(b"k", NOW + 1).is_none());
        assert_eq!(store.items(), 0);
    }

    #[test]
    fn a_shorter_number_keeps_its_length() {
        let store = store();
        set(&store, b"n", b"10");
        assert_eq!(store.count(b"n", 1, false, NOW), Counted::Value(9));
        assert_eq!(&store.get(b"n", NOW).unwrap().data[..], b"9 ");
        assert_eq!(store.count(b"n", 1, true, NOW), Counted::Value(10));
        assert_eq!(store.count(b"n", 50, false, NOW), Counted::Value(0));
        set(&store, b"n", b"18446744073709551615");
        assert_eq!(store.count(b"n", 2, true, NOW), Counted::Value(1));
        set(&store, b"n", b"x");
        assert_eq!(store.count(b"n", 1, true, NOW), Counted::NotANumber);
        assert_eq!(store.count(b"none", 1, true, NOW), Counted::NotFound);
    }

    #[test]
    fn a_flush_takes_what_was_there_and_nothing_after() {
        let store = store();
        set(&store, b"old", b"v");
        store.flush(None);
        assert!(store.get(b"old", NOW).is_none());
        set(&store, b"new", b"v");
        assert!(store.get(b"new", NOW).is_some());
        store.flush(Some(NOW + 5));
        assert!(store.get(b"new", NOW + 4).is_some());
        assert!(store.get(b"new", NOW + 5).is_none());
        store.store(Condition::Always, b"later", 0, 0, b"v", NOW + 5);
        assert!(store.get(b"later", NOW + 6).is_some());
    }

    #[test]
    fn the_limit_holds_under_sizes_that_change() {
        let store = store();
        for round in 0..4u32 {
            for index in 0..3000u32 {
                let size = (index as usize * 37 + 1) % (1 << (8 + 2 * round));
                let key = format!("key-{round}-{index}");
                store.store(Condition::Always, key.as_bytes(), 0, 0, &vec![0; size], NOW);
                assert!(store.bytes() <= store.limit(), "{} of {}", store.bytes(), store.limit());
            }
        }
        assert!(store.evictions() > 0);
    }

    #[test]
    fn appending_for_ever_stays_within_the_limits() {
        let store = store();
        for key in 0..20u8 {
            set(&store, &[b'k', key], b"");
            while store.store(Condition::Append, &[b'k', key], 0, 0, &[0; 60_000], NOW) == Stored::Done {
                assert!(store.bytes() <= store.limit());
            }
        }
    }

    #[test]
    fn what_no_shard_can_hold_is_out_of_memory() {
        let store = Store::new(1 << 20, 4 << 20);
        assert_eq!(store.store(Condition::Always, b"k", 0, 0, &vec![0; 2 << 20], NOW), Stored::OutOfMemory);
    }
}
