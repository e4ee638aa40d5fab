//! What a connection's task on the worker and its thread share.

use std::io::{self, ErrorKind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Received bytes on their way from the worker to the thread.
#[derive(Debug)]
pub(crate) struct Slot {
    state: Mutex<SlotState>,
    /// The worker stops reading when this many bytes are unread.
    capacity: usize,
}

#[derive(Debug, Default)]
struct SlotState {
    /// What the thread has not taken yet.
    received: Vec<u8>,
    /// How the stream ends, after `received`.
    end: Option<End>,
    reader: Option<Thread>,
    /// The connection's task, while it waits for room or for the thread's end.
    pump: Option<Waker>,
    /// Nobody reads any more.
    stream_dropped: bool,
    thread_ended: bool,
}

#[derive(Debug)]
enum End {
    Closed,
    /// Returned by the next read; after it the stream is at its end.
    Failed(io::Error),
}

/// What a connection's thread still does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotUse {
    Reads,
    Dropped,
    Ended,
}

/// What became of bytes that were put into a slot.
#[derive(Debug, Default)]
pub(crate) struct Delivery {
    pub(crate) taken: usize,
    pub(crate) wake: Option<Thread>,
    /// There is no room for more; the task is woken when there is.
    pub(crate) full: bool,
}

impl Slot {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { state: Mutex::default(), capacity }
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds as many of the received bytes as there is room for. `context`: the task's, which is woken when there is room
    /// again.
    pub(crate) fn deliver(&self, bytes: &[u8], context: &Context<'_>) -> Delivery {
        let mut state = self.lock();
        let room = self.capacity.saturating_sub(state.received.len());
        let taken = bytes.len().min(room);
        state.received.extend_from_slice(&bytes[..taken]);
        let full = taken == room;
        if full {
            state.pump = Some(context.waker().clone());
        }
        Delivery { taken, wake: state.reader.take(), full }
    }

    /// Ends what can be read: after it there is nothing, or the error.
    pub(crate) fn end(&self, error: Option<io::Error>) -> Option<Thread> {
        let mut state = self.lock();
        state.end.get_or_insert(error.map_or(End::Closed, End::Failed));
        state.reader.take()
    }

    /// Whether there is room for more. If not, the task is woken when there is.
    pub(crate) fn has_room(&self, context: &Context<'_>) -> bool {
        let mut state = self.lock();
        let room = state.received.len() < self.capacity;
        if !room {
            state.pump = Some(context.waker().clone());
        }
        room
    }

    /// What the thread still does. The task is woken when that changes.
    pub(crate) fn poll_use(&self, context: &Context<'_>) -> SlotUse {
        let mut state = self.lock();
        if state.thread_ended {
            return SlotUse::Ended;
        }
        if !state.pump.as_ref().is_some_and(|pump| pump.will_wake(context.waker())) {
            state.pump = Some(context.waker().clone());
        }
        if state.stream_dropped { SlotUse::Dropped } else { SlotUse::Reads }
    }

    /// Nobody will read: the task closes the connection.
    pub(crate) fn drop_stream(&self) {
        self.change(|state| {
            state.stream_dropped = true;
            state.received = Vec::new();
        });
    }

    pub(crate) fn end_thread(&self) {
        self.change(|state| state.thread_ended = true);
    }

    fn change(&self, change: impl FnOnce(&mut SlotState)) {
        let mut state = self.lock();
        change(&mut state);
        let pump = state.pump.take();
        // Woken outside of the lock.
        drop(state);
        pump.into_iter().for_each(Waker::wake);
    }

    /// Swaps `empty` with what was received. `false`: the stream has ended. Blocks until there is something, at most
    /// until `limit` has passed.
    ///
    /// # Errors
    /// `WouldBlock` after the time limit, as sockets of the standard library have it; the connection's error, once.
    pub(crate) fn take(&self, empty: &mut Vec<u8>, limit: Option<Duration>) -> io::Result<bool> {
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            let mut state = self.lock();
            if !state.received.is_empty() {
                let was_full = state.received.len() >= self.capacity;
                std::mem::swap(&mut state.received, empty);
                let pump = if was_full { state.pump.take() } else { None };
                drop(state);
                pump.into_iter().for_each(Waker::wake);
                return Ok(true);
            }
            match state.end.take() {
                None => {}
                Some(End::Closed) => {
                    state.end = Some(End::Closed);
                    return Ok(false);
                }
                Some(End::Failed(error)) => {
                    state.end = Some(End::Closed);
                    return Err(error);
                }
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                state.reader = None;
                return Err(ErrorKind::WouldBlock.into());
            }
            state.reader = Some(std::thread::current());
            drop(state);
            match left {
                None => std::thread::park(),
                Some(left) => std::thread::park_timeout(left),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn noop() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    #[test]
    fn bytes_come_out_in_order_and_the_end_follows_them() {
        let slot = Slot::new(10);
        assert!(slot.deliver(b"ab", &noop()).wake.is_none());
        slot.deliver(b"c", &noop());
        slot.end(None);
        let mut bytes = Vec::new();
        assert!(slot.take(&mut bytes, None).unwrap());
        assert_eq!(bytes, b"abc");
        bytes.clear();
        assert!(!slot.take(&mut bytes, None).unwrap());
        assert!(!slot.take(&mut bytes, None).unwrap());
    }

    #[test]
    fn an_error_is_returned_once_after_the_bytes_before_it() {
        let slot = Slot::new(10);
        slot.deliver(b"ab", &noop());
        slot.end(Some(ErrorKind::ConnectionReset.into()));
        // The first end counts.
        slot.end(None);
        let mut bytes = Vec::new();
        assert!(slot.take(&mut bytes, None).unwrap());
        bytes.clear();
        assert_eq!(slot.take(&mut bytes, None).unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert!(!slot.take(&mut bytes, None).unwrap());
    }

    #[test]
    fn a_full_slot_wakes_its_task_when_it_is_emptied() {
        struct Count(std::sync::atomic::AtomicUsize);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
        let count = Arc::new(Count(0.into()));
        let waker = Waker::from(Arc::clone(&count));
        let context = Context::from_waker(&waker);
        let slot = Slot::new(4);
        assert!(!slot.deliver(b"abc", &context).full);
        assert!(slot.has_room(&context));
        let Delivery { taken, full, .. } = slot.deliver(b"de", &context);
        assert_eq!((taken, full), (1, true));
        assert!(!slot.has_room(&context));
        slot.take(&mut Vec::new(), None).unwrap();
        assert_eq!(count.0.load(std::sync::atomic::Ordering::Relaxed), 1);
        assert!(slot.has_room(&context));
    }

    #[test]
    fn a_time_limit_ends_the_wait_and_leaves_nobody_to_wake() {
        let slot = Slot::new(4);
        let error = slot.take(&mut Vec::new(), Some(Duration::from_millis(5))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert!(slot.deliver(b"a", &noop()).wake.is_none());
    }

    #[test]
    fn a_waiting_thread_gets_the_bytes() {
        let slot = Arc::new(Slot::new(4));
        let reading = Arc::clone(&slot);
        let thread = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            reading.take(&mut bytes, None).map(|_| bytes)
        });
        let waiting = loop {
            if slot.lock().reader.is_some() {
                break slot.deliver(b"a", &noop()).wake;
            }
            std::thread::yield_now();
        };
        waiting.unwrap().unpark();
        assert_eq!(thread.join().unwrap().unwrap(), b"a");
    }
}
