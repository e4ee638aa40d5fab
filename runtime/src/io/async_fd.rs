//! Descriptors on a worker's driver.

use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use crate::driver::{Direction, Source, SourceKind};
use crate::worker::{self, Worker};

/// A descriptor whose readiness its worker's driver watches.
///
/// It must be non-blocking. It stays on the worker that made it.
#[derive(Debug)]
pub struct AsyncFd<T: AsFd> {
    registration: Registration,
    // After the registration: the descriptor must be open when it is taken out of the epoll instance.
    inner: Option<T>,
}

struct Registration {
    worker: Rc<Worker>,
    key: usize,
    source: Rc<Source>,
}

impl std::fmt::Debug for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registration").field("key", &self.key).field("source", &self.source).finish()
    }
}

impl Registration {
    fn new(descriptor: &impl AsFd, kind: SourceKind) -> io::Result<Self> {
        worker::with(|worker| {
            let napi = worker.shared.napi.load(std::sync::atomic::Ordering::Relaxed);
            let (key, source) = worker.driver.epoll().register(descriptor.as_fd(), kind, napi)?;
            Ok(Self { worker: Rc::clone(worker), key, source })
        })
    }
}

impl<T: AsFd> AsyncFd<T> {
    /// Registers a descriptor with the calling thread's worker.
    ///
    /// # Errors
    /// The kernel's, for example `EPERM` for a regular file, which epoll doesn't take.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn new(inner: T, kind: SourceKind) -> io::Result<Self> {
        let registration = Registration::new(&inner, kind)?;
        Ok(Self { registration, inner: Some(inner) })
    }

    /// The descriptor's owner.
    pub fn get_ref(&self) -> &T {
        self.inner.as_ref().expect("the descriptor is there until the AsyncFd is taken apart")
    }

    /// Takes the descriptor out of the driver.
    pub fn into_inner(mut self) -> io::Result<T> {
        self.deregister()?;
        Ok(self.inner.take().expect("the descriptor is there until the AsyncFd is taken apart"))
    }

    fn deregister(&self) -> io::Result<()> {
        let registration = &self.registration;
        registration.worker.driver.epoll().deregister(self.get_ref().as_fd(), registration.key)
    }

    /// Tries `operation`, and whenever it would block waits until the descriptor is ready for it.
    ///
    /// One task a direction may wait at a time; a second one replaces the first.
    pub fn poll_io<R>(
        &self,
        direction: Direction,
        context: &mut Context<'_>,
        mut operation: impl FnMut(&T) -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        let source = &self.registration.source;
        loop {
            if !source.is_ready(direction) {
                source.wait(direction, context);
                return Poll::Pending;
            }
            match operation(self.get_ref()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => source.clear(direction),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return Poll::Ready(result),
            }
        }
    }

    /// Tells what a read brought of so many bytes that were asked for. They are counted; and after less
    /// than was asked for, the next read is not tried before an event. Where the peer has closed it is:
    /// no event would come again (`epoll(7)`, question 9).
    pub fn record_read(&self, bytes: usize, asked: usize) {
        self.registration.worker.shared.metrics.received_bytes.add(bytes as u64);
        if 0 < bytes && bytes < asked && !self.registration.source.is_closed() {
            self.registration.source.clear(Direction::Read);
        }
    }

    /// Waits until an operation in this direction would not block.
    pub async fn ready(&self, direction: Direction) {
        std::future::poll_fn(|context| {
            if self.registration.source.is_ready(direction) {
                return Poll::Ready(());
            }
            self.registration.source.wait(direction, context);
            Poll::Pending
        })
        .await;
    }

    /// Forgets that the descriptor was ready: for those who call [`AsyncFd::ready`] and found nothing.
    pub fn clear_ready(&self, direction: Direction) {
        self.registration.source.clear(direction);
    }

    /// Like [`AsyncFd::poll_io`], as a future.
    pub async fn io<R>(
        &self,
        direction: Direction,
        mut operation: impl FnMut(&T) -> io::Result<R>,
    ) -> io::Result<R> {
        std::future::poll_fn(|context| {
            let result = ready!(self.poll_io(direction, context, &mut operation));
            Poll::Ready(result)
        })
        .await
    }
}

impl<T: AsFd> Drop for AsyncFd<T> {
    fn drop(&mut self) {
        if self.inner.is_some() {
            // Fails only for a descriptor that was closed behind our back, and then it is out already.
            let _ = self.deregister();
        }
    }
}
