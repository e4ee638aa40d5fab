//! A listening socket on a worker's ring.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::driver::UringDriver;
use super::listener_state::{AcceptState, ListenerState};
use super::socket_state::{runtime_has_ended, store_waker};
use crate::coop;

/// The most enters that stopping a listener makes; each runs some twenty items of deferred work.
const MAX_STOP_ENTERS: usize = 100;

/// A listening socket on a worker's ring.
///
/// The first accept arms a multishot operation, so a few more connections may be accepted than were
/// asked for. [`RingListener::stop`] returns those that nobody has taken. Dropping the listener
/// closes them, as closing a listening socket closes those in its backlog.
pub struct RingListener {
    driver: Rc<UringDriver>,
    state: Rc<ListenerState>,
}

impl RingListener {
    pub(crate) fn new(driver: Rc<UringDriver>, descriptor: Arc<dyn AsFd>) -> Self {
        Self { driver, state: Rc::new(ListenerState::new(descriptor)) }
    }

    /// Accepts a connection. Its descriptor is close-on-exec and non-blocking. Any number of tasks
    /// may wait.
    pub async fn accept(&self) -> io::Result<OwnedFd> {
        let mut waiting = self.state.waiters.enter();
        std::future::poll_fn(|context| self.accept_or(context, |_| waiting.wait(context))).await
    }

    /// Accepts a connection. Its descriptor is close-on-exec and non-blocking. One task may wait in
    /// this way at a time; a second one replaces the first.
    ///
    /// # Errors
    /// Those of `accept(2)`, after which further connections may be accepted; and `NotConnected` if
    /// the runtime has ended.
    pub fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<OwnedFd>> {
        self.accept_or(context, |accepts| store_waker(&mut accepts.waker, context))
    }

    fn accept_or(
        &self,
        context: &Context<'_>,
        wait: impl FnOnce(&mut AcceptState),
    ) -> Poll<io::Result<OwnedFd>> {
        ready!(coop::poll_budget(context));
        let mut accepts = self.state.accepts.borrow_mut();
        if let Some(connection) = accepts.untaken.pop_front() {
            coop::spend();
            return Poll::Ready(Ok(connection));
        }
        if let Some(error) = accepts.failed.take() {
            return Poll::Ready(Err(error));
        }
        if self.driver.is_closed() {
            return Poll::Ready(Err(runtime_has_ended()));
        }
        wait(&mut accepts);
        if accepts.operation.is_none() {
            drop(accepts);
            self.driver.arm_accept(&self.state);
        }
        Poll::Pending
    }

    /// Takes the socket off the ring, and returns the connections that were accepted and that
    /// nobody has taken. Further ones stay in the socket's backlog.
    pub fn stop(self) -> Vec<OwnedFd> {
        self.cancel_accept()
    }

    fn cancel_accept(&self) -> Vec<OwnedFd> {
        let operation = self.state.accepts.borrow().operation;
        if let Some(operation) = operation
            && !self.driver.is_closed()
        {
            self.driver.cancel(operation.get());
            // Submitted at once: until it completes, the socket listens and its address is in use.
            // An enter may have other work to do first. If an enter fails, a later one submits it.
            for _ in 0..MAX_STOP_ENTERS {
                if self.state.accepts.borrow().operation.is_none() || self.driver.enter(0, None).is_err() {
                    break;
                }
            }
        }
        let mut accepts = self.state.accepts.borrow_mut();
        // One that has not completed yet closes what it accepts.
        accepts.dropped = true;
        let (untaken, waker) = (std::mem::take(&mut accepts.untaken), accepts.waker.take());
        drop(accepts);
        drop(waker);
        untaken.into()
    }
}

opaque_debug!(RingListener, "RingListener", |it| "fd" = it.state.fd());

impl Drop for RingListener {
    fn drop(&mut self) {
        drop(self.cancel_accept());
    }
}
