//! Readiness of one registered descriptor.

use std::cell::{Cell, RefCell};
use std::task::{Context, Waker};

use super::waiters::{Waiters, Waiting};

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

    pub(crate) fn is_ready(&self, direction: Direction) -> bool {
        self.side(direction).ready.get()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
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
        let mut slot = self.side(direction).waker.borrow_mut();
        match &mut *slot {
            Some(waker) => waker.clone_from(context.waker()),
            None => *slot = Some(context.waker().clone()),
        }
    }
}
