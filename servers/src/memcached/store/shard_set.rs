//! All shards of a store, how they make room for each other under the common memory limit, and a
//! key's entry while its shard is locked.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crossbeam_utils::CachePadded;
use foldhash::quality::{FixedState, RandomState};
use zerocopy::IntoBytes;

use super::item::{self, ItemBits, ItemHeader, NewItem, NewValue, StoredValue};
use super::memory::{BufferReservation, LargeValue, MemoryBudget, OutOfMemory, footprint, pages};
use super::reclaim::Reclaimed;
use super::segment_log::ItemLocation;
use super::shard::Shard;

/// A value larger than a segment divided by this is stored as a large value.
const LARGE_VALUE_DIVISOR: usize = 4;
/// The bytes of a segment that are worked on while its shard is locked, for memory outside of it.
const RECLAIM_STEP: usize = 64 << 10;
/// How often reclaiming memory is tried before an item is refused.
const MAX_RECLAIM_TRIES: usize = 10_000;
/// The share of buffers that don't count, so that a few slow clients evict nothing.
const FREE_BUFFERS_DIVISOR: u64 = 32;

#[derive(Debug)]
pub struct ShardSet {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    pub memory: Arc<MemoryBudget>,
    /// Its seed is random, so that clients can't construct keys that collide.
    pub hasher: FixedState,
    /// The shard that gives up memory next, and that the crawler visits next; modulo the number of
    /// shards.
    next_shard: AtomicUsize,
    pub segment_size: usize,
    pub evict: bool,
}

impl ShardSet {
    pub fn new(shards: u64, segment_size: usize, index_parts: usize, limit: u64, evict: bool) -> Self {
        let margin = 2 * shards * segment_size as u64;
        let memory = Arc::new(MemoryBudget { margin, limit: limit.into(), ..MemoryBudget::default() });
        let hasher = FixedState::with_seed(RandomState::default().hash_one(0u8));
        let shard = || {
            let shard = Shard::new(segment_size, index_parts, hasher.clone(), Arc::clone(&memory));
            CachePadded::new(Mutex::new(shard))
        };
        Self {
            shards: (0..shards).map(|_| shard()).collect(),
            memory,
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
        let shard = &self.shards[index];
        shard.lock().unwrap_or_else(|poisoned| {
            // A panic may have left segments and hash table in disagreement, and whatever follows
            // from that. Losing the shard's items is a cache's right; serving or crawling them is
            // not.
            let mut locked = poisoned.into_inner();
            let items = locked.item_count();
            locked.discard();
            shard.clear_poison();
            tracing::error!(
                shard = index,
                items,
                "a part of the store was emptied, as a panic had interrupted a change to it"
            );
            locked
        })
    }

    /// Locks one shard after the other.
    pub fn each(&self) -> impl Iterator<Item = MutexGuard<'_, Shard>> {
        (0..self.len()).map(|index| self.lock(index))
    }

    /// The index of the next shard to reclaim memory from or to crawl.
    pub fn next_index(&self) -> usize {
        self.next_shard.fetch_add(1, Ordering::Relaxed) % self.shards.len()
    }

