//! A part of the store: a table of places and the log that they point into, under one lock.
//!
//! New items go to the queue of new ones. When memory is short the oldest segment of a queue is freed:
//! what was asked for meanwhile is moved on (from the new queue to the main one, in the main one to its
//! end again), the rest is put out. A key that was put out of the new queue and comes back soon goes to
//! the main queue at once (S3-FIFO: Yang et al., "FIFO queues are all you need for cache eviction",
//! SOSP 2023). Bytes of items that were deleted or replaced come back first: segments with enough of them
//! are emptied by moving all that is alive.

use std::sync::Arc;

use hashbrown::HashTable;
use slab::Slab;

use super::ghosts::Ghosts;
use super::layout::{self, Header};
use super::log::{self, Log, Place, Queue};
use super::memory::{self, Large, Memory};
use super::{Bits, KeyHash};

/// New items' part of all segments: one in so many.
const NEW_SHARE: usize = 10;
/// A new item that was asked for so often stays.
const WORTH_KEEPING: u8 = 1;
/// A segment is emptied without putting anything out if so little of it is alive, in quarters.
const CLEAN_AT: usize = 3;
/// An expired segment's rest is moved away when it is at most so much, in quarters.
const SHRINK_AT: usize = 2;

/// What the store counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Items put out to make room.
    pub evictions: u64,
    /// Of those, never asked for.
    pub evicted_unfetched: u64,
    /// Items whose time was up.
    pub expired: u64,
    /// Of those, never asked for.
    pub expired_unfetched: u64,
    /// Of those, found so when a client asked for them.
    pub found_expired: u64,
    /// Items that were looked at for whether they have expired.
    pub crawled: u64,
    /// Items moved to make room.
    pub moved: u64,
}

impl std::ops::AddAssign for Counts {
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

/// An item's entry in the table.
#[derive(Debug, Clone, Copy)]
struct Entry {
    hash: u32,
    place: Place,
}

/// The table's own hash, from what an entry keeps of the key's.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// See the module.
#[derive(Debug)]
pub struct Shard {
    table: HashTable<Entry>,
    pub log: Log,
    larges: Slab<Arc<Large>>,
    ghosts: Ghosts,
    pub counts: Counts,
    /// What table and ghosts take, as the memory was told.
    charged: u64,
    /// Changes whenever items are moved or put out.
    pub generation: u64,
    /// Where the search for expired items goes on.
    cursor: u32,
    hasher: KeyHash,
}

/// What is done with the items of a segment that is freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    All,
    /// What is worth it.
    Hot,
}

impl Shard {
    pub fn new(segment_size: usize, hasher: KeyHash) -> Self {
        Self {
            table: HashTable::new(),
            log: Log::new(segment_size),
            larges: Slab::new(),
            ghosts: Ghosts::default(),
            counts: Counts::default(),
            charged: 0,
            generation: 0,
            cursor: 0,
            hasher,
        }
    }

    pub fn items(&self) -> usize {
        self.table.len()
    }

    /// Bytes of table and ghosts.
    pub fn tables(&self) -> u64 {
        self.charged
    }

    /// Bytes of all items that are not dead, without large values.
    pub fn live(&self) -> u64 {
        self.log.numbers().map(|(_, segment)| segment.live() as u64).sum()
    }

    pub fn find(&self, hash: u64, key: &[u8]) -> Option<Place> {
        let hash = hash as u32;
        let same = |entry: &Entry| entry.hash == hash && layout::key(self.log.item(entry.place)) == key;
        self.table.find(spread(hash), same).map(|entry| entry.place)
    }

    pub fn header(&self, place: Place) -> Header {
        layout::header(self.log.item(place))
    }

    pub fn large(&self, place: Place, header: &Header) -> Option<&Arc<Large>> {
        self.larges.get(layout::large_number(self.log.item(place), header))
    }

    pub fn add_large(&mut self, large: Large) -> u32 {
        large.keep();
        self.larges.insert(Arc::new(large)) as u32
    }

