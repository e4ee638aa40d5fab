//! A stream socket, and a listening one, as their operations see them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::num::NonZeroU64;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::{Context, Waker};

use crate::driver::readiness::{Waiters, store_waker};
use crate::driver::uring::buffers::BufferSlice;

/// Received bytes: in the kernel's buffer if they are read soon, else in a copy. Dereferences to
/// the bytes.
pub struct Received(ReceivedBytes);

enum ReceivedBytes {
    Slice(BufferSlice),
    Copy(Vec<u8>),
}

impl Deref for Received {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            ReceivedBytes::Slice(slice) => slice,
            ReceivedBytes::Copy(bytes) => bytes,
        }
    }
}

opaque_debug!(Received, "Received", |it| "length" = it.len());

/// How long a dropped socket may make no progress with what it has to send, in milliseconds.
const DROPPED_TIMEOUT_MS: u32 = 30_000;

/// A socket's receive and send state. It lives, and the descriptor stays open, until the last
/// operation has completed.
pub(super) struct SocketState {
    descriptor: Arc<dyn AsFd>,
    /// Whether its packets come by the queue that the worker serves.
    pub(super) in_queue: bool,
    /// Whether zero-copy sends are of use; not over loopback, for example.
    pub(super) zero_copy: Cell<bool>,
    /// Zero-copy sends that the peer has not acknowledged; each keeps the descriptor open.
    pub(super) zero_copies: Cell<u32>,
    pub(super) receive: RefCell<ReceiveState>,
    pub(super) send: RefCell<SendState>,
}

impl SocketState {
    pub(super) fn new(descriptor: Arc<dyn AsFd>, in_queue: bool) -> Self {
        Self {
            descriptor,
            in_queue,
            zero_copy: Cell::new(true),
            zero_copies: Cell::new(0),
            receive: RefCell::default(),
            send: RefCell::default(),
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Limits how long the peer of a dropped socket may take nothing of what is left to be sent: no
    /// task could give up on it.
    pub(super) fn limit_dropped(&self) {
        // Has no effect on Unix sockets, whose peers are on this machine.
        let _ = rustix::net::sockopt::set_tcp_user_timeout(self.fd(), DROPPED_TIMEOUT_MS);
    }

    /// Shuts down the sending side of a dropped socket whose descriptor zero-copy sends keep open,
    /// so that its peer need not wait for the close.
    pub(super) fn shutdown_if_dropped(&self) {
        if self.zero_copies.get() > 0 && self.receive.borrow().dropped && self.send.borrow().unsent() == 0 {
            // Fails if the peer has closed the connection already.
            let _ = rustix::net::shutdown(self.fd(), rustix::net::Shutdown::Write);
        }
    }
}

#[derive(Default)]
pub(super) struct ReceiveState {
    pub(super) operation: Option<NonZeroU64>,
    /// Whether one is to be armed with the next wait.
    pub(super) listed: bool,
    /// Whether one was armed before.
    pub(super) begun: bool,
    /// Whether that is cancelled, and will complete for the last time.
    pub(super) cancelled: bool,
    /// How many more receives are armed for one buffer each, as the sender is faster than its
    /// reader. A multishot receive takes as many as there are, up to all of them, before the kernel
    /// does anything else (`io_uring/net.c`, `MULTISHOT_MAX_RETRY`).
    takes_one: u8,
    /// The bytes to read next, in the kernel's buffer.
    slice: Option<BufferSlice>,
    /// The bytes after those.
    copied: Vec<u8>,
    /// The stream has ended after the unread bytes.
    pub(super) ended: bool,
    /// The error that it ended with; returned once.
    pub(super) failed: Option<io::Error>,
    pub(super) waker: Option<Waker>,
    /// The receive ended for lack of buffers, and will be armed again.
    pub(super) starved: bool,
    /// The receive is cancelled for good: a lack of buffers does not arm it again.
    pub(super) stopping: bool,
    /// The socket is dropped: nobody reads any more.
    pub(super) dropped: bool,
}

impl ReceiveState {
    /// The sender is faster than its reader, or there was no buffer: it gets one at a time, until so
    /// many receives in a row have had room for more. After a single one a sender that pauses between
    /// bursts would get all buffers with each of them.
    pub(super) fn limit_to_one(&mut self) {
        self.takes_one = 16;
    }

    pub(super) fn takes_one(&self) -> bool {
        self.takes_one > 0
    }

    /// A receive of one buffer has ended.
    pub(super) fn took_one(&mut self, had_room: bool) {
        match had_room {
            true => self.takes_one = self.takes_one.saturating_sub(1),
            false => self.limit_to_one(),
        }
    }

    /// Adds what a completion has brought; `copy`: out of the kernel's buffer.
    pub(super) fn push(&mut self, slice: BufferSlice, copy: bool) {
        if self.dropped || slice.is_empty() {
            return;
        }
        if !copy && self.slice.is_none() && self.copied.is_empty() {
            self.slice = Some(slice);
        } else {
            // A reader that has not read the first slice yet must not hold a second buffer.
            self.copied.extend_from_slice(&slice);
        }
    }

    pub(super) fn pop(&mut self) -> Option<Received> {
        if let Some(slice) = self.slice.take() {
            return Some(Received(ReceivedBytes::Slice(slice)));
        }
        (!self.copied.is_empty()).then(|| Received(ReceivedBytes::Copy(std::mem::take(&mut self.copied))))
    }

    /// Stores who is to be woken when bytes are unread, or the receive has ended
    /// ([`store_waker`]).
    #[must_use]
    pub(super) fn wait(&mut self, context: &Context<'_>) -> Option<Waker> {
        store_waker(&mut self.waker, context)
    }

    pub(super) fn unread(&self) -> usize {
        self.slice.as_ref().map_or(0, |slice| slice.len()) + self.copied.len()
    }

    /// Copies bytes from the first on, and returns how many.
    pub(super) fn peek(&self, buffer: &mut [u8]) -> usize {
        let mut length = 0;
        for part in [self.slice.as_deref().unwrap_or_default(), &self.copied] {
            let fits = part.len().min(buffer.len() - length);
            buffer[length..length + fits].copy_from_slice(&part[..fits]);
            length += fits;
        }
        length
    }

    pub(super) fn may_arm(&self, unread_limit: usize) -> bool {
        self.operation.is_none() && !self.starved && !self.ended && self.unread() < unread_limit
    }

    /// Takes the unread bytes, for a socket that is dropped.
    pub(super) fn take_unread(&mut self) -> (Option<BufferSlice>, Vec<u8>) {
        (self.slice.take(), std::mem::take(&mut self.copied))
    }

    /// Buffers are free again. Returns whether a reader waits, so that the receive has to be armed.
    pub(super) fn end_starving(&mut self) -> bool {
        self.starved = false;
        self.waker.is_some() && self.operation.is_none() && !self.stopping
    }

    pub(super) fn end(&mut self, result: io::Result<()>) {
        if !std::mem::replace(&mut self.ended, true) {
            self.failed = result.err();
        }
    }

    /// Who is to be woken now, after a completion.
    pub(super) fn take_waker(&mut self) -> Option<Waker> {
        let wakes = self.unread() > 0 || self.ended || self.operation.is_none();
        if wakes { self.waker.take() } else { None }
    }
}

#[derive(Default)]
pub(super) struct SendState {
    /// The bytes of the next send.
    pub(super) queued: Vec<u8>,
    /// The bytes of the operation in flight; not to be changed until it has completed.
    pub(super) in_flight: Option<Box<InFlightSend>>,
    /// Whether the socket is in the driver's list of those with something to send.
    pub(super) listed: bool,
    pub(super) failed: Option<io::Error>,
    /// No further writes are accepted.
    pub(super) ended: bool,
    /// Whether the sending side is shut down when everything is sent.
    pub(super) shutdown_when_sent: bool,
    pub(super) waker: Option<Waker>,
}

/// Bytes that are being sent.
pub(super) enum SendBuffer {
    Copied(Vec<u8>),
    /// The writer's buffer.
    Owned(bytes::Bytes),
}

impl Default for SendBuffer {
    fn default() -> Self {
        Self::Copied(Vec::new())
    }
}

impl Deref for SendBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Copied(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }
}

/// A send in flight. Boxed apart from the socket's state, and reused: an idle connection has none.
#[derive(Default)]
pub(super) struct InFlightSend {
    pub(super) bytes: SendBuffer,
    pub(super) sent: usize,
    /// The completion's result, if there was one: sends that succeed in full post none.
    pub(super) outcome: Option<i32>,
}

impl SendState {
    pub(super) fn unsent(&self) -> usize {
        let in_flight = self.in_flight.as_ref();
        self.queued.len() + in_flight.map_or(0, |in_flight| in_flight.bytes.len() - in_flight.sent)
    }

