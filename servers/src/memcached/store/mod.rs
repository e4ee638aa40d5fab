//! The items: parts with a table and a log each, under a limit that counts all memory they take.
//!
//! A command takes the lock of its key's part by [`Store::lock`], and does all of its steps under it, so
//! that each command is atomic. Values are copied out under the lock; large ones, which have pages of
//! their own, are shared instead. So what is being sent stays whole while it is replaced.

mod ghosts;
mod layout;
mod log;
mod memory;
mod shard;
mod slot;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::quality::{FixedState, RandomState};
use std::hash::{BuildHasher, Hasher};

use super::clock::Clock;
pub use layout::Header;
pub use memory::Large;
use memory::{Memory, large_size};
pub use shard::Counts;
use shard::Shard;
pub use slot::{Data, New, Slot, Value};

/// Marks of an item; the lowest two bits count accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bits(u8);

impl Bits {
    /// It has been asked for since it was stored.
    pub const FETCHED: Self = Self(1 << 2);
    /// Its value is out of date, says a client.
    pub const STALE: Self = Self(1 << 3);
    /// A client has been told to renew it.
    pub const TOKEN_SENT: Self = Self(1 << 4);
    /// Its key was given in base64.
    pub const KEY_BINARY: Self = Self(1 << 5);
    const LARGE: Self = Self(1 << 6);
    const DEAD: Self = Self(1 << 7);

    const HEAT: u8 = 3;

    /// Whether a mark is set.
    pub fn has(self, mark: Self) -> bool {
        self.0 & mark.0 != 0
    }

    /// With a mark set.
    #[must_use]
    pub fn with(self, mark: Self) -> Self {
        Self(self.0 | mark.0)
    }

    /// With a mark set where a condition holds.
    #[must_use]
    pub fn with_if(self, mark: Self, set: bool) -> Self {
        if set { self.with(mark) } else { self }
    }

    /// With a mark taken away.
    #[must_use]
    pub fn without(self, mark: Self) -> Self {
        Self(self.0 & !mark.0)
    }

    fn heat(self) -> u8 {
        self.0 & Self::HEAT
    }

    fn with_heat(self, heat: u8) -> Self {
        Self(self.0 & !Self::HEAT | heat.min(Self::HEAT))
    }
}

/// There is no memory for an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfMemory;

/// What a store is made with.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of memory.
    pub memory: u64,
    /// The size of the largest item, in bytes.
    pub item: usize,
    /// Whether items are put out to make room; memcached's `-M` says no.
    pub evict: bool,
    /// How many threads use it.
    pub workers: usize,
}

/// What the store holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Contents {
    /// Items, expired ones that nobody has noticed included.
    pub items: u64,
    /// Bytes of items: headers, keys and values.
    pub bytes: u64,
    /// Bytes of all memory taken: segments, tables and large values. What the limit is about.
    pub memory: u64,
    /// Bytes of the tables.
    pub tables: u64,
    /// Segments that have items.
    pub segments: u64,
    /// What was counted.
    pub counts: Counts,
}

/// A part's least memory: below it, segments would be too small for their work.
const LEAST_SHARD: u64 = 4 << 20;
/// What a part's places can name: 2³² multiples of four bytes.
const MOST_SHARD: u64 = 8 << 30;
/// So many segments make a part, about.
const SEGMENTS: u64 = 64;
const SEGMENT_SIZES: (u64, u64) = (16 << 10, 4 << 20);
/// A value of more than one part in so many of a segment has pages of its own.
const LARGE_PART: usize = 4;

/// All items.
#[derive(Debug)]
pub struct Store {
    shards: Box<[Line<Mutex<Shard>>]>,
    memory: Arc<Memory>,
    hasher: KeyHash,
    clock: Clock,
    last_cas: AtomicU64,
    /// The second of a delayed flush; 0 is none.
    flush_at: AtomicU32,
    /// Whose turn it is to give memory up for others.
    turn: AtomicUsize,
    segment_size: usize,
    largest: usize,
    evict: bool,
}

