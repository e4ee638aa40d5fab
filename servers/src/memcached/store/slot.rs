//! A key's place in the store while its part is locked.

use std::sync::{Arc, MutexGuard};

use super::layout::{self, Header};
use super::log::{Place, Queue};
use super::memory::{Large, large_size};
use super::shard::Shard;
use super::{Bits, OutOfMemory, Store};

/// A key, with the lock of its part of the store.
#[derive(Debug)]
pub struct Slot<'a> {
    store: &'a Store,
    shard: MutexGuard<'a, Shard>,
    key: &'a [u8],
    hash: u64,
    now: u32,
    place: Option<Place>,
}

/// A stored value.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// In the store's own memory: good for as long as the lock is held.
    Inline(&'a [u8]),
    /// In pages of its own, which can be kept.
    Large(&'a Arc<Large>),
}

impl Value<'_> {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Value::Inline(bytes) => bytes,
            Value::Large(large) => large.bytes(),
        }
    }
}

/// What is to be stored.
#[derive(Debug)]
pub struct New<'a> {
    /// The client's flags.
    pub flags: u32,
    /// The second from which on it is gone; 0 is never.
    pub expiry: u32,
    /// Its number.
    pub cas: u64,
    /// Its marks.
    pub bits: Bits,
    /// The value: its pieces, one behind the other.
    pub value: Data<'a>,
}

/// A value that is to be stored.
#[derive(Debug)]
pub enum Data<'a> {
    /// To be copied, from two pieces.
    Pieces(&'a [u8], &'a [u8]),
    /// Taken over.
    Large(Large),
}

impl<'a> From<&'a [u8]> for Data<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Data::Pieces(bytes, &[])
    }
}

impl Data<'_> {
    fn length(&self) -> usize {
        match self {
            Data::Pieces(first, second) => first.len() + second.len(),
            Data::Large(large) => large.bytes().len(),
        }
    }
}

impl<'a> Slot<'a> {
    pub(super) fn new(store: &'a Store, key: &'a [u8], hash: u64, now: u32) -> Self {
        let index = store.shard_of(hash);
        let mut shard = store.shard(index);
        let mut place = shard.find(hash, key);
        if let Some(found) = place {
            let header = shard.header(found);
            if header.has_expired(now) {
                shard.remove(hash, found);
                shard.count_found_expired(&header);
                place = None;
            }
        }
        Self { store, shard, key, hash, now, place }
    }

    /// What is stored, if anything.
    pub fn header(&self) -> Option<Header> {
        self.place.map(|place| self.shard.header(place))
    }

    /// The value, if there is one.
    pub fn value(&self) -> Option<(Header, Value<'_>)> {
        let place = self.place?;
        let item = self.shard.log.item(place);
        let header = layout::header(item);
        let value = if header.bits.has(Bits::LARGE) {
            Value::Large(self.shard.large(place, &header)?)
        } else {
            Value::Inline(layout::stored(item, &header))
        };
        Some((header, value))
    }

    /// Notes that a client has asked for the item.
    pub fn touch(&mut self) {
        self.note(Bits::FETCHED);
    }

    /// Notes an access that shows the client nothing of the item.
    pub fn warm(&mut self) {
        self.note(Bits::default());
    }

    fn note(&mut self, mark: Bits) {
        if let Some(place) = self.place {
            let now = self.now;
            let item = self.shard.log.item_mut(place);
            let bits = layout::bits(item);
            layout::set_bits(item, bits.with_heat(bits.heat() + 1).with(mark));
            layout::set_accessed(item, now);
        }
    }

    /// Changes when the item is gone.
    pub fn set_expiry(&mut self, expiry: u32) {
        if let Some(place) = self.place {
            layout::set_expiry(self.shard.log.item_mut(place), expiry);
            self.shard.log.note_expiry(place, expiry);
        }
    }

    /// Changes the item's number.
    pub fn set_cas(&mut self, cas: u64) {
        if let Some(place) = self.place {
            layout::set_cas(self.shard.log.item_mut(place), cas);
        }
    }

    /// Changes the item's marks.
    pub fn set_bits(&mut self, bits: Bits) {
        if let Some(place) = self.place {
            layout::set_bits(self.shard.log.item_mut(place), bits);
        }
    }

    /// Takes the item out, if there is one.
    pub fn remove(&mut self) {
        if let Some(place) = self.place.take() {
            self.shard.remove(self.hash, place);
        }
    }

