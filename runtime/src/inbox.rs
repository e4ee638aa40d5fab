//! What other threads send to a worker, and the word by which they know whether it sleeps.

use crate::sync::{AtomicBool, AtomicU8, Mutex, MutexGuard, Ordering, lock};
use crate::task::{TaskRef, Unborn};

/// Something for a worker to do.
pub(crate) enum Remote {
    /// Queue a task.
    Wake(TaskRef),
    /// Take in a task that was spawned elsewhere.
    Adopt(Unborn),
    /// Look whether to stop.
    Look,
}

const RUNNING: u8 = 0;
const PARKED: u8 = 1;
const NOTIFIED: u8 = 2;

/// Many senders, one worker.
///
/// A sender writes the worker's eventfd only if the worker is parked. That is more than thrift: an
/// eventfd that is readable when `epoll_wait` is entered makes it return without polling the NAPI,
/// while every return re-arms the suspension timer (`fs/eventpoll.c`). A worker that was written to
/// on every wake would starve its own network.
#[derive(Default)]
pub(crate) struct Inbox {
    messages: Mutex<Vec<Remote>>,
    /// Whether there are messages: a hint for who doesn't hold the lock.
    filled: AtomicBool,
    state: AtomicU8,
    closed: AtomicBool,
}

/// What a sender has to do after a message is in.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Notify {
    /// Nothing: the worker is running and will look.
    No,
    /// Write the eventfd.
    Yes,
}

impl Inbox {
    /// Puts a message in; [`Inbox::notify`] has to follow. A closed inbox gives it back, to be dropped
    /// outside the lock.
    pub(crate) fn push(&self, message: Remote) -> Result<(), Remote> {
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

    /// Claims the duty of waking the worker, once for each time that it parks.
    ///
    /// Called after the lock was held to put a message in; [`Inbox::park`] says that it parks, and then
    /// holds the lock to look. So either that look comes later and finds the message, or the lock has
    /// brought the word here.
    pub(crate) fn notify(&self) -> Notify {
        let claimed =
            self.state.compare_exchange(PARKED, NOTIFIED, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if claimed { Notify::Yes } else { Notify::No }
    }

    /// Whether there is anything to notify. If not, the worker will see the message that was put in.
    pub(crate) fn is_parked(&self) -> bool {
        self.state.load(Ordering::Acquire) == PARKED
    }

    /// Says that the worker is about to sleep; `false`, and nothing said, if there are messages.
    pub(crate) fn park(&self) -> bool {
        self.state.store(PARKED, Ordering::Release);
        let empty = self.lock().is_empty();
        if !empty {
            self.unpark();
        }
        empty
    }

    /// Says that the worker runs again.
    pub(crate) fn unpark(&self) {
        self.state.store(RUNNING, Ordering::Release);
    }

    pub(crate) fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Relaxed)
    }

    /// Takes all messages, for an empty list whose memory is used for the next ones.
    pub(crate) fn take(&self, into: &mut Vec<Remote>) {
        if self.is_filled() {
            let mut messages = self.lock();
            self.filled.store(false, Ordering::Relaxed);
            std::mem::swap(&mut *messages, into);
        }
    }

    /// Takes messages again.
    pub(crate) fn open(&self) {
        let _messages = self.lock();
        self.closed.store(false, Ordering::Relaxed);
    }

    /// Refuses messages from now on, and returns those that are in.
    pub(crate) fn close(&self) -> Vec<Remote> {
        let mut messages = self.lock();
        self.closed.store(true, Ordering::Relaxed);
        std::mem::take(&mut *messages)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Remote>> {
        lock(&self.messages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Remote {
        Remote::Look
    }

    fn take(inbox: &Inbox) -> Vec<Remote> {
        let mut messages = Vec::new();
        inbox.take(&mut messages);
        messages
    }

    #[test]
    fn a_running_worker_is_not_written_to() {
        let inbox = Inbox::default();
        assert!(inbox.push(message()).is_ok());
        assert_eq!(inbox.notify(), Notify::No);
        assert_eq!(take(&inbox).len(), 1);
    }

    #[test]
    fn a_parked_worker_is_written_to_once() {
        let inbox = Inbox::default();
        assert!(inbox.park());
        assert!(inbox.push(message()).is_ok() && inbox.is_parked());
        assert_eq!(inbox.notify(), Notify::Yes);
        assert!(inbox.push(message()).is_ok() && !inbox.is_parked());
        assert_eq!(inbox.notify(), Notify::No);
        inbox.unpark();
        assert_eq!(take(&inbox).len(), 2);
    }

    #[test]
    fn a_worker_with_messages_does_not_park() {
        let inbox = Inbox::default();
        let _ = inbox.push(message());
        assert!(!inbox.park());
        assert_eq!(take(&inbox).len(), 1);
        assert!(inbox.park());
    }

    #[test]
    fn a_closed_inbox_gives_messages_back() {
        let inbox = Inbox::default();
        let _ = inbox.push(message());
        assert_eq!(inbox.close().len(), 1);
        assert!(inbox.push(message()).is_err());
        inbox.open();
        assert!(inbox.push(message()).is_ok());
    }
}
