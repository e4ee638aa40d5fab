//! A shard: a hash table of item locations and the segment log that they point into, under one
//! lock.

use std::ops::ControlFlow;
use std::sync::Arc;

use foldhash::quality::FixedState;
use hashbrown::HashTable;
use memmap2::MmapMut;
use slab::Slab;

use super::item::{self, ItemBits, ItemHeader};
use super::memory::{LargeValue, MemoryBudget};
use super::segment_log::{ItemLocation, Queue, SegmentLog, items_from};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreCounters {
    pub evictions: u64,
    /// Evicted items that were never fetched.
    pub evicted_unfetched: u64,
    pub expired: u64,
    /// Expired items that were never fetched.
    pub expired_unfetched: u64,
    /// Expired items that a client's request found.
    pub found_expired: u64,
    pub crawled: u64,
    pub moved: u64,
}

impl std::ops::AddAssign for StoreCounters {
    fn add_assign(&mut self, other: Self) {
        self.evictions += other.evictions;
        self.evicted_unfetched += other.evicted_unfetched;
        self.expired += other.expired;
        self.expired_unfetched += other.expired_unfetched;
        self.found_expired += other.found_expired;
        self.crawled += other.crawled;
        self.moved += other.moved;
    }
}

#[derive(Debug, Clone, Copy)]
struct TableEntry {
    /// The lower half of the key's hash.
    hash: u32,
    location: ItemLocation,
}

