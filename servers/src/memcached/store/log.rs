//! Items one behind the other in segments, and the segments in two queues.

use std::collections::VecDeque;

use memmap2::MmapMut;
use slab::Slab;

use super::Bits;
use super::layout::{self, ALIGN, Header};

/// Where an item is: its segment's number and its offset there.
pub type Place = u32;

/// The two queues of segments, each from the oldest to the one that is being filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    /// Of new items, most of which are not asked for again.
    New = 0,
    /// Of items that were.
    Main = 1,
}

/// A piece of memory that is filled from its start and freed as a whole.
#[derive(Debug)]
pub struct Segment {
    map: MmapMut,
    used: u32,
    /// Bytes of items that are not dead.
    live: u32,
    /// Bytes of the large values whose places are in it.
    outside: u64,
    /// No item expires before.
    first_expiry: u32,
    queue: Queue,
}

impl Segment {
    pub fn live(&self) -> usize {
        self.live as usize
    }

    /// Bytes that moving its items elsewhere would not free.
    pub fn occupied(&self, segment_size: usize) -> usize {
        // Places of large values take next to nothing, but few go into a segment.
        let outside = usize::try_from(self.outside).unwrap_or(usize::MAX) / MOST_OUTSIDE;
        self.live().max(outside.min(segment_size))
    }

    pub fn used(&self) -> usize {
        self.used as usize
    }

    pub fn first_expiry(&self) -> u32 {
        self.first_expiry
    }

    pub fn queue(&self) -> Queue {
        self.queue
    }
}

/// The items that are not dead in the first `used` bytes of a segment, with their offsets.
pub fn items(map: &[u8], used: usize) -> impl Iterator<Item = (usize, Header)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < used {
            let (offset, header) = (at, layout::header(&map[at..]));
            at += header.size();
            if !header.bits.has(Bits::DEAD) {
                return Some((offset, header));
            }
        }
        None
    })
}

/// A segment takes no more large values once they have so many times its own size.
const MOST_OUTSIDE: usize = 16;

/// All segments of a shard.
#[derive(Debug)]
pub struct Log {
    segments: Slab<Segment>,
    queues: [VecDeque<u32>; 2],
    /// Segments that are empty. One stays for moving items while there is no other memory.
    pub idle: Vec<MmapMut>,
    /// Stands in for a segment's memory while its items are moved out of it.
    hole: Option<MmapMut>,
    segment_size: usize,
    offset_bits: u32,
}

impl Log {
    /// With segments of so many bytes, a power of two.
    pub fn new(segment_size: usize) -> Self {
        Self {
            segments: Slab::new(),
            queues: [VecDeque::new(), VecDeque::new()],
            idle: Vec::new(),
            hole: None,
            segment_size,
            offset_bits: (segment_size / ALIGN).ilog2(),
        }
    }

    pub fn segment_size(&self) -> usize {
        self.segment_size
    }

    /// How many segments there may be, so that places can name them.
    fn most_segments(&self) -> usize {
        1 << (32 - self.offset_bits)
    }

    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    pub fn queue(&self, queue: Queue) -> &VecDeque<u32> {
        &self.queues[queue as usize]
    }

    pub fn segment(&self, index: u32) -> Option<&Segment> {
        self.segments.get(index as usize)
    }

    pub fn numbers(&self) -> impl Iterator<Item = (u32, &Segment)> {
        self.segments.iter().map(|(index, segment)| (index as u32, segment))
    }

    pub fn is_head(&self, index: u32) -> bool {
        self.queues.iter().any(|queue| queue.back() == Some(&index))
    }

    /// The place at an offset of a segment.
    pub fn place(&self, index: u32, offset: usize) -> Place {
        index << self.offset_bits | (offset / ALIGN) as u32
    }

    pub fn parts(&self, place: Place) -> (u32, usize) {
        let offset = place & ((1 << self.offset_bits) - 1);
        (place >> self.offset_bits, offset as usize * ALIGN)
    }

