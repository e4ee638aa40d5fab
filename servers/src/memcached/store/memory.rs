//! The store's memory budget, and what counts against it outside of segments: large values, and
//! buffers of connections.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_utils::atomic::AtomicCell;
use memmap2::MmapMut;

/// The store has no memory for an item and could not free any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the store has no memory for the item")]
pub struct OutOfMemory;

/// Bytes in use and their limit, shared by all shards, large values and buffers.
#[derive(Debug, Default)]
pub struct MemoryBudget {
    pub used: AtomicCell<u64>,
    pub limit: AtomicCell<u64>,
    /// With less memory left than this the store is full: two segments for each shard, so that each
    /// frees one before it needs it, also when an index grows.
    pub margin: u64,
    /// Part of `used`: all large values, whether stored, being received or being sent.
    pub large: AtomicCell<u64>,
    /// Part of `used`: large values that are being received, and buffers of connections.
    pub unstored: AtomicCell<u64>,
    /// Part of `used`: large values that were replaced or removed while they were being sent.
    pub replaced: AtomicCell<u64>,
    /// All reserved buffers of connections. The first ones are not part of `used`.
    pub(super) buffers: AtomicCell<u64>,
    /// Not part of `used`.
    pub(super) spares: Mutex<Spares>,
}

/// Memory of large values that were dropped, for the next ones: a page that comes from the kernel
/// costs more time than receiving its bytes.
#[derive(Debug, Default)]
pub(super) struct Spares {
    /// In the order in which their values were dropped: the front is unmapped first.
    maps: VecDeque<MmapMut>,
    bytes: u64,
}

impl MemoryBudget {
    /// Adds `bytes` to `used` if they fit within the limit.
    pub fn try_reserve(&self, bytes: u64) -> bool {
        let within = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= self.limit.load());
        self.used.fetch_update(within).is_ok()
    }

    pub fn is_full(&self) -> bool {
        self.used.load() + self.margin > self.limit.load()
    }

    /// Whether clients that read slowly hold more replaced values than a store should lose: then they
    /// are disconnected.
    pub fn has_too_many_replaced(&self) -> bool {
        self.replaced.load() > self.limit.load() / REPLACED_DIVISOR
    }

    pub fn is_over_limit(&self) -> bool {
        self.used.load() > self.limit.load()
    }

    /// A spare map of this many bytes.
    fn take_spare(&self, bytes: u64) -> Option<MmapMut> {
        let mut spares = self.spares();
        let at = spares.maps.iter().rposition(|map| map.len() as u64 == bytes)?;
        spares.bytes -= bytes;
        spares.maps.remove(at)
    }

    /// Keeps the map for the next large value of its size.
    fn keep_spare(&self, map: MmapMut) {
        // A larger one would unmap all others.
        if map.len() as u64 <= self.most_spare() {
            let mut spares = self.spares();
            spares.bytes += map.len() as u64;
            spares.maps.push_back(map);
        }
        self.trim_spares();
    }

    /// Unmaps the oldest spare maps beyond the bounds.
    pub fn trim_spares(&self) {
        loop {
            let mut spares = self.spares();
            if spares.bytes <= self.most_spare() && spares.maps.len() <= MOST_SPARES {
                return;
            }
            let Some(map) = spares.maps.pop_front() else { return };
            spares.bytes -= map.len() as u64;
            // munmap(2) of a large map takes long: not under the lock.
            drop(spares);
        }
    }

    fn most_spare(&self) -> u64 {
        self.limit.load() / SPARES_DIVISOR
    }

    fn spares(&self) -> MutexGuard<'_, Spares> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub fn spare_bytes(&self) -> u64 {
        self.spares().maps.iter().map(|map| map.len() as u64).sum()
    }
}

/// Memory that a connection's buffer takes until this is dropped: of a client that does not read
/// its replies, or has sent half of a value. Each may hold 32 KiB that don't count
/// (`session::FREE_BUFFER`, twice).
#[derive(Debug)]
pub struct BufferReservation {
    pub bytes: u64,
    /// Whether the bytes were also reserved against the limit.
    pub(super) counted: bool,
    pub(super) memory: Arc<MemoryBudget>,
}