    fn remove_large(&mut self, number: usize) {
        if let Some(large) = self.larges.try_remove(number) {
            large.let_go();
        }
    }

    /// Whether a new item's key was put out lately.
    pub fn came_back(&mut self, hash: u64) -> bool {
        self.ghosts.take(hash)
    }

    /// Has the table point to a new item.
    pub fn link(&mut self, hash: u64, place: Place, memory: &Memory) {
        let hash = hash as u32;
        let before = self.table.allocation_size();
        self.table.insert_unique(spread(hash), Entry { hash, place }, |entry| spread(entry.hash));
        if self.table.allocation_size() != before {
            self.ghosts = Ghosts::with_room_for(self.table.capacity());
            self.charge_tables(memory);
        }
    }

    fn charge_tables(&mut self, memory: &Memory) {
        let bytes = (self.table.allocation_size() + self.ghosts.bytes()) as u64;
        memory.charge(bytes);
        memory.give_back(self.charged);
        self.charged = bytes;
    }

    /// Has the table point to an item's new place, or to none.
    fn relink(&mut self, hash: u64, from: Place, to: Option<Place>) {
        let hash = hash as u32;
        let Ok(mut entry) = self.table.find_entry(spread(hash), |entry| entry.place == from) else { return };
        match to {
            Some(to) => entry.get_mut().place = to,
            None => drop(entry.remove()),
        }
    }

    /// Takes an item out.
    pub fn remove(&mut self, hash: u64, place: Place) {
        self.relink(hash, place, None);
        let header = self.header(place);
        if header.bits.has(Bits::LARGE) {
            self.remove_large(layout::large_number(self.log.item(place), &header));
        }
        self.log.kill(place, &header);
    }

    /// Counts an item that a client found to have expired.
    pub fn count_found_expired(&mut self, header: &Header) {
        self.count_expired(header);
        self.counts.found_expired += 1;
    }

    fn count_expired(&mut self, header: &Header) {
        self.counts.expired += 1;
        self.counts.expired_unfetched += u64::from(!header.bits.has(Bits::FETCHED));
    }

    /// Room for an item of so many bytes, if it can be had without freeing any.
    /// A large value takes `outside` besides.
    pub fn allocate(&mut self, queue: Queue, size: usize, outside: u64, memory: &Memory) -> Option<Place> {
        if let Some(place) = self.log.append(queue, size, outside) {
            return Some(place);
        }
        if memory.is_over() {
            return None;
        }
        while self.log.idle.len() < 2 {
            // One is for the item, one stays for moving items.
            if !memory.take(self.log.segment_size() as u64) {
                return None;
            }
            let Ok(map) = memory::map(self.log.segment_size()) else {
                memory.give_back(self.log.segment_size() as u64);
                return None;
            };
            self.log.idle.push(map);
        }
        let map = self.log.idle.pop()?;
        if let Err(map) = self.log.open(queue, map) {
            self.log.idle.push(map);
            return None;
        }
        self.log.append(queue, size, outside)
    }

    /// Frees some memory: of dead items, else, where `evict` says so, of live ones. False where there is
    /// nothing to free.
    pub fn reclaim(&mut self, now: u32, evict: bool, memory: &Memory) -> bool {
        let limit = self.log.segment_size() * CLEAN_AT / 4;
        if self.emptiest().is_none_or(|(_, live)| live > limit) {
            // Only what has expired in fact is dead, not what is known to be.
            self.expire_one(now);
        }
        let freed = match self.emptiest() {
            Some((index, live)) if live <= limit => self.free(index, Keep::All, now),
            _ if evict => match self.victim() {
                Some(index) => self.free(index, Keep::Hot, now),
                None => false,
            },
            _ => false,
        };
        if memory.is_over() {
            self.release_idle(memory, usize::MAX);
        }
        freed
    }

