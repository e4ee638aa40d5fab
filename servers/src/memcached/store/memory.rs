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
pub(super) const FREE_BUFFERS_DIVISOR: u64 = 32;

/// A number of bytes that several threads change.
#[derive(Debug, Default)]
pub struct Bytes(AtomicU64);

impl Bytes {
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    pub fn sub(&self, bytes: u64) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Adds bytes, and returns how many there were before.
    pub fn add(&self, bytes: u64) -> u64 {
        self.0.fetch_add(bytes, Ordering::Relaxed)
    }
}

/// Bytes in use and their limit, shared by all shards, large values and buffers.
#[derive(Debug, Default)]
pub struct MemoryBudget {
    pub used: Bytes,
    pub limit: Bytes,
    /// Part of `used`: all large values, whether stored, being received or being sent.
    pub large: Bytes,
    /// Part of `used`: what is not in the store. These are large values that are still being
    /// received or were replaced while being sent, and buffers of connections.
    pub unstored: Bytes,
    /// All reserved buffers of connections. The first ones are not part of `used`.
    pub(super) buffers: Bytes,
}

impl MemoryBudget {
    /// Adds `bytes` to `used` if they fit within the limit.
    pub fn try_reserve(&self, bytes: u64) -> bool {
        let within = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= self.limit.get());
        self.used.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok()
    }

    pub fn is_over_limit(&self) -> bool {
        self.used.get() > self.limit.get()
    }
}

/// Memory that a connection's buffer takes. Released when it is dropped.
///
/// A client may ask for large replies and not read them, or send half of a large value. Each
/// connection may hold some memory for that, 32 KiB in all (`session::FREE_BUFFER`, twice); what is
/// more counts here.
#[derive(Debug)]
pub struct BufferReservation {
    pub bytes: u64,
    /// Whether the bytes were also reserved against the limit.
    pub(super) counted: bool,
    pub(super) memory: Arc<MemoryBudget>,
}

impl Drop for BufferReservation {
    fn drop(&mut self) {
        self.memory.buffers.sub(self.bytes);
        if self.counted {
            self.memory.unstored.sub(self.bytes);
            self.memory.used.sub(self.bytes);
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
                memory.large.add(footprint(length));
                memory.unstored.add(footprint(length));
                Ok(Self { map, length, stored: AtomicBool::new(false), memory: Arc::clone(memory) })
            }
            Err(error) => {
                memory.used.sub(footprint(length));
                Err(error)
            }
        }
    }

    pub(super) fn mark_stored(&self) {
        if !self.stored.swap(true, Ordering::Relaxed) {
            self.memory.unstored.sub(footprint(self.length));
        }
    }

    /// Marks the value as removed from the store. Connections that are still sending it keep it
    /// alive.
    pub(super) fn mark_removed(&self) {
        if self.stored.swap(false, Ordering::Relaxed) {
            self.memory.unstored.add(footprint(self.length));
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
        self.memory.large.sub(footprint(self.length));
        self.memory.used.sub(footprint(self.length));
    }
}
