//! Readiness of descriptors, and operations of the worker's ring.
//!
//! [`AsyncFd`] waits for readiness, on every driver. [`RingFd`] has operations of the ring for
//! files and pipes, and [`submit`] takes any other. Sockets are in the crate `lull-net`.

mod ring_operation;

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

pub use policies::socket_options::incoming_napi_id;

pub use self::ring_operation::{NoRing, RingFd, RingOperation, has_ring, submit};
use crate::coop;
pub use crate::coop::poll_operation;
use crate::driver::readiness::Readiness;
pub use crate::driver::readiness::{Direction, SourceKind};
use crate::faults;
use crate::worker::current;
use crate::worker::event_loop::Worker;

/// The NAPI that the calling worker polls, or would poll under a policy that polls. 0: it has none.
#[track_caller]
pub fn own_napi() -> u32 {
    current::with(|worker| worker.handle.napi.load(Ordering::Relaxed))
}

/// No trait to implement: the compiler names it where a socket would leave its worker's thread. A
/// socket belongs to its worker's driver. Give the code that uses it to
/// [`runtime::spawn`](crate::spawn), which takes futures that are not `Send`, or send what makes it
/// to a worker by [`runtime::spawn_on`](crate::spawn_on). A `JoinHandle` of either is `Send` if the
/// result is.
pub trait StaysOnItsWorkerUseRuntimeSpawn: Unpin {}

/// The first field of types that belong to a worker. Of what is not `Send` the compiler reports
/// first what is nested least, and then in the order of the fields. The other fields are insides of
/// these crates.
pub type OnItsWorker = PhantomData<dyn StaysOnItsWorkerUseRuntimeSpawn>;

const RUNTIME_HAS_ENDED: &str = "the runtime of this descriptor has ended";

/// A descriptor whose readiness its worker's driver watches, for what blocks otherwise: devices,
/// pipes, sockets of other libraries.
///
/// It must be non-blocking. It stays on the worker that made it.
///
/// An operation is either given to [`AsyncFd::io`], which waits and tries until it no longer
/// blocks, or tried with a guard of [`AsyncFd::readable`] or [`AsyncFd::writable`], as on tokio:
///
/// ```
/// use std::io::{Read, Write};
/// use std::os::unix::net::UnixStream;
/// use runtime::io::{AsyncFd, SourceKind};
///
/// # #[runtime::main(driver = "epoll")]
/// # async fn main() -> std::io::Result<()> {
/// let (ours, mut theirs) = UnixStream::pair()?;
/// ours.set_nonblocking(true)?;
/// let ours = AsyncFd::new(ours, SourceKind::Other)?;
/// theirs.write_all(b"hello")?;
/// let mut buffer = [0; 16];
/// let length = loop {
///     let mut guard = ours.readable().await?;
///     match guard.try_io(|fd| fd.get_ref().read(&mut buffer)) {
///         Ok(result) => break result?,
///         Err(_would_block) => {}
///     }
/// };
/// assert_eq!(&buffer[..length], b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncFd<T: AsFd> {
    on_its_worker: OnItsWorker,
    registration: Registration,
    // After the registration: the descriptor must be open when it is deregistered.
    inner: Option<T>,
}

struct Registration {
    worker: Rc<Worker>,
    /// `None` while the driver does not watch it yet.
    key: Cell<Option<usize>>,
    readiness: Rc<Readiness>,
}

opaque_debug!(Registration, "Registration", |it| "key" = it.key.get(), "readiness" = it.readiness);

impl Registration {
    #[track_caller]
    fn new(descriptor: &impl AsFd, kind: SourceKind) -> io::Result<Self> {
        current::with(|worker| {
            let napi = worker.handle.napi.load(Ordering::Relaxed);
            let (key, readiness) = worker.driver.instance().register(descriptor.as_fd(), kind, napi)?;
            Ok(Self { worker: Rc::clone(worker), key: Cell::new(Some(key)), readiness })
        })
    }

    #[track_caller]
    fn of_stream(socket: &impl AsFd, kind: SourceKind, has_bytes: bool) -> io::Result<Self> {
        let unwatched = current::with(|worker| {
            let napi = worker.handle.napi.load(Ordering::Relaxed);
            // Only the epoll driver waits in the instance itself.
            let instance = worker.driver.ring().is_none().then(|| worker.driver.instance())?;
            let readiness = instance.unwatched(kind, napi, has_bytes)?;
            Some(Self { worker: Rc::clone(worker), key: Cell::new(None), readiness })
        });
        unwatched.map_or_else(|| Self::new(socket, kind), Ok)
    }
}

impl<T: AsFd> AsyncFd<T> {
    /// Registers a descriptor with the calling thread's worker.
    ///
    /// # Errors
    /// Those of `epoll_ctl(2)`, for example `EPERM` for a regular file.
    pub fn new(inner: T, kind: SourceKind) -> io::Result<Self> {
        let registration = Registration::new(&inner, kind)?;
        Ok(Self { on_its_worker: PhantomData, registration, inner: Some(inner) })
    }

