//! A shard: an index of item locations and the segment log that they point into, under one lock.

use std::ops::ControlFlow;
use std::sync::Arc;

use foldhash::quality::FixedState;
use memmap2::MmapMut;
use slab::Slab;

use super::index::Index;
use super::item::{self, ItemBits, ItemHeader};
use super::memory::{LargeValue, MemoryBudget};
use super::segment_log::{ItemLocation, Queue, SegmentLog, Walk, items_from};

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
    /// The seconds from the last access of the item that was evicted last to that; in a sum, those of
    /// one of the shards.
    pub evicted_after: u32,
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
        if other.evictions > 0 {
            self.evicted_after = other.evicted_after;
        }
    }
}

/// The free segments that opening one takes: the one to open, and one that stays, for items that are
/// moved.
const FREE_SEGMENTS: usize = 2;
/// The free segments of a full store: both queues' open segments may be full at once.
pub(super) const FREE_SEGMENTS_AHEAD: usize = FREE_SEGMENTS + 1;

/// One shard of the store. The file `reclaim.rs` frees its memory.
#[derive(Debug)]
pub struct Shard {
    pub(super) index: Index,
    pub log: SegmentLog,
    large_values: Slab<Arc<LargeValue>>,
    pub counters: StoreCounters,
    /// Changes whenever items are moved or evicted.
    pub generation: u64,
    pub(super) crawl_cursor: u32,
    /// The segment that is being worked on.
    pub(super) walk: Option<Walk>,
    pub(super) hasher: FixedState,
    pub(super) memory: Arc<MemoryBudget>,
}

impl Shard {
    /// `index_parts`: in how many parts the hash table grows.
    pub fn new(
        segment_size: usize,
        index_parts: usize,
        hasher: FixedState,
        memory: Arc<MemoryBudget>,
    ) -> Self {
        Self {
            index: Index::new(index_parts),
            log: SegmentLog::new(segment_size),
            large_values: Slab::new(),
            counters: StoreCounters::default(),
            generation: 0,
            crawl_cursor: 0,
            walk: None,
            hasher,
            memory,
        }
    }

    pub fn item_count(&self) -> usize {
        self.index.len()
    }

    /// Bytes of hash tables and ghost queues.
    pub fn index_bytes(&self) -> u64 {
        self.index.bytes()
    }

    /// The second of the last access to the first item of the queues' oldest segments.
    pub fn oldest_access(&self) -> Option<u32> {
        let firsts = [Queue::Small, Queue::Main].map(|queue| self.log.queue(queue).front().copied());
        firsts.into_iter().flatten().map(|index| self.header(self.log.location(index, 0)).accessed).min()
    }

    pub fn find(&self, hash: u64, key: &[u8]) -> Option<ItemLocation> {
        self.index.find(hash, |location| item::key(self.log.item(location)) == key)
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
        let before = self.index.bytes();
        self.index.insert(hash, location);
        self.memory.used.fetch_add(self.index.bytes() - before);
    }

    pub fn remove(&mut self, hash: u64, location: ItemLocation) {
        self.index.relocate(hash, location, None);
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
        if self.index.take_ghost(hash) { Queue::Main } else { Queue::Small }
    }

    /// Allocates `size` bytes for an item without freeing any. `external` is the size of its large
    /// value.
    pub fn allocate(&mut self, queue: Queue, size: usize, external: u64) -> Option<ItemLocation> {
        if let Some(location) = self.log.append(queue, size, external) {
            return Some(location);
        }
        while self.log.free_segments.len() < FREE_SEGMENTS {
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

    /// Gives at most `max` free segments back to the kernel. While there are items it keeps one to
    /// move them to, and in a full store those that were freed for the next items.
    pub fn release_free_segments(&mut self, max: usize) {
        let kept = match self.log.segment_count() {
            0 => 0,
            _ if self.memory.is_full() => FREE_SEGMENTS_AHEAD,
            _ => 1,
        };
        let released = self.log.free_segments.len().saturating_sub(kept).min(max);
        self.log.free_segments.truncate(self.log.free_segments.len() - released);
        self.memory.used.fetch_sub((released * self.log.segment_size) as u64);
    }

    /// Drops everything and returns its memory, after a panic has left an unknown state.
    pub fn discard(&mut self) {
        self.clear();
        self.release_free_segments(usize::MAX);
        let (size, parts) = (self.log.segment_size, self.index.parts());
        let new = Self::new(size, parts, self.hasher.clone(), Arc::clone(&self.memory));
        *self = Self { counters: self.counters, generation: self.generation, ..new };
    }

    /// Drops all items. The crawler releases their memory step by step.
    pub fn clear(&mut self) {
        self.generation += 1;
        self.walk = None;
        self.memory.used.fetch_sub(self.index.bytes());
        self.index = Index::new(self.index.parts());
        std::mem::take(&mut self.large_values).into_iter().for_each(|(_, large)| large.mark_removed());
        self.log.clear();
    }
}
