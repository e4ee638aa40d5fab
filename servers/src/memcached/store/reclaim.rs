//! Eviction, compaction and expiry of a shard's segments.
//!
//! New items enter the small queue. When memory is short, the oldest segment of a queue is freed:
//! items that were accessed meanwhile move on (from the small queue to the main one, in the main
//! one to its end), and the rest is evicted. A key that was evicted from the small queue and is
//! stored again soon enters the main queue directly (S3-FIFO: Yang et al., "FIFO queues are all you
//! need for cache eviction", SOSP 2023). Bytes of deleted and replaced items are reclaimed first:
//! segments with enough of them are compacted by moving their live items.
//!
//! A segment may hold ten thousands of items, and the shard is locked meanwhile. So they are worked
//! on in steps: an item that is stored in a full store pays for a step, which is several times its
//! size, so that the next segment is free before the present one is full.

use std::hash::BuildHasher;

use super::item::{self, ItemBits, ItemHeader};
use super::segment_log::{ItemLocation, Queue, Segment, Walk, WalkTask as Task};
use super::shard::{FREE_SEGMENTS_AHEAD, Shard};

/// The small queue's share of all segments: one in this many.
const SMALL_QUEUE_SHARE: usize = 10;
/// Accesses that move an item from the small queue to the main one.
const PROMOTE_AT: u8 = 1;
/// A segment is compacted without evictions if at most this many quarters of it are live.
const COMPACT_AT: usize = 3;
/// A segment with expired items is compacted if at most this many quarters of it remain.
const COMPACT_EXPIRED_AT: usize = 2;
/// The bytes of a segment that are worked on for each byte that is stored. A segment of the main queue
/// is worked on twice, and may free a quarter of itself: eight. The rest is for those that become
/// free, and whose items are moved to others.
const WORK_PER_BYTE: usize = 16;
/// The same while the store has more memory than its limit, because its index has grown.
const WORK_PER_BYTE_OVER_LIMIT: usize = 64;
/// The bytes that maintenance works on while the shard is locked.
const CRAWL_STEP: usize = 64 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reclaimed {
    /// There is nothing to free.
    Nothing,
    Step,
    Segment,
}

impl Shard {
    /// Frees a segment: of dead items first, of live ones if `evict` is set. False if there is none.
    pub fn reclaim_segment(&mut self, now: u32, evict: bool) -> bool {
        loop {
            match self.reclaim(now, evict, usize::MAX) {
                Reclaimed::Nothing => return false,
                Reclaimed::Step => {}
                Reclaimed::Segment => return true,
            }
        }
    }

    /// Continues to free a segment, and stops after examining about `bytes` bytes of items.
    pub fn reclaim(&mut self, now: u32, evict: bool, bytes: usize) -> Reclaimed {
        if self.walk.is_none() && !self.choose_walk(now, evict) {
            return Reclaimed::Nothing;
        }
        let reclaimed = self.step(now, evict, bytes);
        if reclaimed == Reclaimed::Segment && self.memory.is_over_limit() {
            self.release_free_segments(usize::MAX);
        }
        reclaimed
    }

    /// After `stored` bytes were stored in a full store: works on the next segments to free.
    pub fn reclaim_ahead(&mut self, now: u32, stored: usize) {
        if self.memory.is_over_limit() {
            self.release_free_segments(usize::MAX);
            self.reclaim(now, true, stored * WORK_PER_BYTE_OVER_LIMIT);
        } else if self.log.free_segments.len() < FREE_SEGMENTS_AHEAD && self.memory.is_full() {
            self.reclaim(now, true, stored * WORK_PER_BYTE);
        }
    }

    fn choose_walk(&mut self, now: u32, evict: bool) -> bool {
        let limit = self.log.segment_size * COMPACT_AT / 4;
        let emptiest = self.emptiest_segment().filter(|(_, occupied)| *occupied <= limit);
        // Expired items count as live until they are removed.
        let due = || self.log.segments().find(|(_, segment)| segment.first_expiry <= now);
        let (segment, task) = match (emptiest, due()) {
            (Some((index, _)), _) => (index, Task::Free { retained: None }),
            (None, Some((index, _))) => (index, Task::Expire),
            (None, None) => match self.eviction_candidate().filter(|_| evict) {
                Some((index, Queue::Small)) => (index, Task::Free { retained: Some([0; 4]) }),
                Some((index, Queue::Main)) => (index, Task::Weigh([0; 4])),
                None => return false,
            },
        };
        self.begin_walk(segment, task);
        true
    }

