//! Readiness of one registered descriptor, and the tasks that wait for it.

use std::cell::{Cell, RefCell};
use std::task::{Context, Waker};

use rustix::io::Errno;
use slab::Slab;

/// The direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the descriptor.
    Read,
    /// To the descriptor.
    Write,
}

/// Where a descriptor's events come from, which decides in which of a worker's epoll instances it
/// is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceKind {
    /// From packets of this NAPI (`SO_INCOMING_NAPI_ID` of the socket).
    Napi(u32),
    /// From packets of a NAPI that is known when the first datagram has come. Sends hardly ever
    /// block, so the socket is watched for room only after one did: otherwise the kernel reports
    /// room after each datagram that it has sent (`net/core/sock.c`, `sock_def_write_space`).
    Datagrams,
    /// From elsewhere: listeners, pipes, sockets without a NAPI.
    Other,
}

/// The edge-triggered readiness of one descriptor: set by events, cleared when an operation would
/// block.
#[derive(Debug)]
pub(crate) struct Readiness {
    /// Whether its events come by the queue that the worker polls.
    pub(crate) of_queue: Cell<bool>,
    pub(crate) watches_writes: Cell<bool>,
    read: Side,
    write: Side,
    /// The peer has closed: reads never block again, and there may be no further event.
    closed: Cell<bool>,
    /// Why the kernel doesn't watch it, for the next operation that waits.
    failed: Cell<Option<Errno>>,
}

#[derive(Debug)]
struct Side {
    ready: Cell<bool>,
    /// Counts the events, and wraps around.
    events: Cell<u32>,
    /// Of the one task that polls without a place among the waiters.
    waker: RefCell<Option<Waker>>,
    waiters: Waiters,
}

impl Side {
    fn new(ready: bool) -> Self {
        let (ready, events) = (Cell::new(ready), Cell::new(0));
        Self { ready, events, waker: RefCell::new(None), waiters: Waiters::default() }
    }

    fn set_ready(&self) {
        self.ready.set(true);
        self.events.set(self.events.get().wrapping_add(1));
        // Taken out first: a waker may run code that uses this readiness.
        let waker = self.waker.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
        self.waiters.take().into_iter().for_each(Waker::wake);
    }
}

impl Readiness {
    pub(crate) fn new(of_queue: bool, watches_writes: bool) -> Self {
        Self {
            of_queue: Cell::new(of_queue),
            watches_writes: Cell::new(watches_writes),
            // Registration reports an edge if there is something to read. Writes are tried at once.
            read: Side::new(false),
            write: Side::new(true),
            closed: Cell::new(false),
            failed: Cell::new(None),
        }
    }

    fn side(&self, direction: Direction) -> &Side {
        match direction {
            Direction::Read => &self.read,
            Direction::Write => &self.write,
        }
    }

    pub(crate) fn dispatch(&self, readable: bool, writable: bool, closed: bool) {
        if closed {
            self.closed.set(true);
        }
        if readable {
            self.read.set_ready();
        }
        if writable {
            self.write.set_ready();
        }
    }

    /// There will be no events. Wakes those who wait: they try, and find the error when they wait
    /// again.
    pub(crate) fn fail(&self, error: Errno) {
        self.failed.set(Some(error));
        self.read.set_ready();
        self.write.set_ready();
    }

    pub(crate) fn take_failure(&self) -> Option<Errno> {
        self.failed.take()
    }

    pub(crate) fn is_ready(&self, direction: Direction) -> bool {
        self.side(direction).ready.get()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// A read is to be tried before there was an event.
    pub(crate) fn expect_bytes(&self) {
        self.read.ready.set(true);
    }

    pub(crate) fn clear(&self, direction: Direction) {
        self.side(direction).ready.set(false);
    }

    /// The number of events so far. It wraps around.
    pub(crate) fn events(&self, direction: Direction) -> u32 {
        self.side(direction).events.get()
    }

    /// A future's place among those that wait for a direction.
    pub(crate) fn enter(&self, direction: Direction) -> Waiting<'_> {
        self.side(direction).waiters.enter()
    }

    /// Stores the waker of the one task that polls without a place.
    pub(crate) fn wait(&self, direction: Direction, context: &Context<'_>) {
        let replaced = store_waker(&mut self.side(direction).waker.borrow_mut(), context);
        drop(replaced);
    }
}

/// Stores the waker of the task that waits. Returns the one that was there, to be dropped when
/// nothing is borrowed: it may be foreign code, which may use the same socket.
#[inline]
#[must_use]
pub(crate) fn store_waker(slot: &mut Option<Waker>, context: &Context<'_>) -> Option<Waker> {
    let waker = context.waker();
    if slot.as_ref().is_some_and(|stored| stored.will_wake(waker)) {
        return None;
    }
    slot.replace(waker.clone())
}

/// Any number of waiting futures, each with a place until it is dropped. Without any it takes no
/// memory of its own.
#[derive(Default)]
pub(crate) struct Waiters(RefCell<Option<Box<Slab<Option<Waker>>>>>);

impl Waiters {
    /// A future's place, which it takes when it first waits.
    pub(crate) fn enter(&self) -> Waiting<'_> {
        Waiting { waiters: self, key: None }
    }

    /// Takes the wakers of all futures that wait. They are woken outside: a waker may be foreign
    /// code.
    pub(crate) fn take(&self) -> Vec<Waker> {
        let mut waiters = self.0.borrow_mut();
        let waiting = waiters.iter_mut().flat_map(|waiters| waiters.iter_mut());
        waiting.filter_map(|(_, waker)| waker.take()).collect()
    }
}

opaque_debug!(Waiters, "Waiters", |it| "count" = it.0.borrow().as_ref().map_or(0, |waiters| waiters.len()));

/// The place of one future among the waiters.
pub(crate) struct Waiting<'a> {
    waiters: &'a Waiters,
    key: Option<usize>,
}

impl Waiting<'_> {
    /// Stores the waker of the future's task.
    pub(crate) fn wait(&mut self, context: &Context<'_>) {
        let waker = context.waker().clone();
        let mut borrowed = self.waiters.0.borrow_mut();
        let waiters = borrowed.get_or_insert_default();
        let replaced = match self.key.and_then(|key| waiters.get_mut(key)) {
            Some(slot) => slot.replace(waker),
            None => {
                self.key = Some(waiters.insert(Some(waker)));
                None
            }
        };
        // As in `drop`.
        drop(borrowed);
        drop(replaced);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let mut waiters = self.waiters.0.borrow_mut();
        let waker = waiters.as_mut().and_then(|waiters| waiters.try_remove(key));
        if waiters.as_ref().is_some_and(|waiters| waiters.is_empty()) {
            *waiters = None;
        }
        // Outside of the borrow: dropping the waker may run foreign code.
        drop(waiters);
        drop(waker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_future_that_waits_is_woken_and_a_dropped_one_is_forgotten() {
        let waiters = Waiters::default();
        let context = Context::from_waker(Waker::noop());
        let (mut first, mut second, mut third) = (waiters.enter(), waiters.enter(), waiters.enter());
        first.wait(&context);
        first.wait(&context);
        second.wait(&context);
        third.wait(&context);
        drop(second);
        assert_eq!(waiters.take().len(), 2);
        assert!(waiters.take().is_empty());
        third.wait(&context);
        assert_eq!(waiters.take().len(), 1);
        drop((first, third));
        assert!(waiters.0.borrow().is_none());
    }
}