    /// The segment with the fewest live bytes, of those that are not being filled.
    fn emptiest(&self) -> Option<(u32, usize)> {
        let full = self.log.numbers().filter(|(index, _)| !self.log.is_head(*index));
        let size = self.log.segment_size();
        full.map(|(index, segment)| (index, segment.occupied(size))).min_by_key(|(_, occupied)| *occupied)
    }

    fn victim(&self) -> Option<u32> {
        let (new, main) = (self.log.queue(Queue::New), self.log.queue(Queue::Main));
        let share = self.log.segments() / NEW_SHARE;
        let queue = if new.len() > share.max(1) || main.is_empty() { new } else { main };
        queue.front().copied()
    }

    /// Finds the expired items of one segment that has some.
    fn expire_one(&mut self, now: u32) {
        let due = self.log.numbers().find(|(_, segment)| segment.first_expiry() <= now);
        if let Some((index, _)) = due {
            self.expire(index, now);
        }
    }

    /// Frees a segment. False where the kernel has no memory for the move.
    fn free(&mut self, index: u32, keep: Keep, now: u32) -> bool {
        let Some(queue) = self.log.segment(index).map(log::Segment::queue) else { return false };
        let Some((map, used)) = self.log.take_out(index) else { return false };
        self.generation += 1;
        let mut room = match (keep, queue) {
            (Keep::Hot, Queue::Main) => HotRoom::of(&map, used, self.log.segment_size() * CLEAN_AT / 4),
            _ => HotRoom::endless(),
        };
        for (offset, header) in log::items(&map, used) {
            let item = &map[offset..offset + header.size()];
            let from = self.log.place(index, offset);
            let hash = self.hasher.of(layout::key(item));
            let heat = header.bits.heat();
            let expired = header.has_expired(now);
            let (target, bits) = match (keep, queue) {
                _ if expired => (None, header.bits),
                (Keep::All, queue) => (Some(queue), header.bits),
                (Keep::Hot, Queue::New) => {
                    ((heat >= WORTH_KEEPING).then_some(Queue::Main), header.bits.with_heat(0))
                }
                (Keep::Hot, Queue::Main) => {
                    let kept = heat > 0 && room.take(heat, header.size());
                    (kept.then_some(Queue::Main), header.bits.with_heat(heat.saturating_sub(1)))
                }
            };
            let to = target.and_then(|queue| self.append_moving(queue, &header));
            self.relink(hash, from, to);
            if let Some(to) = to {
                self.counts.moved += 1;
                let copy = &mut self.log.item_mut(to)[..item.len()];
                copy.copy_from_slice(item);
                layout::set_bits(copy, bits);
                self.log.note_expiry(to, header.expiry);
                continue;
            }
            if header.bits.has(Bits::LARGE) {
                self.remove_large(layout::large_number(item, &header));
            }
            if expired {
                self.count_expired(&header);
            } else {
                self.counts.evictions += 1;
                self.counts.evicted_unfetched += u64::from(!header.bits.has(Bits::FETCHED));
                if queue == Queue::New {
                    self.ghosts.add(hash);
                }
            }
        }
        self.log.close(index, map);
        true
    }

    /// Room for an item that is moved: may use the segment that is kept for it.
    fn append_moving(&mut self, queue: Queue, header: &Header) -> Option<Place> {
        let (size, outside) = (header.size(), header.outside());
        if let Some(place) = self.log.append(queue, size, outside) {
            return Some(place);
        }
        let Some(map) = self.log.idle.pop() else {
            // Where there is room but for what lies outside, that must do.
            return self.log.append(queue, size, 0);
        };
        if let Err(map) = self.log.open(queue, map) {
            self.log.idle.push(map);
            return None;
        }
        self.log.append(queue, size, outside)
    }