    /// Whether something follows once everything is sent: a task is woken, or the sending side shut
    /// down.
    pub(super) fn is_awaited(&self) -> bool {
        self.waker.is_some() || self.shutdown_when_sent
    }

    /// Whether everything is sent and the sending side is to be shut down now.
    pub(super) fn take_shutdown(&mut self) -> bool {
        self.unsent() == 0 && std::mem::take(&mut self.shutdown_when_sent)
    }

    pub(super) fn fail(&mut self, error: io::Error) -> Option<Box<InFlightSend>> {
        self.queued = Vec::new();
        self.failed.get_or_insert(error);
        self.in_flight.take()
    }

    /// Returns the error every time: accepted bytes are lost, so no later write may seem to
    /// succeed.
    pub(super) fn check(&self) -> io::Result<()> {
        match &self.failed {
            None => Ok(()),
            Some(error) => Err(copy_error(error)),
        }
    }
}

/// The same error once more.
pub(super) fn copy_error(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => error.kind().into(),
    }
}

/// The error of sockets that outlive their runtime.
pub(super) fn runtime_has_ended() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the runtime of this socket has ended")
}

/// A listener's descriptor, which stays open until the accept operation has completed, and what it
/// accepted.
pub(super) struct ListenerState {
    descriptor: Arc<dyn AsFd>,
    pub(super) accepts: RefCell<AcceptState>,
    pub(super) waiters: Waiters,
}

impl ListenerState {
    pub(super) fn new(descriptor: Arc<dyn AsFd>) -> Self {
        Self { descriptor, accepts: RefCell::default(), waiters: Waiters::default() }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[derive(Default)]
pub(super) struct AcceptState {
    /// Accept operations that were submitted and have not completed, 16 at most.
    pub(super) armed: usize,
    /// Accepted connections that nobody has taken yet.
    pub(super) untaken: VecDeque<OwnedFd>,
    pub(super) failed: Option<io::Error>,
    /// Of the one task that polls without a place among the waiters.
    pub(super) waker: Option<Waker>,
    /// The listener is dropped: nobody takes connections any more.
    pub(super) dropped: bool,
}