    /// The closed segment with the fewest occupied bytes.
    fn emptiest_segment(&self) -> Option<(u32, usize)> {
        let size = self.log.segment_size;
        let closed = self.log.segments().filter(|(index, _)| !self.log.is_open(*index));
        closed.map(|(index, segment)| (index, segment.occupied_bytes(size))).min_by_key(|(_, bytes)| *bytes)
    }

    fn eviction_candidate(&self) -> Option<(u32, Queue)> {
        let (small, main) = (self.log.queue(Queue::Small), self.log.queue(Queue::Main));
        let share = self.log.segment_count() / SMALL_QUEUE_SHARE;
        let queue = if small.len() > share.max(1) || main.is_empty() { Queue::Small } else { Queue::Main };
        self.log.queue(queue).front().map(|index| (*index, queue))
    }

    fn begin_walk(&mut self, segment: u32, task: Task) {
        match task {
            // Set again by the items that remain, and by those that are stored meanwhile.
            Task::Expire => self.log.set_first_expiry(segment, u32::MAX),
            // What is stored or moved meanwhile goes elsewhere.
            Task::Free { .. } => self.log.close(segment),
            Task::Weigh(_) => {}
        }
        self.walk = Some(Walk { segment, offset: 0, task });
    }

    /// Continues the walk, and stops after about `bytes` bytes of its segment.
    fn step(&mut self, now: u32, evict: bool, bytes: usize) -> Reclaimed {
        let Some(mut walk) = self.walk.take() else { return Reclaimed::Nothing };
        let Some(queue) = self.log.segment(walk.segment).map(|segment| segment.queue) else {
            return Reclaimed::Step;
        };
        self.generation += 1;
        let end = walk.offset.saturating_add(bytes);
        let moves = matches!(walk.task, Task::Free { .. });
        while let Some(segment) = self.log.segment(walk.segment)
            && walk.offset < segment.used
            && !(moves && segment.live == 0)
        {
            if walk.offset >= end {
                self.walk = Some(walk);
                return Reclaimed::Step;
            }
            let location = self.log.location(walk.segment, walk.offset);
            let header = self.header(location);
            let is_live = !header.bits.contains(ItemBits::DEAD);
            match &mut walk.task {
                _ if !is_live => {}
                Task::Expire => self.expire_item(location, &header, now),
                Task::Weigh(bytes) => bytes[usize::from(header.bits.access_count())] += header.size(),
                Task::Free { retained } => {
                    let target = target_of(queue, &header, now, retained);
                    if !self.free_item(location, &header, target, (now, evict)) {
                        // The kernel has no memory, and nothing may be evicted.
                        self.log.put_back(walk.segment);
                        return Reclaimed::Nothing;
                    }
                }
            }
            walk.offset += header.size();
        }
        self.end_walk(&walk)
    }

    fn end_walk(&mut self, walk: &Walk) -> Reclaimed {
        let (index, size) = (walk.segment, self.log.segment_size);
        match walk.task {
            Task::Expire => {
                let occupied =
                    self.log.segment(index).map_or(usize::MAX, |segment| segment.occupied_bytes(size));
                // An open segment continues to be filled unless nothing in it is live.
                let limit = if self.log.is_open(index) { 0 } else { size * COMPACT_EXPIRED_AT / 4 };
                if occupied <= limit {
                    self.begin_walk(index, Task::Free { retained: None });
                }
                Reclaimed::Step
            }
            Task::Weigh(bytes) => {
                let retained = Some(retained_bytes(bytes, size * COMPACT_AT / 4));
                self.begin_walk(index, Task::Free { retained });
                Reclaimed::Step
            }
            Task::Free { .. } => {
                self.log.free(index);
                Reclaimed::Segment
            }
        }
    }