/// The table's own hash, computed from the part of the key's hash that an entry keeps.
fn table_hash(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// One shard of the store. The file `reclaim.rs` frees its memory.
#[derive(Debug)]
pub struct Shard {
    table: HashTable<TableEntry>,
    pub log: SegmentLog,
    large_values: Slab<Arc<LargeValue>>,
    pub(super) ghosts: GhostQueue,
    pub counters: StoreCounters,
    /// Bytes of hash table and ghost queue, as reserved in the memory budget.
    pub table_bytes: u64,
    /// Changes whenever items are moved or evicted.
    pub generation: u64,
    pub(super) crawl_cursor: u32,
    pub(super) hasher: FixedState,
    pub(super) memory: Arc<MemoryBudget>,
}

impl Shard {
    pub fn new(segment_size: usize, hasher: FixedState, memory: Arc<MemoryBudget>) -> Self {
        Self {
            table: HashTable::new(),
            log: SegmentLog::new(segment_size),
            large_values: Slab::new(),
            ghosts: GhostQueue::default(),
            counters: StoreCounters::default(),
            table_bytes: 0,
            generation: 0,
            crawl_cursor: 0,
            hasher,
            memory,
        }
    }

    pub fn item_count(&self) -> usize {
        self.table.len()
    }

    pub fn find(&self, hash: u64, key: &[u8]) -> Option<ItemLocation> {
        let hash = hash as u32;
        let same = |entry: &TableEntry| entry.hash == hash && item::key(self.log.item(entry.location)) == key;
        self.table.find(table_hash(hash), same).map(|entry| entry.location)
    }

    pub fn header(&self, location: ItemLocation) -> ItemHeader {
        item::header(self.log.item(location))
    }

    pub fn large_value(&self, location: ItemLocation, header: &ItemHeader) -> Option<&Arc<LargeValue>> {
        self.large_values.get(item::large_value_number(self.log.item(location), header))
    }

    pub fn add_large_value(&mut self, large: LargeValue) -> u32 {
        large.mark_stored();
        self.large_values.insert(Arc::new(large)) as u32
    }

    pub(super) fn remove_large_value(&mut self, number: usize) {
        if let Some(large) = self.large_values.try_remove(number) {
            large.mark_removed();
        }
    }

    pub fn insert(&mut self, hash: u64, location: ItemLocation) {
        let hash = hash as u32;
        let before = self.table.allocation_size();
        let entry = TableEntry { hash, location };
        self.table.insert_unique(table_hash(hash), entry, |entry| table_hash(entry.hash));
        if self.table.allocation_size() != before {
            self.ghosts = GhostQueue::with_capacity(self.table.capacity());
            self.update_table_bytes();
        }
    }

    fn update_table_bytes(&mut self) {
        let bytes = (self.table.allocation_size() + self.ghosts.size()) as u64;
        self.memory.used.fetch_add(bytes);
        self.memory.used.fetch_sub(self.table_bytes);
        self.table_bytes = bytes;
    }

    /// Points an item's table entry to its new location, or removes the entry.
    pub(super) fn relocate(&mut self, hash: u64, from: ItemLocation, to: Option<ItemLocation>) {
        let hash = hash as u32;
        let entry = self.table.find_entry(table_hash(hash), |entry| entry.location == from);
        let Ok(mut entry) = entry else { return };
        match to {
            Some(to) => entry.get_mut().location = to,
            None => drop(entry.remove()),
        }
    }

    pub fn remove(&mut self, hash: u64, location: ItemLocation) {
        self.relocate(hash, location, None);
        let header = self.header(location);
        if header.bits.contains(ItemBits::LARGE) {
            self.remove_large_value(item::large_value_number(self.log.item(location), &header));
        }
        self.log.mark_dead(location, &header);
    }

    pub(super) fn count_expired(&mut self, header: &ItemHeader) {
        self.counters.expired += 1;
        self.counters.expired_unfetched += u64::from(!header.bits.contains(ItemBits::FETCHED));
    }

    /// The queue for a new item: the main queue if the key was evicted recently.
    pub fn queue_for_new(&mut self, hash: u64) -> Queue {
        if self.ghosts.remove(hash) { Queue::Main } else { Queue::Small }
    }

    /// Allocates `size` bytes for an item without freeing any. `external` is the size of its large
    /// value.
    pub fn allocate(&mut self, queue: Queue, size: usize, external: u64) -> Option<ItemLocation> {
        if let Some(location) = self.log.append(queue, size, external) {
            return Some(location);
        }
        if self.memory.is_over_limit() {
            return None;
        }
        while self.log.free_segments.len() < 2 {
            // One for the item, one kept for moving items.
            if !self.memory.try_reserve(self.log.segment_size as u64) {
                return None;
            }
            let Ok(map) = MmapMut::map_anon(self.log.segment_size) else {
                self.memory.used.fetch_sub(self.log.segment_size as u64);
                return None;
            };
            self.log.free_segments.push(map);
        }
        self.log.append_to_new(queue, size, external)
    }

    /// Calls `visit` with a segment's live, unexpired items from an offset on, until it breaks or
    /// `max` items were examined. Returns the offset of the next item, `None` at the end.
    pub fn visit_segment(
        &self,
        index: u32,
        from: usize,
        now: u32,
        max: usize,
        mut visit: impl FnMut(&[u8], &ItemHeader) -> ControlFlow<()>,
    ) -> Option<usize> {
        let segment = self.log.segment(index)?;
        let map = self.log.item(self.log.location(index, 0));
        for (examined, (offset, header)) in items_from(map, from, segment.used).enumerate() {
            if examined == max {
                return Some(offset);
            }
            let visible = !header.bits.contains(ItemBits::DEAD) && !header.has_expired(now);
            if visible && visit(item::key(&map[offset..]), &header).is_break() {
                return Some(offset + header.size());
            }
        }
        None
    }

    /// Gives at most `max` free segments back to the kernel. Keeps one while there are items, which
    /// may have to be moved.
    pub fn release_free_segments(&mut self, max: usize) {
        let kept = usize::from(self.log.segment_count() > 0);
        let released = self.log.free_segments.len().saturating_sub(kept).min(max);
        self.log.free_segments.truncate(self.log.free_segments.len() - released);
        self.memory.used.fetch_sub((released * self.log.segment_size) as u64);
    }

    /// Drops everything and returns its memory, after a panic has left an unknown state.
    pub fn discard(&mut self) {
        self.clear();
        self.release_free_segments(usize::MAX);
        let new = Self::new(self.log.segment_size, self.hasher.clone(), Arc::clone(&self.memory));
        *self = Self { counters: self.counters, generation: self.generation, ..new };
    }

    /// Drops all items. The crawler releases their memory step by step.
    pub fn clear(&mut self) {
        self.generation += 1;
        self.table = HashTable::new();
        std::mem::take(&mut self.large_values).into_iter().for_each(|(_, large)| large.mark_removed());
        self.ghosts = GhostQueue::default();
        self.log.clear();
        self.update_table_bytes();
    }
}

/// The ghost queue of S3-FIFO: fingerprints of recently evicted keys. Each key's hash selects one
/// position; a newer fingerprint replaces an older one there, so the queue is approximate and needs
/// no order.
#[derive(Debug, Default)]
pub struct GhostQueue {
    fingerprints: Box<[u16]>,
}

impl GhostQueue {
    pub fn with_capacity(keys: usize) -> Self {
        Self { fingerprints: vec![0; keys.next_power_of_two()].into() }
    }

    pub fn size(&self) -> usize {
        size_of_val(&*self.fingerprints)
    }

    /// The key's position, unless there is none, and its fingerprint. 0 marks an empty position.
    fn position(&mut self, hash: u64) -> Option<(&mut u16, u16)> {
        let position = hash as usize & self.fingerprints.len().wrapping_sub(1);
        Some((self.fingerprints.get_mut(position)?, (hash >> 40) as u16 | 1))
    }

    pub fn insert(&mut self, hash: u64) {
        if let Some((position, fingerprint)) = self.position(hash) {
            *position = fingerprint;
        }
    }

    pub fn remove(&mut self, hash: u64) -> bool {
        let found = self.position(hash).filter(|(position, fingerprint)| **position == *fingerprint);
        found.map(|(position, _)| *position = 0).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_evicted_key_is_found_exactly_once() {
        let mut ghosts = GhostQueue::with_capacity(100);
        assert_eq!(ghosts.size(), 256);
        let hash = 0x1234_5678_9abc_def0;
        assert!(!ghosts.remove(hash));
        ghosts.insert(hash);
        assert!(!ghosts.remove(hash ^ 1 << 50));
        assert!(ghosts.remove(hash));
        assert!(!ghosts.remove(hash));
        let mut empty = GhostQueue::default();
        empty.insert(hash);
        assert!(!empty.remove(hash));
    }
}
