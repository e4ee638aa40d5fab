//! The item store: shards, each with a hash table and a log of segments, under one memory limit.
//!
//! A command locks its key's shard with [`Store::lock`] and runs all of its steps under that lock,
//! so every command is atomic. Small values are copied out under the lock. Large values live in
//! their own pages and are shared by reference count, so a value that is being sent stays intact
//! when it is replaced.

mod index;
mod item;
mod memory;
mod reclaim;
mod segment_log;
mod shard;
mod shard_set;
#[cfg(test)]
mod tests;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_utils::atomic::AtomicCell;

use super::clock::Clock;
use super::config::Config;
use memory::MemoryBudget;
use segment_log::Segment;
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
    /// Bytes of segments, hash tables and large values, to which the limit applies.
    pub memory: u64,
    /// Bytes of hash tables and ghost queues.
    pub tables: u64,
    pub segments: u64,
    /// The second of the last access to the item that was stored or moved first, of some shard.
    pub oldest: Option<u32>,
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
const SEGMENT_SIZES: (u64, u64) = (16 << 10, 1 << 20);
/// A shard's memory for each part of its index: a part of the smallest items grows with 4,000 entries,
/// by 50 KiB.
const INDEX_PART_MEMORY: u64 = 128 << 10;
/// Items that a walk examines under one lock.
const WALK_STEP: usize = 1000;
/// A shard needs a segment for each queue, three free ones, and one that is being freed.
const MIN_SEGMENTS: usize = 6;

/// The item store. All methods may be called from several threads at once.
#[derive(Debug)]
pub struct Store {
    /// The shards and their memory, for what concerns no single item.
    pub shards: ShardSet,
    /// The clock that expiries and the `now` arguments refer to.
    pub clock: Clock,
    last_cas: AtomicU64,
    pub cas: bool,
    /// The second of a delayed flush; 0 is none.
    flush_at: AtomicCell<u32>,
    max_item: usize,
}

impl Store {
    pub fn new(config: &Config, workers: usize) -> Self {
        let most = (config.memory / MIN_SHARD_MEMORY).max(1);
        let least = config.memory.div_ceil(MAX_SHARD_MEMORY);
        let shards = (workers.max(1) as u64 * 4).min(most).max(least);
        let segment = 1 << (config.memory / shards / SEGMENTS_PER_SHARD).max(1).ilog2();
        let segment_size = SEGMENT_SIZES.1.min(segment).max(SEGMENT_SIZES.0) as usize;
        let index_parts = (config.memory / shards / INDEX_PART_MEMORY).max(1) as usize;
        Self {
            shards: ShardSet::new(shards, segment_size, index_parts, config.memory, config.evict),
            clock: Clock::start(),
            last_cas: AtomicU64::new(0),
            cas: config.cas,
            flush_at: AtomicCell::new(0),
            max_item: config.max_item,
        }
    }

    pub fn limit(&self) -> u64 {
        self.shards.memory.limit.load()
    }

    /// Changes the memory limit, to a lower one over the next calls of [`Store::maintain`]. False,
    /// without effect, if the store cannot work with so little memory.
    pub fn set_limit(&self, bytes: u64) -> bool {
        let usage = self.usage();
        let least = (self.shards.len() * self.shards.segment_size * MIN_SEGMENTS) as u64 + usage.tables;
        let is_enough = bytes >= least;
        if is_enough {
            self.shards.memory.limit.store(bytes);
        }
        is_enough
    }

    /// Whether the largest item size allows such an item. What counts is what memcached needs for
    /// it, so that the same values are refused.
    pub fn fits(&self, key: usize, flags: u32, value: usize) -> bool {
        let flags = if flags == 0 { 0 } else { size_of::<u32>() };
        let cas = if self.cas { size_of::<u64>() } else { 0 };
        MEMCACHED_ITEM + key + flags + value + cas <= self.max_item
    }

    /// Returns a new CAS unique, 0 if items have none.
    pub fn next_cas(&self) -> u64 {
        if self.cas { self.last_cas.fetch_add(1, Ordering::Relaxed) + 1 } else { 0 }
    }

    /// Locks the key's shard and looks up the key. Removes the item if it has expired at second
    /// `now`.
    pub fn lock<'a>(&'a self, key: &'a [u8], now: u32) -> LockedEntry<'a> {
        LockedEntry::new(&self.shards, key, now)
    }

    /// Removes all items, now or at second `at`.
    pub fn flush(&self, at: Option<u32>) {
        self.flush_at.store(at.unwrap_or(0));
        if at.is_none() {
            self.shards.each().for_each(|mut shard| shard.clear());
        }
    }

    /// Executes a delayed flush that is due at second `now`. Must be called before items are
    /// accessed.
    pub fn flush_if_due(&self, now: u32) {
        let at = self.flush_at.load();
        if (1..=now).contains(&at) && self.flush_at.compare_exchange(at, 0).is_ok() {
            self.flush(None);
        }
    }

    /// Advances the clock, and for about `time` removes expired items and enforces a lowered limit.
    /// Must be called several times a second.
    pub fn maintain(&self, time: Duration) {
        let (start, now) = (Instant::now(), self.clock.refresh());
        self.flush_if_due(now);
        let memory = &self.shards.memory;
        memory.trim_spares();
        while memory.is_over_limit()
            && self.shards.evict
            && start.elapsed() < time
            && self.shards.reclaim_from_any(None, now)
        {}
        let mut idle = 0;
        while idle < self.shards.len() && start.elapsed() < time {
            let index = self.shards.next_index();
            idle = if self.shards.lock(index).crawl(now) { 0 } else { idle + 1 };
        }
    }

    pub fn usage(&self) -> StoreUsage {
        let MemoryBudget { used, large, .. } = &*self.shards.memory;
        let mut sum = StoreUsage { memory: used.load(), bytes: large.load(), ..StoreUsage::default() };
        for shard in self.shards.each() {
            sum.items += shard.item_count() as u64;
            sum.bytes += shard.log.segments().map(|(_, segment)| segment.live as u64).sum::<u64>();
            sum.tables += shard.index_bytes();
            sum.segments += shard.log.segment_count() as u64;
            sum.counters += shard.counters;
            sum.oldest = sum.oldest.into_iter().chain(shard.oldest_access()).min();
        }
        sum
    }

    /// Calls `visit` with some items until it breaks. Returns where to continue, `None` at the end.
    /// Items that are stored between calls may be missed, and those that are moved visited twice.
    pub fn walk(
        &self,
        from: WalkPosition,
        now: u32,
        mut visit: impl FnMut(&[u8], &ItemHeader) -> ControlFlow<()>,
    ) -> Option<WalkPosition> {
        let WalkPosition { shard: index, segment, segment_id, offset } = from;
        if index == self.shards.len() {
            return None;
        }
        let shard = self.shards.lock(index);
        // The segments' numbers ascend.
        let next = shard.log.segments().find(|(number, _)| *number >= segment);
        let Some((number, &Segment { id, .. })) = next else {
            return Some(WalkPosition { shard: index + 1, ..WalkPosition::default() });
        };
        // Another segment with this number is visited from its start.
        let start = if id == segment_id { offset } else { 0 };
        Some(match shard.visit_segment(number, start, now, WALK_STEP, &mut visit) {
            Some(offset) => WalkPosition { shard: index, segment: number, segment_id: id, offset },
            None => WalkPosition { shard: index, segment: number + 1, ..WalkPosition::default() },
        })
    }
}