    /// For net: a connected stream socket, which is watched once an operation on it waits. `has_bytes`:
    /// whether its first read is worth a try before that, as the peer speaks first mostly.
    #[doc(hidden)]
    pub fn of_stream(inner: T, kind: SourceKind, has_bytes: bool) -> io::Result<Self> {
        let registration = Registration::of_stream(&inner, kind, has_bytes)?;
        Ok(Self { on_its_worker: PhantomData, registration, inner: Some(inner) })
    }

    /// For net: has a socket of [`AsyncFd::of_stream`] watched from now on, so that it is ready to be
    /// read only after an event.
    ///
    /// # Errors
    /// Once, that of an earlier call's `epoll_ctl(2)`. Then the next call tries again.
    #[doc(hidden)]
    pub fn watch(&self) -> io::Result<()> {
        let Registration { worker, key, readiness } = &self.registration;
        let instance = worker.driver.instance();
        match (key.get(), readiness.take_failure()) {
            (Some(_), None) => Ok(()),
            (Some(_), Some(error)) => {
                // It is not watched.
                let _ = self.deregister();
                key.set(None);
                Err(error.into())
            }
            (None, _) => {
                readiness.clear(Direction::Read);
                key.set(Some(instance.watch_later(self.get_ref().as_fd(), readiness)));
                Ok(())
            }
        }
    }

    /// The owner of the descriptor.
    pub fn get_ref(&self) -> &T {
        let Some(inner) = &self.inner else { unreachable!("only `into_inner` takes the descriptor") };
        inner
    }

    /// Deregisters the descriptor and returns its owner.
    ///
    /// # Errors
    /// Those of `epoll_ctl(2)`, if others have closed the descriptor.
    pub fn into_inner(mut self) -> io::Result<T> {
        self.deregister()?;
        let Some(inner) = self.inner.take() else { unreachable!("only `into_inner` takes the descriptor") };
        Ok(inner)
    }

    fn deregister(&self) -> io::Result<()> {
        let Registration { worker, key, .. } = &self.registration;
        match key.get() {
            Some(key) => worker.driver.instance().deregister(self.get_ref().as_fd(), key),
            None => Ok(()),
        }
    }

    /// Tries `operation`, and whenever it would block, waits until the descriptor is ready.
    ///
    /// One task per direction may wait in this way at a time; a second one replaces the first. Any
    /// number may wait in [`AsyncFd::io`] and [`AsyncFd::ready`].
    ///
    /// # Errors
    /// Those of `operation`, except `WouldBlock` and `Interrupted`; and `NotConnected` if the
    /// runtime has ended.
    pub fn poll_io<R>(
        &self,
        direction: Direction,
        context: &mut Context<'_>,
        operation: impl FnMut(&T) -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        self.try_when_ready(direction, context, operation, |context| {
            self.registration.readiness.wait(direction, context);
        })
    }

    fn try_when_ready<R>(
        &self,
        direction: Direction,
        context: &Context<'_>,
        mut operation: impl FnMut(&T) -> io::Result<R>,
        wait: impl FnOnce(&Context<'_>),
    ) -> Poll<io::Result<R>> {
        ready!(coop::poll_budget(context));
        self.check_open()?;
        let readiness = &self.registration.readiness;
        loop {
            if !readiness.is_ready(direction) && !faults::chance(16) {
                self.watch()?;
                wait(context);
                return Poll::Pending;
            }
            // As if a signal had interrupted it.
            if faults::chance(8) {
                continue;
            }
            match operation(self.get_ref()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.clear_ready(direction),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => {
                    coop::spend();
                    return Poll::Ready(result);
                }
            }
        }
    }

    /// Records that a read of at most `asked` bytes has returned `bytes`, which are counted in
    /// [`Metrics::received_bytes`](crate::Metrics::received_bytes). After a short read the next
    /// read waits for an event without being tried (`epoll(7)`, question 9), unless the peer has
    /// closed, after which there may be no event.
    pub fn record_read(&self, bytes: usize, asked: usize) {
        self.registration.worker.handle.counters.received_bytes.add(bytes as u64);
        coop::spend_bytes(bytes);
        if 0 < bytes && bytes < asked && !self.registration.readiness.is_closed() {
            self.registration.readiness.clear(Direction::Read);
        }
    }

    /// Records that so many datagrams, of so many bytes in all, were received
    /// ([`SourceKind::Datagrams`]).
    pub fn record_datagrams(&self, count: usize, bytes: usize) {
        let Registration { worker, readiness, .. } = &self.registration;
        worker.handle.counters.received_bytes.add(bytes as u64);
        if readiness.of_queue.get() {
            worker.driver.instance().received_datagrams(count);
        }
    }

    /// Counts bytes that the caller has sent on a stream, in
    /// [`Metrics::sent_bytes`](crate::Metrics::sent_bytes).
    pub fn record_sent(&self, bytes: usize) {
        self.registration.worker.handle.counters.sent_bytes.add(bytes as u64);
        coop::spend_bytes(bytes);
    }

    /// Waits until an operation in this direction would not block. Any number of tasks may wait. It
    /// returns at once if the runtime has ended.
    pub async fn ready(&self, direction: Direction) {
        let mut waiting = self.registration.readiness.enter(direction);
        std::future::poll_fn(|context| {
            ready!(coop::poll_budget(context));
            if self.registration.readiness.is_ready(direction) || self.registration.worker.is_closed() {
                coop::spend();
                return Poll::Ready(());
            }
            waiting.wait(context);
            Poll::Pending
        })
        .await;
    }

    /// Tries `operation` once, without waiting and without asking for readiness first.
    ///
    /// # Errors
    /// Those of `operation`, except `Interrupted`, after which it is tried again. After
    /// `WouldBlock` the descriptor is not ready until its next event.
    pub fn try_io<R>(
        &self,
        direction: Direction,
        mut operation: impl FnMut(&T) -> io::Result<R>,
    ) -> io::Result<R> {
        loop {
            match operation(self.get_ref()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.clear_ready(direction);
                    return Err(error);
                }
                result => return result,
            }
        }
    }

