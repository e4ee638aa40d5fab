//! Eviction, compaction and expiry of a shard's segments.
//!
//! New items enter the small queue. When memory is short, the oldest segment of a queue is freed:
//! items that were accessed meanwhile move on (from the small queue to the main one, in the main
//! one to its end), and the rest is evicted. A key that was evicted from the small queue and is
//! stored again soon enters the main queue directly (S3-FIFO: Yang et al., "FIFO queues are all you
//! need for cache eviction", SOSP 2023). Bytes of deleted and replaced items are reclaimed first:
//! segments with enough of them are compacted by moving their live items.

use std::hash::BuildHasher;

use super::item::{self, ItemBits, ItemHeader};
use super::segment_log::{ItemLocation, Queue, Segment, live_items};
use super::shard::Shard;

/// The small queue's share of all segments: one in this many.
const SMALL_QUEUE_SHARE: usize = 10;
/// Accesses that move an item from the small queue to the main one.
const PROMOTE_AT: u8 = 1;
/// A segment is compacted without evictions if at most this many quarters of it are live.
const COMPACT_AT: usize = 3;
/// A segment with expired items is compacted if at most this many quarters of it remain.
const COMPACT_EXPIRED_AT: usize = 2;

impl Shard {
    /// Frees some memory: of dead items first, of live ones if `evict` is set. False if nothing was
    /// freed.
    pub fn reclaim(&mut self, now: u32, evict: bool) -> bool {
        let limit = self.log.segment_size * COMPACT_AT / 4;
        if self.emptiest_segment().is_none_or(|(_, occupied)| occupied > limit) {
            // Expired items count as live until they are removed.
            let due = self.log.segments().find(|(_, segment)| segment.first_expiry <= now);
            if let Some(index) = due.map(|(index, _)| index) {
                self.expire_segment(index, now);
            }
        }
        let freed = match self.emptiest_segment() {
            Some((index, occupied)) if occupied <= limit => self.free_segment(index, false, now),
            _ => {
                let candidate = self.eviction_candidate().filter(|_| evict);
                candidate.is_some_and(|index| self.free_segment(index, true, now))
            }
        };
        if self.memory.is_over_limit() {
            self.release_free_segments(usize::MAX);
        }
        freed
    }

    /// The closed segment with the fewest occupied bytes.
    fn emptiest_segment(&self) -> Option<(u32, usize)> {
        let size = self.log.segment_size;
        let closed = self.log.segments().filter(|(index, _)| !self.log.is_open(*index));
        closed.map(|(index, segment)| (index, segment.occupied_bytes(size))).min_by_key(|(_, bytes)| *bytes)
    }

    fn eviction_candidate(&self) -> Option<u32> {
        let (small, main) = (self.log.queue(Queue::Small), self.log.queue(Queue::Main));
        let share = self.log.segment_count() / SMALL_QUEUE_SHARE;
        let queue = if small.len() > share.max(1) || main.is_empty() { small } else { main };
        queue.front().copied()
    }

    /// Frees a segment. Moves its live items, with `evict` only those that were accessed. False if
    /// the kernel has no memory for the move.
    fn free_segment(&mut self, index: u32, evict: bool, now: u32) -> bool {
        let Some(queue) = self.log.segment(index).map(|segment| segment.queue) else { return false };
        let Some((map, used)) = self.log.detach_segment(index) else { return false };
        self.generation += 1;
        let mut budget = match (evict, queue) {
            (true, Queue::Main) => retained_bytes(&map, used, self.log.segment_size * COMPACT_AT / 4),
            _ => [0; 4],
        };
        for (offset, header) in live_items(&map, used) {
            let item = &map[offset..offset + header.size()];
            let from = self.log.location(index, offset);
            let hash = self.hasher.hash_one(item::key(item));
            let accesses = header.bits.access_count();
            let expired = header.has_expired(now);
            let (target, bits) = match (evict, queue) {
                _ if expired => (None, header.bits),
                (false, queue) => (Some(queue), header.bits),
                (true, Queue::Small) => {
                    ((accesses >= PROMOTE_AT).then_some(Queue::Main), header.bits.with_access_count(0))
                }
                (true, Queue::Main) => {
                    let left = &mut budget[usize::from(accesses)];
                    let retained = accesses > 0 && header.size() <= *left;
                    *left -= if retained { header.size() } else { 0 };
                    let bits = header.bits.with_access_count(accesses.saturating_sub(1));
                    (retained.then_some(Queue::Main), bits)
                }
            };
            let to = target.and_then(|queue| self.append_moved(queue, &header));
            self.relocate(hash, from, to);
            if let Some(to) = to {
                self.counters.moved += 1;
                let copy = &mut self.log.item_mut(to)[..item.len()];
                copy.copy_from_slice(item);
                item::update(copy, |header| header.bits = bits);
                self.log.note_expiry(to, header.expiry);
                continue;
            }
            if header.bits.contains(ItemBits::LARGE) {
                self.remove_large_value(item::large_value_number(item, &header));
            }
            if expired {
                self.count_expired(&header);
            } else {
                self.counters.evictions += 1;
                self.counters.evicted_unfetched += u64::from(!header.bits.contains(ItemBits::FETCHED));
                if queue == Queue::Small {
                    self.ghosts.insert(hash);
                }
            }
        }
        self.log.recycle_segment(index, map);
        true
    }

