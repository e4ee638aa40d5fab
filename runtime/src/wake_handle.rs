//! What wakes a parked worker.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::counters::Counter;
use crate::inbox::ParkState;

/// A worker's parked state, and the two descriptors through which others wake it: its eventfd, and
/// its ring while it waits in one. This is all that drivers know of a worker, their own or another.
pub(crate) struct WakeHandle {
    pub(crate) park_state: ParkState,
    /// Readable once the worker was woken while parked.
    eventfd: OwnedFd,
    /// The ring that the worker waits in, if it does: a message to it wakes the worker.
    ring: Mutex<Option<Arc<OwnedFd>>>,
    /// How often others have woken it.
    wakes: Counter,
}

impl WakeHandle {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            park_state: ParkState::default(),
            eventfd: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            ring: Mutex::new(None),
            wakes: Counter::default(),
        })
    }

    /// Claims the worker's wake-up, and counts it. `false` if the worker runs, or somebody else
    /// wakes it.
    #[must_use]
    pub(crate) fn claim_wake(&self) -> bool {
        let claimed = self.park_state.claim_wake();
        if claimed {
            self.wakes.increment();
        }
        claimed
    }

    pub(crate) fn wake(&self) {
        if self.claim_wake() {
            self.write_eventfd();
        }
    }

    pub(crate) fn wakes(&self) -> u64 {
        self.wakes.get()
    }

    pub(crate) fn ring(&self) -> Option<Arc<OwnedFd>> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_ring(&self, ring: Option<OwnedFd>) {
        *self.ring.lock().unwrap_or_else(PoisonError::into_inner) = ring.map(Arc::new);
    }

    pub(crate) fn eventfd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }

    pub(crate) fn write_eventfd(&self) {
        // Fails only if the counter is full (EAGAIN), and then the worker is awake already.
        let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
    }

    pub(crate) fn drain_eventfd(&self) {
        let mut count = [0; 8];
        // EAGAIN: another turn has drained it.
        let _ = rustix::io::read(&self.eventfd, &mut count);
    }
}

opaque_debug!(WakeHandle, "WakeHandle", |it| "eventfd" = it.eventfd);