    pub fn index_of(&self, hash: u64) -> usize {
        // The upper bits: hash table and ghost queue use the lower ones.
        ((u128::from(hash) * self.shards.len() as u128) >> 64) as usize
    }

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
                Some(_) => self.shards[index].try_lock().ok(),
            };
            let Some(mut shard) = shard else { continue };
            let before = self.memory.used.load();
            // Free segments first: after a flush, all memory is in them.
            shard.release_free_segments(usize::MAX);
            while self.memory.used.load() >= before {
                match shard.reclaim(now, self.evict, RECLAIM_STEP) {
                    Reclaimed::Nothing => break,
                    Reclaimed::Segment => {
                        shard.release_free_segments(usize::MAX);
                        break;
                    }
                    // Others may lock it in between.
                    Reclaimed::Step if locked.is_none() => {
                        drop(shard);
                        shard = self.lock(index);
                    }
                    Reclaimed::Step => {}
                }
            }
            // Concurrent allocations may hide what was released; then the next shard is tried.
            if self.memory.used.load() < before {
                return true;
            }
        }
        false
    }

    /// Allocates a large value that is about to be received, unless values that are being received
    /// and sent take half of the limit already. No shard may be locked.
    pub fn allocate_large_value(&self, length: usize, now: u32) -> Result<LargeValue, OutOfMemory> {
        self.reserve_unstored(footprint(length), pages(length), now)?;
        LargeValue::new(length, &self.memory)
    }

    /// Reserves memory for a connection's buffer, as for a large value. Buffers of up to 1/32 of
    /// the limit in all don't count against it. No shard may be locked.
    pub fn reserve_buffer(&self, bytes: u64, now: u32) -> Result<BufferReservation, OutOfMemory> {
        let before = self.memory.buffers.fetch_add(bytes);
        // It takes the buffer back also if its memory can't be reserved.
        let mut reservation = BufferReservation { bytes, counted: false, memory: Arc::clone(&self.memory) };
        if before.saturating_add(bytes) > self.memory.limit.load() / FREE_BUFFERS_DIVISOR {
            self.reserve_unstored(bytes, bytes, now)?;
            self.memory.unstored.fetch_add(bytes);
            reservation.counted = true;
        }
        Ok(reservation)
    }

    /// Reserves memory for what is not in the store, and frees some of the store's if there is
    /// none. `least`: `size` before it was rounded up.
    fn reserve_unstored(&self, size: u64, least: u64, now: u32) -> Result<(), OutOfMemory> {
        // It may take at most half of the memory; the other half remains for stored items.
        if self.memory.unstored.load() + least > self.memory.limit.load() / 2 {
            return Err(OutOfMemory);
        }
        for _ in 0..MAX_RECLAIM_TRIES {
            if self.memory.try_reserve(size) {
                return Ok(());
            }
            if !self.reclaim_from_any(None, now) {
                break;
            }
        }
        Err(OutOfMemory)
    }
}

/// A key and its item, if there is one. Holds the lock of the key's shard.
#[derive(Debug)]
pub struct LockedEntry<'a> {
    shards: &'a ShardSet,
    shard: MutexGuard<'a, Shard>,
    key: &'a [u8],
    hash: u64,
    now: u32,
    location: Option<ItemLocation>,
}

impl<'a> LockedEntry<'a> {
    pub(super) fn new(shards: &'a ShardSet, key: &'a [u8], now: u32) -> Self {
        let hash = shards.hasher.hash_one(key);
        let mut shard = shards.lock(shards.index_of(hash));
        let mut location = shard.find(hash, key);
        if let Some(found) = location {
            let header = shard.header(found);
            if header.has_expired(now) {
                shard.remove(hash, found);
                shard.count_expired(&header);
                shard.counters.found_expired += 1;
                location = None;
            }
        }
        Self { shards, shard, key, hash, now, location }
    }

    pub fn header(&self) -> Option<ItemHeader> {
        self.location.map(|location| self.shard.header(location))
    }

    pub fn value(&self) -> Option<(ItemHeader, StoredValue<'_>)> {
        let location = self.location?;
        let item = self.shard.log.item(location);
        let header = item::header(item);
        let value = match header.bits.contains(ItemBits::LARGE) {
            true => StoredValue::Large(self.shard.large_value(location, &header)?),
            false => StoredValue::Inline(item::inline_bytes(item, &header)),
        };
        Some((header, value))
    }

    pub fn record_fetch(&mut self) {
        self.record(ItemBits::FETCHED);
    }

    /// Records an access that does not return the item to the client.
    pub fn record_access(&mut self) {
        self.record(ItemBits::default());
    }

    fn record(&mut self, bit: ItemBits) {
        let now = self.now;
        self.update(|header| {
            header.bits = header.bits.with_access_count(header.bits.access_count() + 1) | bit;
            header.accessed = now;
        });
    }

    /// Changes the header of the item, if there is one. Its lengths must stay, and its state bits
    /// must derive from those that it has.
    pub fn update(&mut self, change: impl FnOnce(&mut ItemHeader)) {
        if let Some(location) = self.location {
            item::update(self.shard.log.item_mut(location), change);
        }
    }

    pub fn set_expiry(&mut self, expiry: u32) {
        if let Some(location) = self.location {
            self.update(|header| header.expiry = expiry);
            self.shard.log.note_expiry(location, expiry);
        }
    }

    /// Removes the item. Returns whether there was one.
    pub fn remove(&mut self) -> bool {
        let location = self.location.take();
        location.map(|location| self.shard.remove(self.hash, location)).is_some()
    }