    /// Allocates space for an item that is moved. May use the free segment that is kept for this.
    fn append_moved(&mut self, queue: Queue, header: &ItemHeader) -> Option<ItemLocation> {
        let (size, external, log) = (header.size(), header.external_bytes(), &mut self.log);
        log.append(queue, size, external).or_else(|| match log.free_segments.is_empty() {
            // Exceed the open segment's share of large values rather than lose the item.
            true => log.append(queue, size, 0),
            false => log.append_to_new(queue, size, external),
        })
    }

    fn expire_segment(&mut self, index: u32, now: u32) {
        let Some(segment) = self.log.segment(index) else { return };
        let (mut first, mut checked) = (u32::MAX, 0);
        let mut expired = Vec::new();
        let map = self.log.item(self.log.location(index, 0));
        for (offset, header) in live_items(map, segment.used) {
            checked += 1;
            let expiry = header.expiry;
            match expiry {
                0 => {}
                expiry if expiry <= now => expired.push((self.log.location(index, offset), header)),
                expiry => first = first.min(expiry),
            }
        }
        self.counters.crawled += checked;
        self.log.set_first_expiry(index, first);
        for (location, header) in expired {
            let hash = self.hasher.hash_one(item::key(self.log.item(location)));
            self.remove(hash, location);
            self.count_expired(&header);
        }
    }

    /// Removes the expired items of a segment, and gives a free one back to the kernel. Returns
    /// whether there was one to examine.
    pub fn crawl(&mut self, now: u32) -> bool {
        let is_due = |(index, segment): &(u32, &Segment)| {
            segment.first_expiry <= now || (segment.live == 0 && !self.log.is_open(*index))
        };
        let due = || self.log.segments().filter(is_due).map(|(index, _)| index);
        let next = due().find(|index| *index >= self.crawl_cursor).or_else(|| due().next());
        if let Some(index) = next {
            self.crawl_cursor = index + 1;
            self.expire_segment(index, now);
            let size = self.log.segment_size;
            let occupied = self.log.segment(index).map_or(usize::MAX, |segment| segment.occupied_bytes(size));
            // An open segment continues to be filled unless nothing in it is live.
            let limit = if self.log.is_open(index) { 0 } else { size * COMPACT_EXPIRED_AT / 4 };
            if occupied <= limit {
                self.free_segment(index, false, now);
            }
        }
        self.release_free_segments(1);
        next.is_some()
    }
}

/// How many bytes of a main segment's accessed items are retained, by access count: at most `max`.
/// The most accessed items come first. Some items are always evicted, as otherwise freeing a
/// segment might free nothing.
fn retained_bytes(map: &[u8], used: usize, max: usize) -> [usize; 4] {
    let mut bytes = [0; 4];
    for (_, header) in live_items(map, used) {
        bytes[usize::from(header.bits.access_count())] += header.size();
    }
    let mut left = max;
    for bytes in bytes.iter_mut().skip(1).rev() {
        *bytes = left.min(*bytes);
        left -= *bytes;
    }
    bytes
}
