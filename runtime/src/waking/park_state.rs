//! Whether a worker sleeps, and whether somebody wakes it already.

use crate::sync::{AtomicU8, Ordering};

const RUNNING: u8 = 0;
const PARKED: u8 = 1;
const NOTIFIED: u8 = 2;

/// Running, parked, or parked with a wake-up on its way.
///
/// A worker is written to (its eventfd or its ring) only while it is parked, and once each time it
/// parks. That saves more than system calls: an eventfd that is readable when `epoll_wait` is
/// entered makes it return without polling the NAPI, while every return re-arms the suspension
/// timer (`fs/eventpoll.c`). A worker that is written to on every wake starves its own network.
#[derive(Default)]
pub(crate) struct ParkState(AtomicU8);

impl ParkState {
    /// The worker is about to sleep. It has to check its inbox once more after this.
    pub(super) fn park(&self) {
        self.0.store(PARKED, Ordering::Release);
    }

    pub(crate) fn unpark(&self) {
        self.0.store(RUNNING, Ordering::Release);
    }

    /// Whether the worker sleeps and nobody wakes it yet. If not, it will see a message that was
    /// pushed before this call.
    pub(crate) fn is_parked(&self) -> bool {
        self.0.load(Ordering::Acquire) == PARKED
    }

    /// Claims the wake-up of a parked worker; the caller that gets `true` has to write to it.
    /// Called after [`Inbox::push`](super::inbox::Inbox::push).
    ///
    /// [`Inbox::park`](super::inbox::Inbox::park) stores the parked state, and then locks the inbox
    /// to check it. Either that check comes after the push and finds the message, or the push has
    /// locked after it, and this call sees the parked state.
    #[must_use]
    pub(crate) fn claim_wake(&self) -> bool {
        self.0.compare_exchange(PARKED, NOTIFIED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}