    /// Stores an item in place of what there is.
    ///
    /// # Errors
    /// Where there is no memory for it and none may be made, or its value is larger than half of all. Then
    /// what was there still is, unless it had to make room.
    pub fn put(&mut self, new: New<'_>) -> Result<(), OutOfMemory> {
        let length = new.value.length();
        let data = match new.value {
            Data::Pieces(first, second) if self.store.is_large(length) => {
                let mut large = self.large(length)?;
                let bytes = large.bytes_mut();
                bytes[..first.len()].copy_from_slice(first);
                bytes[first.len()..].copy_from_slice(second);
                Data::Large(large)
            }
            other => other,
        };
        let bits = match data {
            Data::Large(_) => new.bits.with(Bits::LARGE),
            Data::Pieces(..) => new.bits.without(Bits::LARGE),
        };
        // Keys have at most 250 bytes.
        let mut header = Header {
            cas: new.cas,
            flags: new.flags,
            expiry: new.expiry,
            accessed: self.now,
            length: length as u32,
            key: self.key.len() as u8,
            bits: bits.without(Bits::DEAD).with_heat(0),
        };
        let old = self.header();
        if let Some(old) = old {
            header.bits = header.bits.with_heat(old.bits.heat());
        }
        let in_place = old.is_some_and(|old| {
            old.size() == header.size() && !old.bits.has(Bits::LARGE) && !bits.has(Bits::LARGE)
        });
        let place = match self.place {
            Some(place) if in_place => place,
            _ => self.allocate(&header)?,
        };
        match data {
            Data::Pieces(first, second) => self.write(place, &header, first, second),
            Data::Large(large) => {
                let number = self.shard.add_large(large);
                self.write(place, &header, &number.to_ne_bytes(), &[]);
            }
        }
        self.shard.log.note_expiry(place, header.expiry);
        if !in_place {
            if let Some(old) = self.place.replace(place) {
                self.shard.remove(self.hash, old);
            }
            self.shard.link(self.hash, place, &self.store.memory);
        }
        Ok(())
    }

    fn write(&mut self, place: Place, header: &Header, first: &[u8], second: &[u8]) {
        let item = self.shard.log.item_mut(place);
        header.write(item);
        let rest = &mut item[layout::HEADER..];
        let (key, rest) = rest.split_at_mut(self.key.len());
        key.copy_from_slice(self.key);
        rest[..first.len()].copy_from_slice(first);
        rest[first.len()..first.len() + second.len()].copy_from_slice(second);
    }

    /// Memory for a large value, while the lock is held.
    fn large(&mut self, length: usize) -> Result<Large, OutOfMemory> {
        let (store, size) = (self.store, large_size(length));
        if size > store.memory.limit() / 2 {
            return Err(OutOfMemory);
        }
        self.make_room(|_| store.memory.take(size).then_some(()), true)?;
        Large::new(length, &store.memory).map_err(|_| OutOfMemory)
    }

    fn allocate(&mut self, header: &Header) -> Result<Place, OutOfMemory> {
        let (store, size, outside) = (self.store, header.size(), header.outside());
        let queue = match self.place {
            Some(old) => self.shard.log.queue_of(old),
            None if self.shard.came_back(self.hash) => Queue::Main,
            None => Queue::New,
        };
        self.make_room(|shard| shard.allocate(queue, size, outside, &store.memory), false)
    }

    /// Frees memory until `attempt` has what it needs. `release` says that it needs memory that no part has.
    fn make_room<T>(
        &mut self,
        mut attempt: impl FnMut(&mut Shard) -> Option<T>,
        release: bool,
    ) -> Result<T, OutOfMemory> {
        if let Some(got) = attempt(&mut self.shard) {
            return Ok(got);
        }
        let store = self.store;
        let own = store.shard_of(self.hash);
        let generation = self.shard.generation;
        let mut result = Err(OutOfMemory);
        for _ in 0..super::MOST_TRIES {
            // A part with far less than its share takes from the others.
            let share = store.memory.used() / store.shards.len() as u64;
            let small = (self.shard.log.segments() * store.segment_size) as u64 * 2 < share;
            let others = small && store.give_up_memory(Some(own), self.now);
            if !others
                && !self.shard.reclaim(self.now, store.evict, &store.memory)
                && !store.give_up_memory(Some(own), self.now)
            {
                break;
            }
            if release {
                self.shard.release_idle(&store.memory, usize::MAX);
            }
            if let Some(got) = attempt(&mut self.shard) {
                result = Ok(got);
                break;
            }
        }
        if self.shard.generation != generation {
            self.place = self.shard.find(self.hash, self.key);
        }
        result
    }
}
