//! A listening socket whose accepts are one operation of the ring, which delivers connection after
//! connection.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use io_uring::{opcode, types};

use super::RingDriver;
use super::operations::Operation;

/// Connections that are accepted and not yet taken, above which the kernel accepts no more: then they
/// wait in the backlog, as if nobody had called accept.
const UNTAKEN_LIMIT: usize = 64;

/// Enters that a listener which is dropped makes at the most; each does some twenty pieces of work.
const MOST_ENTERS: usize = 100;

/// The listener as its operation sees it; the descriptor stays open until that is over.
pub(super) struct AcceptState {
    descriptor: Arc<dyn AsFd>,
    accepts: RefCell<Accepts>,
}

#[derive(Default)]
struct Accepts {
    operation: Option<NonZeroU64>,
    /// Whether it has been taken back, and will complete for the last time.
    cancelled: bool,
    untaken: VecDeque<OwnedFd>,
    failed: Option<io::Error>,
    waker: Option<Waker>,
    /// Nobody will take any more.
    abandoned: bool,
}

impl RingDriver {
    fn arm_accept(&self, state: &Rc<AcceptState>) {
        let fd = types::Fd(state.descriptor.as_fd().as_raw_fd());
        let id = self.operations.borrow_mut().insert(Operation::Accept(Rc::clone(state)));
        state.accepts.borrow_mut().operation = NonZeroU64::new(id);
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let entry = opcode::AcceptMulti::new(fd).flags(flags).build().user_data(id);
        // SAFETY: nothing is pointed to, and the table's entry keeps the descriptor open.
        unsafe { self.queue.borrow_mut().push(entry) };
    }

    pub(super) fn accepted(&self, state: &AcceptState, result: i32, more: bool) {
        self.progress.set(true);
        let mut accepts = state.accepts.borrow_mut();
        let operation = accepts.operation;
        if !more {
            accepts.operation = None;
            accepts.cancelled = false;
        }
        match RawFd::from(result) {
            fd @ 0.. => {
                // SAFETY: the kernel has just opened it for this completion, and nobody else knows it.
                let connection = unsafe { OwnedFd::from_raw_fd(fd) };
                // Accepted for a listener that is gone meanwhile, it is closed here.
                if !accepts.abandoned {
                    accepts.untaken.push_back(connection);
                }
            }
            code if [libc::ECANCELED, libc::EINTR, libc::EAGAIN].contains(&-code) => {}
            code => accepts.failed = Some(io::Error::from_raw_os_error(-code)),
        }
        let full = accepts.untaken.len() >= UNTAKEN_LIMIT
            && more
            && !std::mem::replace(&mut accepts.cancelled, true);
        let waker = accepts.waker.take();
        drop(accepts);
        if full && let Some(operation) = operation {
            self.cancel(operation.get());
        }
        self.wakers.borrow_mut().extend(waker);
    }
}

/// A listening socket on a worker's ring.
///
/// The first accept arms an operation that goes on delivering connections, so a few more than were
/// asked for are accepted ahead. Those that nobody has taken when this is dropped are closed, as are
/// those in the backlog of a listening socket that is closed.
pub struct RingListener {
    driver: Rc<RingDriver>,
    state: Rc<AcceptState>,
}

impl RingListener {
    pub(crate) fn new(driver: Rc<RingDriver>, descriptor: Arc<dyn AsFd>) -> Self {
        Self { driver, state: Rc::new(AcceptState { descriptor, accepts: RefCell::default() }) }
    }

    /// The next connection: close-on-exec and non-blocking.
    ///
    /// # Errors
    /// Those of `accept(2)`. Accepting can go on after them.
    pub fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<OwnedFd>> {
        let mut accepts = self.state.accepts.borrow_mut();
        if let Some(connection) = accepts.untaken.pop_front() {
            return Poll::Ready(Ok(connection));
        }
        if let Some(error) = accepts.failed.take() {
            return Poll::Ready(Err(error));
        }
        if self.driver.is_closed() {
            return Poll::Ready(Err(super::socket::runtime_has_ended()));
        }
        super::socket::store(&mut accepts.waker, context);
        if accepts.operation.is_none() {
            drop(accepts);
            self.driver.arm_accept(&self.state);
        }
        Poll::Pending
    }
}

impl fmt::Debug for RingListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingListener").field("fd", &self.state.descriptor.as_fd()).finish_non_exhaustive()
    }
}

impl Drop for RingListener {
    fn drop(&mut self) {
        let mut accepts = self.state.accepts.borrow_mut();
        accepts.abandoned = true;
        let (untaken, waker) = (std::mem::take(&mut accepts.untaken), accepts.waker.take());
        let operation = accepts.operation;
        drop(accepts);
        drop((untaken, waker));
        if let Some(operation) = operation
            && !self.driver.is_closed()
        {
            self.driver.cancel(operation.get());
            // At once, for until then the socket listens, and its address is taken; an enter may have
            // other work to do first. Should it fail, a later one does it.
            for _ in 0..MOST_ENTERS {
                if self.state.accepts.borrow().operation.is_none() || self.driver.enter(0, None).is_err() {
                    break;
                }
            }
        }
    }
}
