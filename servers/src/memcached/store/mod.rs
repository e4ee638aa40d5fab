//! The item store: shards, each with a hash table and a log of segments, under one memory limit.
//!
//! A command locks its key's shard with [`Store::lock`] and runs all of its steps under that lock,
//! so every command is atomic. Small values are copied out under the lock. Large values live in
//! their own pages and are shared by reference count, so a value that is being sent stays intact
//! when it is replaced.

mod item;
mod memory;
mod reclaim;
mod segment_log;
mod shard;
mod shard_set;
#[cfg(test)]
mod tests;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::clock::Clock;
use super::config::Config;
use shard::StoreCounters;

pub use item::{ItemBits, ItemHeader, NewItem, NewValue, StoredValue};
pub use memory::{BufferReservation, LargeValue, OutOfMemory};
pub use shard_set::{LockedEntry, ShardSet};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Items, including expired ones that were not removed yet.
    pub items: u64,
    /// Bytes of items: headers, keys and values.
    pub bytes: u64,
    /// Bytes of all memory in use: segments, hash tables and large values. The limit applies to
    /// this.
    pub memory: u64,
    /// Bytes of hash tables and ghost queues.
    pub tables: u64,
    pub segments: u64,
    pub counters: StoreCounters,
}

/// Where [`Store::walk`] continues. The default is the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WalkPosition {
    shard: usize,
    segment: u32,
    /// The segment whose items are visited, and the offset of the next one.
    segment_id: u64,
    offset: usize,
}

/// What an item takes in memcached besides its key, value, flags and CAS unique: `struct _stritem`,
/// the terminator of the key, and the line end that it keeps with the value.
const MEMCACHED_ITEM: usize = 48 + 1 + 2;

/// A shard's least memory: with less, its segments would be too small.
const MIN_SHARD_MEMORY: u64 = 4 << 20;
/// What the item locations of a shard can address: 2³² multiples of four bytes, with a margin.
const MAX_SHARD_MEMORY: u64 = 8 << 30;
const SEGMENTS_PER_SHARD: u64 = 64;
/// The smallest and the largest segment, in bytes.
const SEGMENT_SIZES: (u64, u64) = (16 << 10, 4 << 20);
/// Items that a walk examines under one lock.
const WALK_STEP: usize = 1000;
/// A shard needs a segment for each queue, one for moving items, and one that is being freed.
const MIN_SEGMENTS: usize = 4;

/// The item store. All methods may be called from several threads at once.
#[derive(Debug)]
pub struct Store {
    shards: ShardSet,
    clock: Clock,
    last_cas: AtomicU64,
    cas: bool,
    /// The second of a delayed flush; 0 is none.
    flush_at: AtomicU32,
    max_item: usize,
}

impl Store {
    /// An empty store with the limits of a configuration, for a number of threads.
    pub fn new(config: &Config, workers: usize) -> Self {
        let most = (config.memory / MIN_SHARD_MEMORY).max(1);
        let least = config.memory.div_ceil(MAX_SHARD_MEMORY);
        let shards = (workers.max(1) as u64 * 4).min(most).max(least);
        let segment = 1 << (config.memory / shards / SEGMENTS_PER_SHARD).max(1).ilog2();
        let segment_size = SEGMENT_SIZES.1.min(segment).max(SEGMENT_SIZES.0) as usize;
        Self {
            shards: ShardSet::new(shards, segment_size, config.memory, config.evict),
            clock: Clock::start(),
            last_cas: AtomicU64::new(0),
            cas: config.cas,
            flush_at: AtomicU32::new(0),
            max_item: config.max_item,
        }
    }

    /// The shards and their memory, for what concerns no single item.
    pub fn shards(&self) -> &ShardSet {
        &self.shards
    }

    /// The clock that expiries and the `now` arguments refer to.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The memory limit, in bytes.
    pub fn limit(&self) -> u64 {
        self.shards.memory.limit.get()
    }

    /// Changes the memory limit. A lower limit takes effect over the next calls of
    /// [`Store::maintain`]; with evictions disabled, once enough items were deleted or have
    /// expired. Returns false, without effect, if the store cannot work with so little memory.
    pub fn set_limit(&self, bytes: u64) -> bool {
        let usage = self.usage();
        let least = (self.shards.len() * self.shards.segment_size * MIN_SEGMENTS) as u64 + usage.tables;
        if bytes < least {
            return false;
        }
        self.shards.memory.limit.set(bytes);
        true
    }