impl Drop for BufferReservation {
    fn drop(&mut self) {
        self.memory.buffers.fetch_sub(self.bytes);
        if self.counted {
            self.memory.unstored.fetch_sub(self.bytes);
            self.memory.used.fetch_sub(self.bytes);
        }
    }
}

/// The kernel's page size: large values take whole pages.
const PAGE: u64 = 4096;

/// A value in its own pages. Its memory counts against the limit until the last reference is
/// dropped, so a client that reads slowly cannot make the store exceed its limit.
#[derive(Debug)]
pub struct LargeValue {
    /// `Some` until `drop` takes it.
    map: Option<MmapMut>,
    length: usize,
    state: AtomicCell<ValueState>,
    memory: Arc<MemoryBudget>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ValueState {
    Received,
    Stored,
    Replaced,
}

/// The share of the limit that replaced values may take.
const REPLACED_DIVISOR: u64 = 4;

/// The share of the limit that spare maps of large values may take in addition to it.
const SPARES_DIVISOR: u64 = 32;
/// The most spare maps that are kept: each allocation searches them for one of its size.
const MOST_SPARES: usize = 256;
/// The number of size classes of large values per power of two. All values of a class take the same
/// memory, so a spare map fits any of them.
const SIZE_CLASSES: u64 = 16;

/// `length` in whole pages, in bytes.
pub fn pages(length: usize) -> u64 {
    (length as u64).next_multiple_of(PAGE)
}

/// The memory that a large value of `length` bytes takes, in bytes: at most a 16th more, or a page.
pub fn footprint(length: usize) -> u64 {
    let length = (length as u64).max(1);
    length.next_multiple_of((length.next_power_of_two() / 2 / SIZE_CLASSES).max(PAGE))
}

impl LargeValue {
    /// Allocates a value whose [`footprint`] the caller has reserved. The reservation is released
    /// when the value is dropped, and on an error.
    pub(super) fn new(length: usize, memory: &Arc<MemoryBudget>) -> Result<Self, OutOfMemory> {
        let bytes = footprint(length);
        let map = memory.take_spare(bytes).or_else(|| MmapMut::map_anon(bytes as usize).ok());
        if map.is_none() {
            memory.used.fetch_sub(bytes);
            return Err(OutOfMemory);
        }
        memory.large.fetch_add(bytes);
        memory.unstored.fetch_add(bytes);
        Ok(Self { map, length, state: AtomicCell::new(ValueState::Received), memory: Arc::clone(memory) })
    }

    pub(super) fn mark_stored(&self) {
        self.change_state(ValueState::Stored);
    }

    /// Marks the value as removed from the store. Connections may still be sending it.
    pub(super) fn mark_removed(&self) {
        self.change_state(ValueState::Replaced);
    }

    pub fn is_replaced(&self) -> bool {
        self.state.load() == ValueState::Replaced
    }

    fn change_state(&self, to: ValueState) {
        let counter = |state| match state {
            ValueState::Received => Some(&self.memory.unstored),
            ValueState::Stored => None,
            ValueState::Replaced => Some(&self.memory.replaced),
        };
        let bytes = footprint(self.length);
        counter(to).map(|counter| counter.fetch_add(bytes));
        counter(self.state.swap(to)).map(|counter| counter.fetch_sub(bytes));
    }

    pub fn bytes(&self) -> &[u8] {
        &self.map.as_deref().unwrap_or_default()[..self.length]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map.as_deref_mut().unwrap_or_default()[..self.length]
    }
}

impl Drop for LargeValue {
    fn drop(&mut self) {
        self.mark_stored();
        self.memory.large.fetch_sub(footprint(self.length));
        self.memory.used.fetch_sub(footprint(self.length));
        if let Some(map) = self.map.take() {
            self.memory.keep_spare(map);
        }
    }
}
