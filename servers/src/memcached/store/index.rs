//! Where a shard's items are, by their keys' hashes.
//!
//! A hash table that doubles moves all of its entries at once, with the shard locked. So the index
//! consists of many tables, each of which grows by itself.

use hashbrown::HashTable;

use super::segment_log::ItemLocation;

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// The lower half of the key's hash.
    hash: u32,
    location: ItemLocation,
}

/// The tables' own hash, computed from the part of the key's hash that an entry keeps.
fn table_hash(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[derive(Debug, Default)]
struct Part {
    table: HashTable<Entry>,
    ghosts: GhostQueue,
}

#[derive(Debug)]
pub struct Index {
    parts: Box<[Part]>,
    len: usize,
    /// Bytes of tables and ghost queues.
    bytes: u64,
}

impl Index {
    pub fn new(parts: usize) -> Self {
        Self { parts: (0..parts).map(|_| Part::default()).collect(), len: 0, bytes: 0 }
    }

    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// By the upper bits of the half that an entry keeps: tables and ghost queues use the lower ones.
    fn part_of(&self, hash: u64) -> usize {
        ((u64::from(hash as u32) * self.parts.len() as u64) >> 32) as usize
    }

    /// The location of the item with this hash for which `is_same` is true.
    pub fn find(&self, hash: u64, is_same: impl Fn(ItemLocation) -> bool) -> Option<ItemLocation> {
        let (part, hash) = (&self.parts[self.part_of(hash)], hash as u32);
        let same = |entry: &Entry| entry.hash == hash && is_same(entry.location);
        part.table.find(table_hash(hash), same).map(|entry| entry.location)
    }

    pub fn insert(&mut self, hash: u64, location: ItemLocation) {
        let (index, hash) = (self.part_of(hash), hash as u32);
        let Part { table, ghosts } = &mut self.parts[index];
        let before = table.allocation_size();
        table.insert_unique(table_hash(hash), Entry { hash, location }, |entry| table_hash(entry.hash));
        self.len += 1;
        let after = table.allocation_size();
        if after != before {
            let old = before + ghosts.size();
            *ghosts = GhostQueue::with_capacity(table.capacity());
            self.bytes = self.bytes + (after + ghosts.size()) as u64 - old as u64;
        }
    }

    /// Points an item's entry to its new location, or removes the entry.
    pub fn relocate(&mut self, hash: u64, from: ItemLocation, to: Option<ItemLocation>) {
        let (index, hash) = (self.part_of(hash), hash as u32);
        let entry = self.parts[index].table.find_entry(table_hash(hash), |entry| entry.location == from);
        let Ok(mut entry) = entry else { return };
        match to {
            Some(to) => entry.get_mut().location = to,
            None => {
                entry.remove();
                self.len -= 1;
            }
        }
    }

    /// Notes that the key of this hash was evicted.
    pub fn note_ghost(&mut self, hash: u64) {
        self.parts[self.part_of(hash)].ghosts.insert(hash);
    }

    /// Whether the key was evicted recently; it is forgotten.
    pub fn take_ghost(&mut self, hash: u64) -> bool {
        self.parts[self.part_of(hash)].ghosts.remove(hash)
    }

    /// The number of entries that the next growth of a table moves at most.
    #[cfg(test)]
    pub fn largest_part(&self) -> usize {
        self.parts.iter().map(|part| part.table.capacity()).max().unwrap_or(0)
    }
}

/// The ghost queue of S3-FIFO: fingerprints of recently evicted keys. Each key's hash selects one
/// position; a newer fingerprint replaces an older one there, so the queue is approximate and needs
/// no order.
#[derive(Debug, Default)]
struct GhostQueue {
    fingerprints: Box<[u16]>,
}

impl GhostQueue {
    fn with_capacity(keys: usize) -> Self {
        Self { fingerprints: vec![0; keys.next_power_of_two()].into() }
    }

    fn size(&self) -> usize {
        size_of_val(&*self.fingerprints)
    }

    /// The key's position, unless there is none, and its fingerprint. 0 marks an empty position.
    fn position(&mut self, hash: u64) -> Option<(&mut u16, u16)> {
        let position = hash as usize & self.fingerprints.len().wrapping_sub(1);
        Some((self.fingerprints.get_mut(position)?, (hash >> 40) as u16 | 1))
    }

    fn insert(&mut self, hash: u64) {
        if let Some((position, fingerprint)) = self.position(hash) {
            *position = fingerprint;
        }
    }

    fn remove(&mut self, hash: u64) -> bool {
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