    /// `NotConnected` if the runtime has ended.
    fn check_open(&self) -> io::Result<()> {
        match self.registration.worker.is_closed() {
            true => Err(io::Error::new(io::ErrorKind::NotConnected, RUNTIME_HAS_ENDED)),
            false => Ok(()),
        }
    }

    /// Clears the readiness, after an operation that followed [`AsyncFd::ready`] would have
    /// blocked. An event that has come since that operation is lost; a guard
    /// ([`AsyncFd::readable`]) keeps it.
    pub fn clear_ready(&self, direction: Direction) {
        let Registration { worker, key, readiness } = &self.registration;
        readiness.clear(direction);
        if direction == Direction::Read {
            return;
        }
        match key.get() {
            Some(key) => worker.driver.instance().watch_writes(self.get_ref().as_fd(), key, readiness, true),
            None => readiness.watches_writes.set(true),
        }
    }

    /// [`AsyncFd::poll_io`] as a future. Any number of tasks may wait: all of them are woken, and
    /// try again.
    pub async fn io<R>(
        &self,
        direction: Direction,
        mut operation: impl FnMut(&T) -> io::Result<R>,
    ) -> io::Result<R> {
        let mut waiting = self.registration.readiness.enter(direction);
        std::future::poll_fn(|context| {
            self.try_when_ready(direction, context, &mut operation, |context| waiting.wait(context))
        })
        .await
    }

    /// Waits until a read would not block, and returns a guard that says when the descriptor is no
    /// longer ready. Any number of tasks may wait.
    ///
    /// # Errors
    /// `NotConnected` if the runtime has ended.
    pub async fn readable(&self) -> io::Result<AsyncFdReadyGuard<'_, T>> {
        self.ready(Direction::Read).await;
        self.guard(Direction::Read)
    }

    /// As [`AsyncFd::readable`], for writes.
    pub async fn writable(&self) -> io::Result<AsyncFdReadyGuard<'_, T>> {
        self.ready(Direction::Write).await;
        self.guard(Direction::Write)
    }

    /// [`AsyncFd::readable`] for use in a `poll` function. One task may wait in this way at a time,
    /// as in [`AsyncFd::poll_io`].
    pub fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<AsyncFdReadyGuard<'_, T>>> {
        self.poll_ready(Direction::Read, context)
    }

    /// [`AsyncFd::writable`] for use in a `poll` function. One task may wait in this way at a time,
    /// as in [`AsyncFd::poll_io`].
    pub fn poll_write_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<AsyncFdReadyGuard<'_, T>>> {
        self.poll_ready(Direction::Write, context)
    }

    fn poll_ready(
        &self,
        direction: Direction,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<AsyncFdReadyGuard<'_, T>>> {
        ready!(coop::poll_budget(context));
        if self.check_open().is_ok() && !self.registration.readiness.is_ready(direction) {
            self.watch()?;
            self.registration.readiness.wait(direction, context);
            return Poll::Pending;
        }
        coop::spend();
        Poll::Ready(self.guard(direction))
    }

    fn guard(&self, direction: Direction) -> io::Result<AsyncFdReadyGuard<'_, T>> {
        self.check_open()?;
        Ok(AsyncFdReadyGuard { fd: self, direction, events: self.registration.readiness.events(direction) })
    }
}

impl<T: AsFd> Drop for AsyncFd<T> {
    fn drop(&mut self) {
        if self.inner.is_some() {
            // Fails only for a descriptor that others have closed, and then it is deregistered
            // already.
            let _ = self.deregister();
        }
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TryIoError(());

policies::error_text!(TryIoError: _ => "the operation would have blocked");

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
        if self.fd.registration.readiness.events(self.direction) == self.events {
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
