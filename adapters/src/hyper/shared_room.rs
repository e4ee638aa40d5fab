//! Memory that all connections of the process share.

use std::sync::atomic::{AtomicUsize, Ordering};

/// How many bytes connections may take together, and have taken.
#[derive(Debug)]
pub(super) struct SharedRoom {
    taken: AtomicUsize,
    max: usize,
}

/// Bytes that a connection has taken. Dropping it gives them back.
#[derive(Debug)]
pub(super) struct Taken {
    bytes: usize,
    room: &'static SharedRoom,
}

impl SharedRoom {
    pub(super) const fn new(max: usize) -> Self {
        Self { taken: AtomicUsize::new(0), max }
    }

    /// A room that no other test takes from.
    #[cfg(test)]
    pub(super) fn leaked(max: usize) -> &'static Self {
        Box::leak(Box::new(Self::new(max)))
    }

    pub(super) fn left(&self) -> usize {
        self.max.saturating_sub(self.taken())
    }

    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Takes bytes, also more than are left: workers that have asked at the same time may exceed
    /// the limit by what each takes.
    pub(super) fn take(&'static self, bytes: usize) -> Taken {
        self.taken.fetch_add(bytes, Ordering::Relaxed);
        Taken { bytes, room: self }
    }
}

impl Taken {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.room.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
