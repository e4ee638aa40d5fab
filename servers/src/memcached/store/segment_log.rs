//! A shard's segments: items are appended to segments, and segments form two FIFO queues.

use std::collections::VecDeque;

use memmap2::MmapMut;
use slab::Slab;

use super::item::{self, ALIGN, ItemBits, ItemHeader};

/// A segment's index in the upper bits, an item's offset in units of [`ALIGN`] in the lower ones.
pub type ItemLocation = u32;

/// The two queues of S3-FIFO. Each runs from its oldest segment to the open one, which is being
/// filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    /// New items, most of which are never accessed again.
    Small = 0,
    /// Items that were accessed again.
    Main = 1,
}

/// A region of memory that is filled from its start and freed as a whole.
#[derive(Debug)]
pub struct Segment {
    /// Tells segments apart that had the same index one after the other.
    pub id: u64,
    map: MmapMut,
    /// Bytes of items from the start.
    pub used: usize,
    /// Bytes of items that are not dead.
    pub live: usize,
    /// Bytes of the large values that its items refer to.
    external: u64,
    /// A lower bound of its items' expiries.
    pub first_expiry: u32,
    pub queue: Queue,
}

impl Segment {
    /// Live bytes, weighted by the large values that the segment refers to, at most `segment_size`.
    /// Moving the items frees the rest of the segment.
    pub fn occupied_bytes(&self, segment_size: usize) -> usize {
        // References to large values are small, but a segment takes only a few of them.
        let external = usize::try_from(self.external).unwrap_or(usize::MAX) / MAX_EXTERNAL;
        self.live.max(external.min(segment_size))
    }
}

/// All items from an item's offset to the first `used` bytes of a segment, with their offsets.
pub fn items_from(map: &[u8], mut at: usize, used: usize) -> impl Iterator<Item = (usize, ItemHeader)> {
    std::iter::from_fn(move || {
        (at < used).then(|| {
            let (offset, header) = (at, item::header(&map[at..]));
            at += header.size();
            (offset, header)
        })
    })
}

/// Work on the items of a segment, done in steps.
#[derive(Debug)]
pub struct Walk {
    /// The segment's index.
    pub segment: u32,
    /// The offset of the next item, in bytes.
    pub offset: usize,
    pub task: WalkTask,
}

#[derive(Debug)]
pub enum WalkTask {
    /// Removes the items that have expired.
    Expire,
    /// Adds up the bytes of the main queue's items, by access count.
    Weigh([usize; 4]),
    /// Moves live items to other segments and frees this one. `None` moves all of them. `Some` is for
    /// an eviction: only accessed items are moved, and of the main queue at most this many bytes for
    /// each access count.
    Free { retained: Option<[usize; 4]> },
}

/// A segment accepts no more large values once they take this many times its own size.
const MAX_EXTERNAL: usize = 16;

#[derive(Debug)]
pub struct SegmentLog {
    segments: Slab<Segment>,
    queues: [VecDeque<u32>; 2],
    /// Memory of empty segments. One is kept for moving items when no other memory can be had.
    pub free_segments: Vec<MmapMut>,
    last_id: u64,
    pub segment_size: usize,
    offset_bits: u32,
}

impl SegmentLog {
    /// A log without segments. `segment_size` is in bytes and a power of two.
    pub fn new(segment_size: usize) -> Self {
        Self {
            segments: Slab::new(),
            queues: [VecDeque::new(), VecDeque::new()],
            free_segments: Vec::new(),
            last_id: 0,
            segment_size,
            offset_bits: (segment_size / ALIGN).ilog2(),
        }
    }

    pub fn segment_count(&self) -> usize {
        self.segments.len()
    }

    pub fn queue(&self, queue: Queue) -> &VecDeque<u32> {
        &self.queues[queue as usize]
    }

    pub fn segment(&self, index: u32) -> Option<&Segment> {
        self.segments.get(index as usize)
    }

    pub fn segments(&self) -> impl Iterator<Item = (u32, &Segment)> {
        self.segments.iter().map(|(index, segment)| (index as u32, segment))
    }

    pub fn is_open(&self, index: u32) -> bool {
        self.queues.iter().any(|queue| queue.back() == Some(&index))
    }

    pub fn location(&self, index: u32, offset: usize) -> ItemLocation {
        index << self.offset_bits | (offset / ALIGN) as u32
    }

