//! Values as they enter and leave the store.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memmap2::MmapMut;

use super::item_layout::ItemBits;
use super::memory::{MemoryBudget, map_anonymous};

#[derive(Debug, Clone, Copy)]
pub enum StoredValue<'a> {
    /// In the item's segment: valid while the lock is held.
    Inline(&'a [u8]),
    /// In its own pages: a clone of the `Arc` outlives the lock.
    Large(&'a Arc<LargeValue>),
}

impl StoredValue<'_> {
    pub fn bytes(&self) -> &[u8] {
        match self {
            StoredValue::Inline(bytes) => bytes,
            StoredValue::Large(large) => large.bytes(),
        }
    }
}

#[derive(Debug)]
pub struct NewItem<'a> {
    pub flags: u32,
    /// The second of the store's clock at which the item expires; 0 is never.
    pub expiry: u32,
    pub cas: u64,
    /// The item's state bits. The store maintains the private ones.
    pub bits: ItemBits,
    pub value: NewValue<'a>,
}

#[derive(Debug)]
pub enum NewValue<'a> {
    Slices(&'a [u8], &'a [u8]),
    Large(LargeValue),
}

impl<'a> From<&'a [u8]> for NewValue<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        NewValue::Slices(bytes, &[])
    }
}

impl NewValue<'_> {
    pub(super) fn length(&self) -> usize {
        match self {
            NewValue::Slices(first, second) => first.len() + second.len(),
            NewValue::Large(large) => large.bytes().len(),
        }
    }
}

/// The kernel's page size: large values take whole pages.
const PAGE: u64 = 4096;

/// A value in its own pages. Its memory counts against the limit until the last reference is
/// dropped, so a client that reads slowly cannot make the store exceed its limit.
#[derive(Debug)]
pub struct LargeValue {
    map: MmapMut,
    length: usize,
    stored: AtomicBool,
    memory: Arc<MemoryBudget>,
}

/// The memory that a large value of `length` bytes takes, in bytes.
pub fn footprint(length: usize) -> u64 {
    (length as u64).next_multiple_of(PAGE)
}

impl LargeValue {
    /// Allocates a value whose [`footprint`] the caller has reserved. The reservation is released
    /// when the value is dropped, and on an error.
    pub(super) fn new(length: usize, memory: &Arc<MemoryBudget>) -> io::Result<Self> {
        match map_anonymous(length.max(1)) {
            Ok(map) => {
                memory.add_large(footprint(length));
                memory.add_unstored(footprint(length));
                Ok(Self { map, length, stored: AtomicBool::new(false), memory: Arc::clone(memory) })
            }
            Err(error) => {
                memory.release(footprint(length));
                Err(error)
            }
        }
    }

    pub(super) fn mark_stored(&self) {
        if !self.stored.swap(true, Ordering::Relaxed) {
            self.memory.remove_unstored(footprint(self.length));
        }
    }

    /// Marks the value as removed from the store. Connections that are still sending it keep it
    /// alive.
    pub(super) fn mark_removed(&self) {
        if self.stored.swap(false, Ordering::Relaxed) {
            self.memory.add_unstored(footprint(self.length));
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.map[..self.length]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map[..self.length]
    }
}

impl Drop for LargeValue {
    fn drop(&mut self) {
        self.mark_stored();
        self.memory.remove_large(footprint(self.length));
        self.memory.release(footprint(self.length));
    }
}

impl AsRef<[u8]> for LargeValue {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}