    /// Takes the expired items of a segment out.
    fn expire(&mut self, index: u32, now: u32) {
        let Some(segment) = self.log.segment(index) else { return };
        let (mut first, mut looked) = (u32::MAX, 0);
        let mut expired = Vec::new();
        for (offset, header) in log::items(self.log.item(self.log.place(index, 0)), segment.used()) {
            looked += 1;
            match header.expiry {
                0 => {}
                expiry if expiry <= now => expired.push((self.log.place(index, offset), header)),
                expiry => first = first.min(expiry),
            }
        }
        self.counts.crawled += looked;
        self.log.set_first_expiry(index, first);
        for (place, header) in expired {
            let hash = self.hasher.of(layout::key(self.log.item(place)));
            self.remove(hash, place);
            self.count_expired(&header);
        }
    }

    /// Takes the expired items of the next few segments out and gives freed memory back. Returns how many
    /// segments were looked through.
    pub fn crawl(&mut self, now: u32, most: usize, memory: &Memory) -> usize {
        let due: Vec<u32> = {
            let due = |(index, segment): &(u32, &log::Segment)| {
                segment.first_expiry() <= now || (segment.live() == 0 && !self.log.is_head(*index))
            };
            let numbers = || self.log.numbers().filter(due);
            let after = numbers().filter(|(index, _)| *index >= self.cursor);
            let before = numbers().filter(|(index, _)| *index < self.cursor);
            after.chain(before).map(|(index, _)| index).take(most).collect()
        };
        for &index in &due {
            self.cursor = index + 1;
            self.expire(index, now);
            let size = self.log.segment_size();
            let rest = self.log.segment(index).map_or(usize::MAX, |segment| segment.occupied(size));
            // A segment that is being filled goes on being filled, unless nothing in it is alive.
            let limit = if self.log.is_head(index) { 0 } else { self.log.segment_size() * SHRINK_AT / 4 };
            if rest <= limit {
                self.free(index, Keep::All, now);
            }
        }
        self.release_idle(memory, most);
        due.len()
    }

    /// Has `see` look at the items of a segment.
    pub fn walk(&self, index: u32, now: u32, mut see: impl FnMut(&[u8], &Header)) {
        let Some(segment) = self.log.segment(index) else { return };
        let map = self.log.item(self.log.place(index, 0));
        for (offset, header) in log::items(map, segment.used()) {
            if !header.has_expired(now) {
                see(layout::key(&map[offset..]), &header);
            }
        }
    }

    /// Gives empty segments back to the kernel, but for one where there are items that may have to be moved.
    pub fn release_idle(&mut self, memory: &Memory, most: usize) {
        let kept = usize::from(self.log.segments() > 0);
        for _ in 0..most {
            if self.log.idle.len() <= kept {
                return;
            }
            self.log.idle.pop();
            memory.give_back(self.log.segment_size() as u64);
        }
    }

    /// Forgets all items. Their memory is given back bit by bit, by [`Shard::crawl`].
    pub fn clear(&mut self, memory: &Memory) {
        self.generation += 1;
        self.table = HashTable::new();
        std::mem::take(&mut self.larges).into_iter().for_each(|(_, large)| large.let_go());
        self.ghosts = Ghosts::default();
        self.log.clear();
        self.charge_tables(memory);
    }
}

/// How much of a main segment's hot items is moved on: the hottest first, but never all, or freeing a
/// segment might free nothing.
struct HotRoom {
    room: [usize; 4],
}

impl HotRoom {
    fn endless() -> Self {
        Self { room: [usize::MAX; 4] }
    }

    fn of(map: &[u8], used: usize, most: usize) -> Self {
        let mut wanted = [0; 4];
        for (_, header) in log::items(map, used) {
            wanted[usize::from(header.bits.heat())] += header.size();
        }
        let (mut left, mut room) = (most, [0; 4]);
        for heat in (1..4).rev() {
            room[heat] = wanted[heat].min(left);
            left -= room[heat];
        }
        Self { room }
    }

    fn take(&mut self, heat: u8, size: usize) -> bool {
        let room = &mut self.room[usize::from(heat)];
        let fits = *room >= size;
        if fits {
            *room -= size;
        }
        fits
    }
}