    fn index_and_offset(&self, location: ItemLocation) -> (u32, usize) {
        let offset = location & ((1 << self.offset_bits) - 1);
        (location >> self.offset_bits, offset as usize * ALIGN)
    }

    /// The segment's bytes from an item on.
    pub fn item(&self, location: ItemLocation) -> &[u8] {
        let (index, offset) = self.index_and_offset(location);
        &self.segments[index as usize].map[offset..]
    }

    pub fn item_mut(&mut self, location: ItemLocation) -> &mut [u8] {
        let (index, offset) = self.index_and_offset(location);
        &mut self.segments[index as usize].map[offset..]
    }

    pub fn queue_of(&self, location: ItemLocation) -> Queue {
        self.segments[self.index_and_offset(location).0 as usize].queue
    }

    fn segment_mut(&mut self, location: ItemLocation) -> &mut Segment {
        let index = self.index_and_offset(location).0;
        &mut self.segments[index as usize]
    }

    /// Allocates `size` bytes in the queue's open segment. `external` is the size of the item's
    /// large value. It is freed together with the segment, so a segment takes only a few of them.
    pub fn append(&mut self, queue: Queue, size: usize, external: u64) -> Option<ItemLocation> {
        let index = *self.queues[queue as usize].back()?;
        let segment = &mut self.segments[index as usize];
        let offset = segment.used;
        if offset + size > self.segment_size
            || (external > 0 && segment.external > (self.segment_size * MAX_EXTERNAL) as u64)
        {
            return None;
        }
        segment.external += external;
        segment.used += size;
        segment.live += size;
        Some(self.location(index, offset))
    }

    /// Lowers the segment's earliest expiry to that of one of its items.
    pub fn note_expiry(&mut self, location: ItemLocation, expiry: u32) {
        if expiry != 0 {
            let segment = self.segment_mut(location);
            segment.first_expiry = segment.first_expiry.min(expiry);
        }
    }

    pub fn set_first_expiry(&mut self, index: u32, expiry: u32) {
        self.segments[index as usize].first_expiry = expiry;
    }

    /// As [`SegmentLog::append`], in a free segment that it opens at the end of the queue. `None`
    /// if there is none, or if an [`ItemLocation`] cannot address another segment.
    pub fn append_to_new(&mut self, queue: Queue, size: usize, external: u64) -> Option<ItemLocation> {
        if self.segments.len() >= 1 << (32 - self.offset_bits) {
            return None;
        }
        let map = self.free_segments.pop()?;
        self.last_id += 1;
        let (id, first_expiry) = (self.last_id, u32::MAX);
        let index =
            self.segments.insert(Segment { id, map, used: 0, live: 0, external: 0, first_expiry, queue });
        self.queues[queue as usize].push_back(index as u32);
        self.append(queue, size, external)
    }

    /// Marks an item dead. Its bytes are free once its segment is.
    pub fn mark_dead(&mut self, location: ItemLocation, header: &ItemHeader) {
        item::update(self.item_mut(location), |header| header.bits |= ItemBits::DEAD);
        let segment = self.segment_mut(location);
        segment.live -= header.size();
        segment.external -= header.external_bytes().min(segment.external);
    }

    /// Takes a segment out of its queue: nothing is appended to it any more.
    pub fn close(&mut self, index: u32) {
        let queue = self.segments[index as usize].queue;
        self.queues[queue as usize].retain(|other| *other != index);
    }

    /// Puts a closed segment back, as its queue's oldest one.
    pub fn put_back(&mut self, index: u32) {
        let queue = self.segments[index as usize].queue;
        self.queues[queue as usize].push_front(index);
    }

    /// Frees a closed segment, and keeps its memory.
    pub fn free(&mut self, index: u32) {
        self.free_segments.push(self.segments.remove(index as usize).map);
    }

    /// Copies an item to another segment.
    pub fn copy(&mut self, from: ItemLocation, to: ItemLocation, size: usize) {
        let ((from, source), (to, target)) = (self.index_and_offset(from), self.index_and_offset(to));
        if let Some((from, to)) = self.segments.get2_mut(from as usize, to as usize) {
            to.map[target..target + size].copy_from_slice(&from.map[source..source + size]);
        }
    }

    pub fn clear(&mut self) {
        let segments = std::mem::take(&mut self.segments);
        self.free_segments.extend(segments.into_iter().map(|(_, segment)| segment.map));
        self.queues.iter_mut().for_each(VecDeque::clear);
    }
}
