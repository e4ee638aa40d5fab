//! What other threads leave for a worker, and whether it sleeps: both decide whether they need a
//! system call to wake it.

use crate::sync::{AtomicBool, AtomicU8, Mutex, MutexGuard, Ordering, lock};

pub(crate) struct Inbox<M> {
    messages: Mutex<Vec<M>>,
    /// Whether there are messages: a hint for those who don't hold the lock.
    filled: AtomicBool,
    closed: AtomicBool,
}

impl<M> Default for Inbox<M> {
    fn default() -> Self {
        Self {
            messages: Mutex::new(Vec::new()),
            filled: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }
}

impl<M> Inbox<M> {
    /// Adds a message. The caller wakes the worker if it is parked ([`ParkState::claim_wake`]). A
    /// closed inbox returns the message, to be dropped outside the lock.
    pub(crate) fn push(&self, message: M) -> Result<(), M> {
        {
            let mut messages = self.lock();
            if self.closed.load(Ordering::Relaxed) {
                return Err(message);
            }
            messages.push(message);
            self.filled.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Parks the worker unless there are messages; returns whether it is parked.
    pub(crate) fn park(&self, state: &ParkState) -> bool {
        state.park();
        let empty = self.lock().is_empty();
        if !empty {
            state.unpark();
        }
        empty
    }

    pub(crate) fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Relaxed)
    }

    /// Swaps all messages with an empty vector, whose memory the next messages use.
    pub(crate) fn take(&self, into: &mut Vec<M>) {
        if self.is_filled() {
            let mut messages = self.lock();
            self.filled.store(false, Ordering::Relaxed);
            std::mem::swap(&mut *messages, into);
        }
    }

    /// Refuses messages from now on, and returns those that are queued.
    pub(crate) fn close(&self) -> Vec<M> {
        let mut messages = self.lock();
        self.closed.store(true, Ordering::Relaxed);
        std::mem::take(&mut *messages)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<M>> {
        lock(&self.messages)
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn take(inbox: &Inbox<u8>) -> Vec<u8> {
        let mut messages = Vec::new();
        inbox.take(&mut messages);
        messages
    }

    #[test]
    fn a_running_worker_is_not_written_to() {
        let (inbox, state) = (Inbox::default(), ParkState::default());
        assert!(inbox.push(1).is_ok());
        assert!(!state.claim_wake());
        assert_eq!(take(&inbox).len(), 1);
    }

    #[test]
    fn a_parked_worker_is_written_to_once() {
        let (inbox, state) = (Inbox::default(), ParkState::default());
        assert!(inbox.park(&state));
        assert!(inbox.push(1).is_ok() && state.is_parked());
        assert!(state.claim_wake());
        assert!(inbox.push(2).is_ok() && !state.is_parked());
        assert!(!state.claim_wake());
        state.unpark();
        assert_eq!(take(&inbox).len(), 2);
    }

    #[test]
    fn a_worker_with_messages_does_not_park() {
        let (inbox, state) = (Inbox::default(), ParkState::default());
        let _ = inbox.push(1);
        assert!(!inbox.park(&state));
        assert_eq!(take(&inbox).len(), 1);
        assert!(inbox.park(&state));
    }

    #[test]
    fn a_closed_inbox_gives_messages_back() {
        let inbox = Inbox::default();
        let _ = inbox.push(1);
        assert_eq!(inbox.close().len(), 1);
        assert!(inbox.push(2).is_err());
    }
}
