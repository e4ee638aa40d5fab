//! The limit of open connections, and connections that wait for others to close.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

#[derive(Debug)]
pub struct ConnectionLimit {
    max: usize,
    max_waiting: usize,
    open: AtomicUsize,
    times_reached: AtomicU64,
    waiting: Mutex<WaitQueue>,
}

/// Connections that wait for a permit, in order of arrival.
#[derive(Debug, Default)]
struct WaitQueue {
    last_ticket: u64,
    wakers: VecDeque<(u64, Waker)>,
}

impl ConnectionLimit {
    pub fn new(max: usize, max_waiting: usize) -> Self {
        Self {
            max,
            max_waiting,
            open: AtomicUsize::new(0),
            times_reached: AtomicU64::new(0),
            waiting: Mutex::default(),
        }
    }

    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    pub fn is_reached(&self) -> bool {
        self.open() >= self.max
    }

    pub fn times_reached(&self) -> u64 {
        self.times_reached.load(Ordering::Relaxed)
    }

    pub fn count_reached(&self) {
        self.times_reached.fetch_add(1, Ordering::Relaxed);
    }

    fn waiting(&self) -> MutexGuard<'_, WaitQueue> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_one(&self) {
        let first = self.waiting().wakers.pop_front();
        // Outside of the lock.
        first.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

/// A waiting connection's ticket. Leaves the queue when it is dropped.
struct WaitTicket<'a> {
    limit: &'a ConnectionLimit,
    number: u64,
}

impl WaitTicket<'_> {
    /// Leaves the queue. Returns whether the connection was still in it, that is, was not woken.
    fn leave(&self) -> bool {
        let mut waiting = self.limit.waiting();
        let before = waiting.wakers.len();
        waiting.wakers.retain(|(number, _)| *number != self.number);
        waiting.wakers.len() < before
    }
}

impl Drop for WaitTicket<'_> {
    fn drop(&mut self) {
        // A connection that was woken but no longer takes the permit passes the wakeup on.
        if !self.leave() && !self.limit.is_reached() {
            self.limit.wake_one();
        }
    }
}

/// Counts as one open connection until it is dropped.
#[derive(Debug)]
pub struct ConnectionPermit(Arc<ConnectionLimit>);

impl ConnectionPermit {
    /// `None` if the limit is reached.
    pub fn try_acquire(limit: &Arc<ConnectionLimit>) -> Option<Self> {
        let more = |open: usize| (open < limit.max).then_some(open + 1);
        limit.open.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).ok()?;
        Some(Self(Arc::clone(limit)))
    }

    /// Waits until another connection closes. `None` if too many connections wait already.
    pub async fn acquire(limit: &Arc<ConnectionLimit>) -> Option<Self> {
        let ticket = {
            let mut waiting = limit.waiting();
            if waiting.wakers.len() >= limit.max_waiting {
                return None;
            }
            waiting.last_ticket += 1;
            WaitTicket { limit, number: waiting.last_ticket }
        };
        let permit = std::future::poll_fn(|context| {
            ticket.leave();
            if let Some(permit) = Self::try_acquire(limit) {
                return Poll::Ready(permit);
            }
            limit.waiting().wakers.push_back((ticket.number, context.waker().clone()));
            // A connection may have closed before the waker was in the queue.
            Self::try_acquire(limit).map_or(Poll::Pending, Poll::Ready)
        });
        Some(permit.await)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
        self.0.wake_one();
    }
}