    /// Stores an item in place of the present one, if any. That stays if the store has no memory,
    /// unless it was evicted to make room. The value may take half of the limit.
    pub fn put(&mut self, new: NewItem<'_>) -> Result<(), OutOfMemory> {
        let length = new.value.length();
        let value = match new.value {
            NewValue::Slices(first, second) if self.shards.is_large(length) => {
                let mut large = self.allocate_large_value(length)?;
                let bytes = large.bytes_mut();
                bytes[..first.len()].copy_from_slice(first);
                bytes[first.len()..].copy_from_slice(second);
                NewValue::Large(large)
            }
            other => other,
        };
        let bits = match value {
            NewValue::Large(_) => new.bits | ItemBits::LARGE,
            NewValue::Slices(..) => new.bits - ItemBits::LARGE,
        };
        let old = self.header();
        let accesses = old.map_or(0, |old| old.bits.access_count());
        // Keys have at most 250 bytes.
        let header = ItemHeader {
            cas: new.cas,
            flags: new.flags,
            expiry: new.expiry,
            accessed: self.now,
            length: length as u32,
            key_length: self.key.len() as u8,
            bits: (bits - ItemBits::DEAD).with_access_count(accesses),
        };
        let in_place = old
            .is_some_and(|old| old.size() == header.size() && !(old.bits | bits).contains(ItemBits::LARGE));
        let location = match self.location {
            Some(location) if in_place => location,
            _ => self.allocate(&header)?,
        };
        let number;
        let (first, second) = match value {
            NewValue::Slices(first, second) => (first, second),
            NewValue::Large(large) => {
                number = self.shard.add_large_value(large).to_ne_bytes();
                (&number[..], &[][..])
            }
        };
        let (item, mut at) = (self.shard.log.item_mut(location), 0);
        for part in [header.as_bytes(), self.key, first, second] {
            item[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        self.shard.log.note_expiry(location, header.expiry);
        if !in_place {
            if let Some(old) = self.location.replace(location) {
                self.shard.remove(self.hash, old);
            }
            self.shard.insert(self.hash, location);
            if self.shards.evict {
                let generation = self.shard.generation;
                self.shard.reclaim_ahead(self.now, header.size());
                self.find_again(generation);
            }
        }
        Ok(())
    }

    fn allocate_large_value(&mut self, length: usize) -> Result<LargeValue, OutOfMemory> {
        let (shards, size) = (self.shards, footprint(length));
        if pages(length) > shards.memory.limit.load() / 2 {
            return Err(OutOfMemory);
        }
        self.make_room(|_| shards.memory.try_reserve(size).then_some(()), true)?;
        LargeValue::new(length, &shards.memory)
    }

    fn allocate(&mut self, header: &ItemHeader) -> Result<ItemLocation, OutOfMemory> {
        let (size, external) = (header.size(), header.external_bytes());
        let queue = match self.location {
            Some(old) => self.shard.log.queue_of(old),
            None => self.shard.queue_for_new(self.hash),
        };
        self.make_room(|shard| shard.allocate(queue, size, external), false)
    }

    /// Looks the item up again if items were moved or evicted since this generation.
    fn find_again(&mut self, generation: u64) {
        if self.shard.generation != generation {
            self.location = self.shard.find(self.hash, self.key);
        }
    }

    /// Frees memory until `attempt` succeeds. `release` states that `attempt` needs memory outside
    /// of any shard, so free segments must be released first.
    fn make_room<T>(
        &mut self,
        mut attempt: impl FnMut(&mut Shard) -> Option<T>,
        release: bool,
    ) -> Result<T, OutOfMemory> {
        let (shards, generation) = (self.shards, self.shard.generation);
        let own = shards.index_of(self.hash);
        let mut result = attempt(&mut self.shard);
        for _ in 0..MAX_RECLAIM_TRIES {
            if result.is_some() {
                break;
            }
            // A shard with less than half of the average takes memory from the others.
            let average = shards.memory.used.load() / shards.len() as u64;
            let small = (self.shard.log.segment_count() * shards.segment_size) as u64 * 2 < average;
            let from_others = || shards.reclaim_from_any(Some(own), self.now);
            let freed = small && from_others();
            if !(freed || self.shard.reclaim_segment(self.now, shards.evict) || from_others()) {
                break;
            }
            if release {
                self.shard.release_free_segments(usize::MAX);
            }
            result = attempt(&mut self.shard);
        }
        self.find_again(generation);
        result.ok_or(OutOfMemory)
    }
}
