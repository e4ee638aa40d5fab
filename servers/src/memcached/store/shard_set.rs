//! All shards of a store, and how they make room for each other under the common memory limit.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::memory::{BufferReservation, MemoryBudget, OutOfMemory};
use super::shard::{KeyHasher, Shard};
use super::value::{LargeValue, footprint};

/// A value larger than a segment divided by this is stored as a large value.
const LARGE_VALUE_DIVISOR: usize = 4;
/// How often reclaiming memory is tried before an item is refused.
pub const MAX_RECLAIM_TRIES: usize = 10_000;

#[derive(Debug)]
pub struct ShardSet {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    pub memory: Arc<MemoryBudget>,
    pub hasher: KeyHasher,
    /// The shard that gives up memory next, and that the crawler visits next; modulo the number of
    /// shards.
    next_shard: AtomicUsize,
    pub segment_size: usize,
    pub evict: bool,
}

/// Keeps a value in its own cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct CachePadded<T>(T);

impl ShardSet {
    pub fn new(shards: u64, segment_size: usize, memory: u64, evict: bool) -> Self {
        let hasher = KeyHasher::with_random_seed();
        let shard = || CachePadded(Mutex::new(Shard::new(segment_size, hasher.clone())));
        Self {
            shards: (0..shards).map(|_| shard()).collect(),
            memory: Arc::new(MemoryBudget::new(memory)),
            hasher,
            next_shard: AtomicUsize::new(0),
            segment_size,
            evict,
        }
    }

    pub fn len(&self) -> usize {
        self.shards.len()
    }

    pub fn lock(&self, index: usize) -> MutexGuard<'_, Shard> {
        let shard = &self.shards[index].0;
        shard.lock().unwrap_or_else(|poisoned| {
            // A panic may have left segments and hash table in disagreement, and whatever follows
            // from that. Losing the shard's items is a cache's right; serving or crawling them is
            // not.
            let mut locked = poisoned.into_inner();
            let items = locked.item_count();
            locked.discard(&self.memory);
            shard.clear_poison();
            tracing::error!(
                shard = index,
                items,
                "a part of the store was emptied, as a panic had interrupted a change to it"
            );
            locked
        })
    }

    /// The index of the next shard to reclaim memory from or to crawl.
    pub fn next_index(&self) -> usize {
        self.next_shard.fetch_add(1, Ordering::Relaxed) % self.shards.len()
    }

    pub fn index_of(&self, hash: u64) -> usize {
        // The upper bits: hash table and ghost queue use the lower ones.
        ((u128::from(hash) * self.shards.len() as u128) >> 64) as usize
    }

    /// Whether a value of `length` bytes is stored as a large value.
    pub fn is_large(&self, length: usize) -> bool {
        length > self.segment_size / LARGE_VALUE_DIVISOR
    }

    /// Reclaims memory from some shard other than `locked`, whose lock the caller holds.
    pub fn reclaim_from_any(&self, locked: Option<usize>, now: u32) -> bool {
        // A shard's first attempt may only have compacted segments.
        for _ in 0..4 * self.shards.len() {
            let index = self.next_index();
            if Some(index) == locked {
                continue;
            }
            // Never waits for a lock while holding another.
            let shard = match locked {
                None => Some(self.lock(index)),
                Some(_) => self.shards[index].0.try_lock().ok(),
            };
            let Some(mut shard) = shard else { continue };
            let before = self.memory.used();
            // Free segments first: after a flush, all memory is in them.
            shard.release_free_segments(&self.memory, usize::MAX);
            if self.memory.used() >= before && shard.reclaim(now, self.evict, &self.memory) {
                shard.release_free_segments(&self.memory, usize::MAX);
            }
            // Concurrent allocations may hide what was released; then the next shard is tried.
            if self.memory.used() < before {
                return true;
            }
        }
        false
    }

    /// Allocates a large value that is about to be received. No shard may be locked.
    pub fn allocate_large_value(&self, length: usize, now: u32) -> Result<LargeValue, OutOfMemory> {
        self.reserve_unstored(footprint(length), now)?;
        LargeValue::new(length, &self.memory).map_err(|_| OutOfMemory)
    }

    /// Reserves memory for a connection's buffer. No shard may be locked.
    pub fn reserve_buffer(&self, bytes: u64, now: u32) -> Result<BufferReservation, OutOfMemory> {
        // It takes the memory back also if that fails below.
        let mut reservation = BufferReservation::new(bytes, &self.memory);
        if self.memory.add_buffer(bytes) {
            self.reserve_unstored(bytes, now)?;
            reservation.mark_counted();
        }
        Ok(reservation)
    }

    /// Reserves memory for what is not in the store, and frees some of the store's if there is
    /// none.
    fn reserve_unstored(&self, size: u64, now: u32) -> Result<(), OutOfMemory> {
        // It may take at most half of the memory; the other half remains for stored items.
        if self.memory.unstored() + size > self.memory.limit() / 2 {
            return Err(OutOfMemory);
        }
        let mut tries = 0;
        while !self.memory.try_reserve(size) {
            tries += 1;
            if tries > MAX_RECLAIM_TRIES || !self.reclaim_from_any(None, now) {
                return Err(OutOfMemory);
            }
        }
        Ok(())
    }
}