/// Keeps what it holds in cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Line<T>(T);

/// How keys are hashed; differently in each store, so that clients can't know which keys share a place.
#[derive(Debug, Clone)]
struct KeyHash(FixedState);

impl KeyHash {
    fn random() -> Self {
        Self(FixedState::with_seed(RandomState::default().hash_one(0u8)))
    }

    fn of(&self, key: &[u8]) -> u64 {
        let mut hasher = self.0.build_hasher();
        hasher.write(key);
        hasher.finish()
    }
}

impl Store {
    /// An empty store.
    pub fn new(limits: Limits) -> Self {
        let most = (limits.memory / LEAST_SHARD).max(1);
        let least = limits.memory.div_ceil(MOST_SHARD);
        let shards = (limits.workers.max(1) as u64 * 4).min(most).max(least);
        let segment = 1 << (limits.memory / shards / SEGMENTS).max(1).ilog2();
        let segment_size = SEGMENT_SIZES.1.min(segment).max(SEGMENT_SIZES.0) as usize;
        let hasher = KeyHash::random();
        Self {
            shards: (0..shards).map(|_| Line(Mutex::new(Shard::new(segment_size, hasher.clone())))).collect(),
            memory: Arc::new(Memory::new(limits.memory)),
            hasher,
            clock: Clock::start(),
            last_cas: AtomicU64::new(0),
            flush_at: AtomicU32::new(0),
            turn: AtomicUsize::new(0),
            segment_size,
            largest: limits.item,
            evict: limits.evict,
        }
    }

    /// The clock that expiries go by.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The limit, in bytes.
    pub fn limit(&self) -> u64 {
        self.memory.limit()
    }

    /// Changes the limit. A lower one holds after the next few turns of [`Store::tend`]; where nothing may
    /// be put out, once enough was deleted or has expired. False where the store can't work with so little.
    pub fn set_limit(&self, bytes: u64) -> bool {
        let contents = self.contents();
        let least = (self.shards.len() * self.segment_size * LEAST_SEGMENTS) as u64 + contents.tables;
        if bytes < least {
            return false;
        }
        self.memory.set_limit(bytes);
        true
    }

    /// Bytes of a segment.
    pub fn segment_size(&self) -> usize {
        self.segment_size
    }

    /// Whether an item of this size could ever be stored.
    pub fn fits(&self, key: usize, value: usize) -> bool {
        layout::HEADER + key + value <= self.largest
    }

    /// Whether a value of so many bytes gets pages of its own.
    pub fn is_large(&self, value: usize) -> bool {
        value > self.segment_size / LARGE_PART
    }

