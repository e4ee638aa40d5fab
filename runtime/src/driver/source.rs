//! Readiness of one registered descriptor.

use std::cell::{Cell, RefCell};
use std::task::{Context, Waker};

/// Which way data goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the descriptor.
    Read,
    /// To the descriptor.
    Write,
}

/// Which of a worker's epoll instances a descriptor belongs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceKind {
    /// A socket whose packets come from this NAPI (`SO_INCOMING_NAPI_ID`).
    Napi(u32),
    /// Anything else: listeners, pipes, sockets without a NAPI.
    Other,
}

/// Edge-triggered readiness: set by events, cleared by whoever found nothing more to do.
#[derive(Debug)]
pub(crate) struct Source {
    /// Whether the descriptor is in the epoll instance that polls the NAPI.
    pub(crate) in_polling_epoll: bool,
    read: Side,
    write: Side,
    /// The peer has closed: reads never block again, and no further event may come to say so.
    closed: Cell<bool>,
}

#[derive(Debug)]
struct Side {
    ready: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Side {
    fn new(ready: bool) -> Self {
        Self { ready: Cell::new(ready), waker: RefCell::new(None) }
    }

    fn set_ready(&self) {
        self.ready.set(true);
        // Taken out first: waking may run code that looks at this source.
        let waker = self.waker.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Source {
    pub(crate) fn new(in_polling_epoll: bool) -> Self {
        Self {
            in_polling_epoll,
            // An edge comes at registration if there is something to read. Writing is tried at once.
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

    pub(crate) fn wait(&self, direction: Direction, context: &Context<'_>) {
        let mut slot = self.side(direction).waker.borrow_mut();
        match &mut *slot {
            Some(waker) => waker.clone_from(context.waker()),
            None => *slot = Some(context.waker().clone()),
        }
    }
}
