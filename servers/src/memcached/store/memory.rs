//! The store's memory budget: how much is in use and how much may be.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::MmapMut;

/// The store has no memory for an item and could not free any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the store has no memory for the item")]
pub struct OutOfMemory;

/// Bytes in use and their limit, shared by all shards and large values.
#[derive(Debug)]
pub struct MemoryBudget {
    used: AtomicU64,
    limit: AtomicU64,
    /// Part of `used`: all large values, whether stored, being received or being sent.
    large: AtomicU64,
    /// Part of `large`: values that are not in the store, because they are still being received or because
    /// they were replaced while being sent.
    unstored: AtomicU64,
}

impl MemoryBudget {
    pub fn new(limit: u64) -> Self {
        Self {
            used: AtomicU64::new(0),
            limit: AtomicU64::new(limit),
            large: AtomicU64::new(0),
            unstored: AtomicU64::new(0),
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

/// Maps anonymous memory.
pub fn map_anonymous(bytes: usize) -> io::Result<MmapMut> {
    MmapMut::map_anon(bytes)
}
