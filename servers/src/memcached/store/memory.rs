//! The account of all memory that the store takes, against its limit, and large values.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memmap2::MmapMut;

/// The kernel gives memory in pages of this size.
const PAGE: u64 = 4096;

/// What is taken, and how much may be.
#[derive(Debug)]
pub struct Memory {
    used: AtomicU64,
    limit: AtomicU64,
    /// Of what is used: large values, whether they are stored, still come in or go out.
    large: AtomicU64,
    /// Of these, what is not stored: it comes in, or goes out although it was replaced.
    loose: AtomicU64,
}

impl Memory {
    pub fn new(limit: u64) -> Self {
        Self {
            used: AtomicU64::new(0),
            limit: AtomicU64::new(limit),
            large: AtomicU64::new(0),
            loose: AtomicU64::new(0),
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

    pub fn loose(&self) -> u64 {
        self.loose.load(Ordering::Relaxed)
    }

    /// Takes so many bytes, if they are within the limit.
    pub fn take(&self, bytes: u64) -> bool {
        let within = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= self.limit());
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok()
    }

    /// Takes so many bytes, even beyond the limit: for what can't be refused.
    pub fn charge(&self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub fn is_over(&self) -> bool {
        self.used() > self.limit()
    }
}

/// Memory of the kernel for a segment, or its refusal.
pub fn map(bytes: usize) -> io::Result<MmapMut> {
    MmapMut::map_anon(bytes)
}

/// A value too large for a segment, in pages of its own. It counts until nobody has it any more: a
/// client that takes its time to read it can't make the store exceed its limit.
#[derive(Debug)]
pub struct Large {
    map: MmapMut,
    length: usize,
    /// Whether it is stored.
    kept: AtomicBool,
    memory: Arc<Memory>,
}

/// What a large value of so many bytes takes.
pub fn large_size(length: usize) -> u64 {
    (length as u64).next_multiple_of(PAGE)
}

impl Large {
    /// The bytes must have been taken; they are given back when this is dropped, and also on an error.
    pub(super) fn new(length: usize, memory: &Arc<Memory>) -> io::Result<Self> {
        match map(length.max(1)) {
            Ok(map) => {
                memory.large.fetch_add(large_size(length), Ordering::Relaxed);
                memory.loose.fetch_add(large_size(length), Ordering::Relaxed);
                Ok(Self { map, length, kept: AtomicBool::new(false), memory: Arc::clone(memory) })
            }
            Err(error) => {
                memory.give_back(large_size(length));
                Err(error)
            }
        }
    }

    /// It is stored from now on.
    pub(super) fn keep(&self) {
        if !self.kept.swap(true, Ordering::Relaxed) {
            self.memory.loose.fetch_sub(large_size(self.length), Ordering::Relaxed);
        }
    }

    /// It is stored no longer; whoever still sends it has it until then.
    pub(super) fn let_go(&self) {
        if self.kept.swap(false, Ordering::Relaxed) {
            self.memory.loose.fetch_add(large_size(self.length), Ordering::Relaxed);
        }
    }

    /// The value.
    pub fn bytes(&self) -> &[u8] {
        &self.map[..self.length]
    }

    /// The value, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map[..self.length]
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        self.keep();
        self.memory.large.fetch_sub(large_size(self.length), Ordering::Relaxed);
        self.memory.give_back(large_size(self.length));
    }
}

impl AsRef<[u8]> for Large {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}
