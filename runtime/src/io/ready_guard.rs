//! Readiness that its user clears.

use std::io;
use std::os::fd::AsFd;
use std::task::{Context, Poll, ready};

use super::async_fd::AsyncFd;
use crate::coop;
use crate::driver::readiness::Direction;

impl<T: AsFd> AsyncFd<T> {
    /// Waits until a read would not block, and returns a guard that says when the descriptor is no
    /// longer ready. Any number of tasks may wait.
    ///
    /// # Errors
    /// `NotConnected` if the runtime has ended.
    pub async fn readable(&self) -> io::Result<AsyncFdReadyGuard<'_, T>> {
        self.ready(Direction::Read).await;
        self.guard(Direction::Read)
    }

    /// Waits until a write would not block, and returns a guard that says when the descriptor is no
    /// longer ready. Any number of tasks may wait.
    ///
    /// # Errors
    /// `NotConnected` if the runtime has ended.
    pub async fn writable(&self) -> io::Result<AsyncFdReadyGuard<'_, T>> {
        self.ready(Direction::Write).await;
        self.guard(Direction::Write)
    }

    /// [`AsyncFd::readable`] for use in a `poll` function. One task may wait in this way at a time,
    /// as in [`AsyncFd::poll_io`].
    ///
    /// # Errors
    /// `NotConnected` if the runtime has ended.
    pub fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<AsyncFdReadyGuard<'_, T>>> {
        self.poll_ready(Direction::Read, context)
    }

    /// [`AsyncFd::writable`] for use in a `poll` function. One task may wait in this way at a time,
    /// as in [`AsyncFd::poll_io`].
    ///
    /// # Errors
    /// `NotConnected` if the runtime has ended.
    pub fn poll_write_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<AsyncFdReadyGuard<'_, T>>> {
        self.poll_ready(Direction::Write, context)
    }

    fn poll_ready(
        &self,
        direction: Direction,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<AsyncFdReadyGuard<'_, T>>> {
        ready!(coop::poll_budget(context));
        if self.check_open().is_ok() && !self.readiness().is_ready(direction) {
            self.readiness().wait(direction, context);
            return Poll::Pending;
        }
        coop::spend();
        Poll::Ready(self.guard(direction))
    }

    fn guard(&self, direction: Direction) -> io::Result<AsyncFdReadyGuard<'_, T>> {
        self.check_open()?;
        Ok(AsyncFdReadyGuard { fd: self, direction, events: self.readiness().events(direction) })
    }
}

/// A descriptor that was ready when [`AsyncFd::readable`] or [`AsyncFd::writable`] returned.
///
/// The descriptor counts as ready until an operation would have blocked: then the guard has to
/// clear the readiness, by [`try_io`](Self::try_io) or [`clear_ready`](Self::clear_ready), or the
/// next wait returns at once.
#[must_use = "without clearing the readiness the next wait returns at once"]
pub struct AsyncFdReadyGuard<'a, T: AsFd> {
    fd: &'a AsyncFd<T>,
    direction: Direction,
    events: u32,
}

/// [`AsyncFdReadyGuard::try_io`]: the operation would have blocked, and the readiness is cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the operation would have blocked")]
pub struct TryIoError(());

impl<'a, T: AsFd> AsyncFdReadyGuard<'a, T> {
    /// Tries an operation. Its result is returned, errors included, unless it is `WouldBlock`.
    ///
    /// # Errors
    /// [`TryIoError`] if the operation has returned `WouldBlock`. The readiness is cleared then,
    /// unless an event has come since the guard was made.
    pub fn try_io<R>(
        &mut self,
        operation: impl FnOnce(&'a AsyncFd<T>) -> io::Result<R>,
    ) -> Result<io::Result<R>, TryIoError> {
        match operation(self.fd) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.clear_ready();
                Err(TryIoError(()))
            }
            result => Ok(result),
        }
    }

    /// Clears the readiness, after an operation would have blocked: the next wait ends with the
    /// next event. An event that has come since the guard was made is kept.
    pub fn clear_ready(&mut self) {
        if self.fd.readiness().events(self.direction) == self.events {
            self.fd.clear_ready(self.direction);
        }
    }

    /// Leaves the descriptor ready, as dropping the guard does: for an operation that did not
    /// block.
    pub fn retain_ready(&mut self) {}

    /// The descriptor and its owner.
    pub fn get_ref(&self) -> &'a AsyncFd<T> {
        self.fd
    }
}

opaque_debug!(AsyncFdReadyGuard<'_, T>, "AsyncFdReadyGuard", [T: AsFd], |it| "direction" = it.direction);
