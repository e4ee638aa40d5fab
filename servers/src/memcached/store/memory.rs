//! The store's memory budget, and what counts against it outside of segments: large values, and
//! buffers of connections.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memmap2::MmapMut;

/// The store has no memory for an item and could not free any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the store has no memory for the item")]
pub struct OutOfMemory;

/// Buffers of connections up to the limit divided by this don't count against it, so that a few
/// slow clients evict nothing.
const FREE_BUFFERS_DIVISOR: u64 = 32;

/// Bytes in use and their limit, shared by all shards, large values and buffers.
#[derive(Debug)]
pub struct MemoryBudget {
    used: AtomicU64,
    limit: AtomicU64,
    /// Part of `used`: all large values, whether stored, being received or being sent.
    large: AtomicU64,
    /// Part of `used`: what is not in the store. These are large values that are still being
    /// received or were replaced while being sent, and buffers of connections.
    unstored: AtomicU64,
    /// All reserved buffers of connections. The first ones are not part of `used`.
    buffers: AtomicU64,
}

impl MemoryBudget {
    pub fn new(limit: u64) -> Self {
        Self {
            used: AtomicU64::new(0),
            limit: AtomicU64::new(limit),
            large: AtomicU64::new(0),
            unstored: AtomicU64::new(0),
            buffers: AtomicU64::new(0),
        }
    }

    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub fn large(&self) -> u64 {
        self.large.load(Ordering::Relaxed)
    }

    pub fn unstored(&self) -> u64 {
        self.unstored.load(Ordering::Relaxed)
    }

    /// Reserves `bytes` if they fit within the limit.
    pub fn try_reserve(&self, bytes: u64) -> bool {
        let within = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= self.limit());
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok()
    }

    /// Reserves `bytes` even beyond the limit: for memory that cannot be refused.
    pub fn reserve(&self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn release(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Adds a buffer. Returns whether it counts against the limit.
    pub(super) fn add_buffer(&self, bytes: u64) -> bool {
        let before = self.buffers.fetch_add(bytes, Ordering::Relaxed);
        before.saturating_add(bytes) > self.limit() / FREE_BUFFERS_DIVISOR
    }

    pub(super) fn remove_buffer(&self, bytes: u64) {
        self.buffers.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub fn is_over_limit(&self) -> bool {
        self.used() > self.limit()
    }

    pub(super) fn add_large(&self, bytes: u64) {
        self.large.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn remove_large(&self, bytes: u64) {
        self.large.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn add_unstored(&self, bytes: u64) {
        self.unstored.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn remove_unstored(&self, bytes: u64) {
        self.unstored.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Memory that a connection's buffer takes. Released when it is dropped.
///
/// A client may ask for large replies and not read them, or send half of a large value. Each
/// connection may hold some memory for that, 32 KiB in all (`session::FREE_BUFFER`, twice); what is
/// more counts here.
#[derive(Debug)]
pub struct BufferReservation {
    bytes: u64,
    counted: bool,
    memory: Arc<MemoryBudget>,
}

impl BufferReservation {
    /// A reservation that [`MemoryBudget::add_buffer`] adds to the budget.
    pub(super) fn new(bytes: u64, memory: &Arc<MemoryBudget>) -> Self {
        Self { bytes, counted: false, memory: Arc::clone(memory) }
    }

    /// The bytes were also reserved against the limit.
    pub(super) fn mark_counted(&mut self) {
        self.counted = true;
        self.memory.add_unstored(self.bytes);
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for BufferReservation {
    fn drop(&mut self) {
        self.memory.remove_buffer(self.bytes);
        if self.counted {
            self.memory.remove_unstored(self.bytes);
            self.memory.release(self.bytes);
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
        match MmapMut::map_anon(length.max(1)) {
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