    fn expire_item(&mut self, location: ItemLocation, header: &ItemHeader, now: u32) {
        self.counters.crawled += 1;
        if header.has_expired(now) {
            self.remove(self.hash_of(location), location);
            self.count_expired(header);
        } else {
            self.log.note_expiry(location, header.expiry);
        }
    }

    fn hash_of(&self, location: ItemLocation) -> u64 {
        self.hasher.hash_one(item::key(self.log.item(location)))
    }

    /// Moves an item to another segment, or removes it. Returns false, and leaves the item, if moving
    /// it needs memory that the kernel doesn't give, and `evict` is not set.
    fn free_item(
        &mut self,
        from: ItemLocation,
        header: &ItemHeader,
        target: Option<(Queue, ItemBits)>,
        (now, evict): (u32, bool),
    ) -> bool {
        let hash = self.hash_of(from);
        let to = target.and_then(|(queue, bits)| Some((self.append_moved(queue, header)?, bits)));
        if let Some((to, bits)) = to {
            self.counters.moved += 1;
            self.log.copy(from, to, header.size());
            item::update(self.log.item_mut(to), |header| header.bits = bits);
            self.log.note_expiry(to, header.expiry);
            self.index.relocate(hash, from, Some(to));
            self.log.mark_dead(from, header);
            return true;
        }
        if target.is_some() && !evict {
            return false;
        }
        let was_small = self.log.queue_of(from) == Queue::Small;
        self.remove(hash, from);
        if header.has_expired(now) {
            self.count_expired(header);
        } else {
            self.counters.evictions += 1;
            self.counters.evicted_unfetched += u64::from(!header.bits.contains(ItemBits::FETCHED));
            self.counters.evicted_after = now.saturating_sub(header.accessed);
            if was_small {
                self.index.note_ghost(hash);
            }
        }
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

    /// A step of maintenance: removes expired items, and gives a free segment back to the kernel.
    /// Returns whether there was something to examine.
    pub fn crawl(&mut self, now: u32) -> bool {
        let is_due = |(index, segment): &(u32, &Segment)| {
            segment.first_expiry <= now || (segment.live == 0 && !self.log.is_open(*index))
        };
        if self.walk.is_none() {
            let due = || self.log.segments().filter(is_due).map(|(index, _)| index);
            let next = due().find(|index| *index >= self.crawl_cursor).or_else(|| due().next());
            if let Some(index) = next {
                self.crawl_cursor = index + 1;
                let is_empty = self.log.segment(index).is_some_and(|segment| segment.live == 0);
                self.begin_walk(index, if is_empty { Task::Free { retained: None } } else { Task::Expire });
            }
        }
        let works = self.walk.is_some();
        self.step(now, false, CRAWL_STEP);
        self.release_free_segments(1);
        works
    }
}

/// Where an item of a segment that is freed goes, with which bits. `None`: it has expired, or is
/// evicted.
fn target_of(
    queue: Queue,
    header: &ItemHeader,
    now: u32,
    retained: &mut Option<[usize; 4]>,
) -> Option<(Queue, ItemBits)> {
    let accesses = header.bits.access_count();
    match (retained, queue) {
        _ if header.has_expired(now) => None,
        (None, queue) => Some((queue, header.bits)),
        (Some(_), Queue::Small) => {
            (accesses >= PROMOTE_AT).then_some((Queue::Main, header.bits.with_access_count(0)))
        }
        (Some(left), Queue::Main) => {
            let left =
                left.get_mut(usize::from(accesses)).filter(|left| accesses > 0 && header.size() <= **left)?;
            *left -= header.size();
            Some((Queue::Main, header.bits.with_access_count(accesses - 1)))
        }
    }
}

/// How many bytes of a main segment's accessed items are retained, by access count: at most `max`.
/// The most accessed items come first. Some items are always evicted, as otherwise freeing a
/// segment might free nothing.
fn retained_bytes(mut bytes: [usize; 4], max: usize) -> [usize; 4] {
    bytes[0] = 0;
    let mut left = max;
    for bytes in bytes.iter_mut().skip(1).rev() {
        *bytes = left.min(*bytes);
        left -= *bytes;
    }
    bytes
}