    /// A number for an item's change.
    pub fn next_cas(&self) -> u64 {
        self.last_cas.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn shard(&self, index: usize) -> MutexGuard<'_, Shard> {
        self.shards[index].0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard_of(&self, hash: u64) -> usize {
        // The upper bits: the lower ones are the table's and the ghosts'.
        ((u128::from(hash) * self.shards.len() as u128) >> 64) as usize
    }

    /// Locks a key's part of the store, and looks the key up. An item that has expired is taken out.
    pub fn lock<'a>(&'a self, key: &'a [u8], now: u32) -> Slot<'a> {
        Slot::new(self, key, self.hasher.of(key), now)
    }

    /// Memory for a large value that is about to come in.
    pub fn large(&self, length: usize, now: u32) -> Result<Large, OutOfMemory> {
        let size = large_size(length);
        // What comes in, or goes out although it was replaced, may not take all: half of the memory stays
        // for what is there.
        if self.memory.loose() + size > self.memory.limit() / 2 {
            return Err(OutOfMemory);
        }
        let mut tries = 0;
        while !self.memory.take(size) {
            tries += 1;
            if tries > MOST_TRIES || !self.give_up_memory(None, now) {
                return Err(OutOfMemory);
            }
        }
        Large::new(length, &self.memory).map_err(|_| OutOfMemory)
    }

    /// Has some part, but not the given one, whose lock is held, give memory up.
    fn give_up_memory(&self, but: Option<usize>, now: u32) -> bool {
        // A part's first try may only have moved items together.
        for _ in 0..4 * self.shards.len() {
            let index = self.turn.fetch_add(1, Ordering::Relaxed) % self.shards.len();
            if Some(index) == but {
                continue;
            }
            // Never waits for a lock while it may hold another.
            let shard = match but {
                None => Some(self.shard(index)),
                Some(_) => self.shards[index].0.try_lock().ok(),
            };
            let Some(mut shard) = shard else { continue };
            let before = self.memory.used();
            // What is empty already comes first: after a flush that is all.
            shard.release_idle(&self.memory, usize::MAX);
            if self.memory.used() >= before && shard.reclaim(now, self.evict, &self.memory) {
                shard.release_idle(&self.memory, usize::MAX);
            }
            // Where others took some meanwhile it only looks as if there were none.
            if self.memory.used() < before {
                return true;
            }
        }
        false
    }

    /// Has all items gone, now or from the given second on.
    pub fn flush(&self, at: Option<u32>) {
        self.flush_at.store(at.unwrap_or(0), Ordering::Relaxed);
        if at.is_none() {
            for index in 0..self.shards.len() {
                self.shard(index).clear(&self.memory);
            }
        }
    }

    /// Does a delayed flush whose time has come. To be called before items are looked at.
    pub fn flush_if_due(&self, now: u32) {
        let at = self.flush_at.load(Ordering::Relaxed);
        if at != 0
            && now >= at
            && self.flush_at.compare_exchange(at, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            self.flush(None);
        }
    }

    /// Moves the clock on, and gives back what expired items and a lowered limit leave free, for about so
    /// long. To be called several times a second.
    pub fn tend(&self, time: Duration) {
        let (start, now) = (std::time::Instant::now(), self.clock.refresh());
        self.flush_if_due(now);
        while self.memory.is_over() && self.evict && start.elapsed() < time {
            if !self.give_up_memory(None, now) {
                break;
            }
        }
        let mut idle = 0;
        while idle < self.shards.len() && start.elapsed() < time {
            let index = self.turn.fetch_add(1, Ordering::Relaxed) % self.shards.len();
            let looked = self.shard(index).crawl(now, CRAWL_STEP, &self.memory);
            idle = if looked < CRAWL_STEP { idle + 1 } else { 0 };
        }
    }

    /// What there is, all parts together.
    pub fn contents(&self) -> Contents {
        let mut sum = Contents { memory: self.memory.used(), ..Contents::default() };
        for index in 0..self.shards.len() {
            let shard = self.shard(index);
            sum.items += shard.items() as u64;
            sum.bytes += shard.live();
            sum.tables += shard.tables();
            sum.segments += shard.log.segments() as u64;
            sum.counts += shard.counts;
        }
        sum.bytes += self.memory.large();
        sum
    }

    /// Has `see` look at every item, a segment at a time. `from` is where to begin, `(0, 0)` at first;
    /// returns where to go on, `None` at the end. What is stored meanwhile may be missed, and what is moved
    /// may be seen twice.
    pub fn walk(
        &self,
        from: (usize, u32),
        now: u32,
        mut see: impl FnMut(&[u8], &Header),
    ) -> Option<(usize, u32)> {
        let (mut index, mut segment) = from;
        while index < self.shards.len() {
            let shard = self.shard(index);
            let next =
                shard.log.numbers().map(|(number, _)| number).filter(|number| *number >= segment).min();
            if let Some(number) = next {
                shard.walk(number, now, |key, header| see(key, header));
                return Some((index, number + 1));
            }
            (index, segment) = (index + 1, 0);
        }
        None
    }
}

/// So often memory is asked of others before an item is refused.
const MOST_TRIES: usize = 10_000;
/// So many segments are looked through under one lock.
const CRAWL_STEP: usize = 1;
/// A part needs a segment for each queue, one for moving items, and one that is freed.
const LEAST_SEGMENTS: usize = 4;