    /// Whether the largest item size allows a key and a value of these lengths, with these client
    /// flags. What counts is what memcached needs for the item, so that the same values are
    /// refused.
    pub fn fits(&self, key: usize, flags: u32, value: usize) -> bool {
        let flags = if flags == 0 { 0 } else { size_of::<u32>() };
        let cas = if self.cas { size_of::<u64>() } else { 0 };
        MEMCACHED_ITEM + key + flags + value + cas <= self.max_item
    }

    pub fn has_cas(&self) -> bool {
        self.cas
    }

    /// Returns a new CAS unique, 0 if items have none.
    pub fn next_cas(&self) -> u64 {
        if !self.cas {
            return 0;
        }
        self.last_cas.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Locks the key's shard and looks up the key. Removes the item if it has expired at second
    /// `now`.
    pub fn lock<'a>(&'a self, key: &'a [u8], now: u32) -> LockedEntry<'a> {
        LockedEntry::new(&self.shards, key, now)
    }

    /// Removes all items, now or at second `at`.
    pub fn flush(&self, at: Option<u32>) {
        self.flush_at.store(at.unwrap_or(0), Ordering::Relaxed);
        if at.is_none() {
            for index in 0..self.shards.len() {
                self.shards.lock(index).clear(&self.shards.memory);
            }
        }
    }

    /// Executes a delayed flush that is due at second `now`. Must be called before items are
    /// accessed.
    pub fn flush_if_due(&self, now: u32) {
        let at = self.flush_at.load(Ordering::Relaxed);
        if at != 0
            && now >= at
            && self.flush_at.compare_exchange(at, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            self.flush(None);
        }
    }

    /// Advances the clock, and for about `time` removes expired items and enforces a lowered limit.
    /// Must be called several times a second.
    pub fn maintain(&self, time: Duration) {
        let (start, now) = (Instant::now(), self.clock.refresh());
        self.flush_if_due(now);
        let memory = &self.shards.memory;
        while memory.is_over_limit() && self.shards.evict && start.elapsed() < time {
            if !self.shards.reclaim_from_any(None, now) {
                break;
            }
        }
        let mut idle = 0;
        while idle < self.shards.len() && start.elapsed() < time {
            let index = self.shards.next_index();
            idle = if self.shards.lock(index).crawl(now, memory) { 0 } else { idle + 1 };
        }
    }

    /// What the store holds, summed over all shards.
    pub fn usage(&self) -> StoreUsage {
        let mut sum = StoreUsage { memory: self.shards.memory.used.get(), ..StoreUsage::default() };
        for index in 0..self.shards.len() {
            let shard = self.shards.lock(index);
            sum.items += shard.item_count() as u64;
            sum.bytes += shard.live_bytes();
            sum.tables += shard.table_bytes();
            sum.segments += shard.log.segment_count() as u64;
            sum.counters += shard.counters;
        }
        sum.bytes += self.shards.memory.large.get();
        sum
    }

    /// Calls `visit` with some items, at most 1,000, and until it breaks. Returns where to
    /// continue, `None` at the end. Between calls the store is unlocked: items that are stored
    /// meanwhile may be missed, and items that are moved may be visited twice.
    pub fn walk(
        &self,
        from: WalkPosition,
        now: u32,
        mut visit: impl FnMut(&[u8], &ItemHeader) -> ControlFlow<()>,
    ) -> Option<WalkPosition> {
        let WalkPosition { shard: mut index, mut segment, segment_id, offset } = from;
        while index < self.shards.len() {
            let shard = self.shards.lock(index);
            let next =
                shard.log.segments().map(|(number, _)| number).filter(|number| *number >= segment).min();
            if let Some(number) = next {
                let id = shard.log.segment(number).map_or(0, |segment| segment.id);
                // Another segment with this number is visited from its start.
                let start = if id == segment_id { offset } else { 0 };
                let left = shard.visit_segment(number, start, now, WALK_STEP, &mut visit);
                let next = WalkPosition { shard: index, segment: number + 1, ..WalkPosition::default() };
                return Some(left.map_or(next, |offset| WalkPosition {
                    shard: index,
                    segment: number,
                    segment_id: id,
                    offset,
                }));
            }
            (index, segment) = (index + 1, 0);
        }
        None
    }
}