    /// The item at a place, and what lies behind it.
    pub fn item(&self, place: Place) -> &[u8] {
        let (index, offset) = self.parts(place);
        &self.segments[index as usize].map[offset..]
    }

    pub fn item_mut(&mut self, place: Place) -> &mut [u8] {
        let (index, offset) = self.parts(place);
        &mut self.segments[index as usize].map[offset..]
    }

    pub fn queue_of(&self, place: Place) -> Queue {
        self.segments[self.parts(place).0 as usize].queue
    }

    /// Room for an item in the segment that is being filled. A large value has `outside` bytes elsewhere:
    /// they would all go at once with the segment, so it doesn't take many.
    pub fn append(&mut self, queue: Queue, size: usize, outside: u64) -> Option<Place> {
        let index = *self.queues[queue as usize].back()?;
        let segment = &mut self.segments[index as usize];
        let offset = segment.used as usize;
        if offset + size > self.segment_size
            || (outside > 0 && segment.outside > (self.segment_size * MOST_OUTSIDE) as u64)
        {
            return None;
        }
        segment.outside += outside;
        segment.used += size as u32;
        segment.live += size as u32;
        Some(self.place(index, offset))
    }

    pub fn note_expiry(&mut self, place: Place, expiry: u32) {
        if expiry != 0 {
            let index = self.parts(place).0 as usize;
            let segment = &mut self.segments[index];
            segment.first_expiry = segment.first_expiry.min(expiry);
        }
    }

    pub fn set_first_expiry(&mut self, index: u32, expiry: u32) {
        self.segments[index as usize].first_expiry = expiry;
    }

    /// Begins a segment; gives the memory back where there are as many as there can be.
    pub fn open(&mut self, queue: Queue, map: MmapMut) -> Result<(), MmapMut> {
        if self.segments.len() >= self.most_segments() {
            return Err(map);
        }
        let segment = Segment { map, used: 0, live: 0, outside: 0, first_expiry: u32::MAX, queue };
        let index = self.segments.insert(segment);
        self.queues[queue as usize].push_back(index as u32);
        Ok(())
    }

    /// Marks an item dead; its bytes are free when its segment is.
    pub fn kill(&mut self, place: Place, header: &Header) {
        let item = self.item_mut(place);
        let bits = layout::bits(item);
        layout::set_bits(item, bits.with(Bits::DEAD));
        let index = self.parts(place).0 as usize;
        let segment = &mut self.segments[index];
        segment.live -= header.size() as u32;
        segment.outside -= header.outside().min(segment.outside);
    }

    /// Lends out the memory of a segment whose items are to be moved, and the bytes used. The segment is
    /// in no queue any more, and its number stays taken until [`Log::close`].
    pub fn take_out(&mut self, index: u32) -> Option<(MmapMut, usize)> {
        let hole = match self.hole.take() {
            Some(hole) => hole,
            None => super::memory::map(1).ok()?,
        };
        let segment = &mut self.segments[index as usize];
        let used = segment.used as usize;
        segment.used = self.segment_size as u32;
        let map = std::mem::replace(&mut segment.map, hole);
        let queue = &mut self.queues[segment.queue as usize];
        if queue.front() == Some(&index) {
            queue.pop_front();
        } else {
            queue.retain(|other| *other != index);
        }
        Some((map, used))
    }

    /// Frees the number of a segment that was taken out, and keeps its memory.
    pub fn close(&mut self, index: u32, map: MmapMut) {
        self.hole = Some(self.segments.remove(index as usize).map);
        self.idle.push(map);
    }

    /// Frees all segments, whatever is in them.
    pub fn clear(&mut self) {
        let segments = std::mem::take(&mut self.segments);
        self.idle.extend(segments.into_iter().map(|(_, segment)| segment.map));
        self.queues.iter_mut().for_each(VecDeque::clear);
    }
}
