//! A stream socket whose receives and sends are operations of the ring.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::num::NonZeroU64;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::RingDriver;
use super::pool::Piece;

/// Unread bytes of one connection above which its receive is taken back: then the peer is held by
/// TCP's window, as it would be by a full socket buffer.
const UNREAD_LIMIT: usize = 128 << 10;
/// Unsent bytes of one connection above which a write has to wait.
const UNSENT_LIMIT: usize = 64 << 10;
/// A write of so many bytes to a connection without unsent ones goes out at once, without being
/// copied first.
const DIRECT: usize = 16 << 10;

/// After so long without progress what a dropped socket had to send is given up, in milliseconds.
const GIVE_UP_MS: u32 = 30_000;

/// Bytes that were received: in the kernel's buffer where they are read soon, else in a copy.
pub struct Received(Bytes);

enum Bytes {
    Piece(Piece),
    Copy(Vec<u8>),
}

impl Deref for Received {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Piece(piece) => piece,
            Bytes::Copy(bytes) => bytes,
        }
    }
}

impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received").field("length", &self.len()).finish()
    }
}

/// The socket as its operations see it; it lives, and the descriptor stays open, until the last of
/// them has completed.
pub(super) struct SocketState {
    descriptor: Arc<dyn AsFd>,
    /// Whether the polling epoll instance learns its NAPI from it.
    in_napi: bool,
    /// Whether sends without a copy are of use: not to this machine itself, for example.
    pub(super) zero_copy: Cell<bool>,
    /// Sends without a copy that the peer has not acknowledged; each keeps the descriptor open.
    pub(super) zero_copies: Cell<u32>,
    pub(super) receive: RefCell<Receive>,
    pub(super) send: RefCell<Send>,
}

impl SocketState {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Ends the writing of a socket that is dropped, where sends keep its descriptor open: its peer need
    /// not wait for the close.
    pub(super) fn end_if_abandoned(&self) {
        if self.zero_copies.get() > 0 && self.receive.borrow().abandoned && self.send.borrow().unsent() == 0 {
            // The peer may have ended the connection already.
            let _ = rustix::net::shutdown(self.fd(), rustix::net::Shutdown::Write);
        }
    }
}

#[derive(Default)]
pub(super) struct Receive {
    /// The operation that is armed.
    pub(super) operation: Option<NonZeroU64>,
    /// Whether it has been taken back, and will complete for the last time.
    pub(super) cancelled: bool,
    /// What is read next, in the kernel's buffer.
    piece: Option<Piece>,
    /// What came after that.
    copied: Vec<u8>,
    /// The stream has ended: nothing comes after what is unread.
    ended: bool,
    /// The error that it ended with, which is told once.
    failed: Option<io::Error>,
    waker: Option<Waker>,
    /// Its operation ended for lack of buffers, and will be armed again.
    pub(super) starved: bool,
    /// Nobody will read any more.
    pub(super) abandoned: bool,
}

impl Receive {
    /// Takes in what a completion has brought. Returns whether it is time to take the receive back.
    pub(super) fn push(&mut self, piece: Piece, copy: bool) -> bool {
        if self.abandoned || piece.is_empty() {
            return false;
        }
        if !copy && self.piece.is_none() && self.copied.is_empty() {
            self.piece = Some(piece);
        } else {
            // Who hasn't read the last piece yet must not hold a second buffer.
            self.copied.extend_from_slice(&piece);
        }
        self.piece.as_ref().map_or(0, |piece| piece.len()) + self.copied.len() >= UNREAD_LIMIT
    }

    fn pop(&mut self) -> Option<Received> {
        if let Some(piece) = self.piece.take() {
            return Some(Received(Bytes::Piece(piece)));
        }
        (!self.copied.is_empty()).then(|| Received(Bytes::Copy(std::mem::take(&mut self.copied))))
    }

    /// Buffers have come back. Returns whether somebody waits to receive.
    pub(super) fn end_starving(&mut self) -> bool {
        self.starved = false;
        self.waker.is_some() && self.operation.is_none()
    }

    pub(super) fn end(&mut self, result: io::Result<()>) {
        if !std::mem::replace(&mut self.ended, true) {
            self.failed = result.err();
        }
    }

    pub(super) fn take_waker(&mut self) -> Option<Waker> {
        self.waker.take()
    }
}

#[derive(Default)]
pub(super) struct Send {
    /// What goes out with the next submission.
    pub(super) queued: Vec<u8>,
    /// What an operation is sending: not to be touched until that has completed.
    pub(super) in_flight: Option<Box<InFlight>>,
    /// Whether the driver knows that there is something to send.
    pub(super) listed: bool,
    pub(super) failed: Option<io::Error>,
    /// Whether the writing ends when all is sent.
    ends: bool,
    waker: Option<Waker>,
}

/// Bytes that are being sent.
pub(super) enum Outgoing {
    /// A copy of what was written.
    Copied(Vec<u8>),
    /// The writer's own.
    Lent(bytes::Bytes),
}

impl Default for Outgoing {
    fn default() -> Self {
        Self::Copied(Vec::new())
    }
}

impl Deref for Outgoing {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Copied(bytes) => bytes,
            Self::Lent(bytes) => bytes,
        }
    }
}

/// Apart from the socket's state, and used again: an idle connection has none.
#[derive(Default)]
pub(super) struct InFlight {
    pub(super) bytes: Outgoing,
    pub(super) sent: usize,
    /// What the completion said, if there was one: sends that succeed in full make none.
    pub(super) outcome: Option<i32>,
}

impl Send {
    fn unsent(&self) -> usize {
        self.queued.len() + self.in_flight.as_ref().map_or(0, |sending| sending.bytes.len() - sending.sent)
    }

    /// Whether something follows when all is sent.
    pub(super) fn is_awaited(&self) -> bool {
        self.waker.is_some() || self.ends
    }

    /// Whether all is sent and the end is to follow.
    pub(super) fn take_end(&mut self) -> bool {
        self.unsent() == 0 && std::mem::take(&mut self.ends)
    }

    /// Returns what was being sent.
    pub(super) fn fail(&mut self, error: io::Error) -> Option<Box<InFlight>> {
        self.queued = Vec::new();
        self.failed.get_or_insert(error);
        self.in_flight.take()
    }

    pub(super) fn take_waker(&mut self) -> Option<Waker> {
        self.waker.take()
    }

    /// The error, again and again: what was accepted is lost, so no later write may seem to succeed.
    fn check(&self) -> io::Result<()> {
        match &self.failed {
            None => Ok(()),
            Some(error) => Err(match error.raw_os_error() {
                Some(code) => io::Error::from_raw_os_error(code),
                None => error.kind().into(),
            }),
        }
    }
}

pub(super) fn runtime_has_ended() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the runtime of this socket has ended")
}

pub(super) fn store(slot: &mut Option<Waker>, context: &Context<'_>) {
    match slot {
        Some(waker) => waker.clone_from(context.waker()),
        None => *slot = Some(context.waker().clone()),
    }
}

/// A connected stream socket on a worker's ring.
///
/// Receives are armed once and deliver as data comes, into buffers of the worker. Writes are taken
/// over and go out together at the end of the worker's turn; an error of one is told by the next.
/// Dropping it at any point is safe: operations keep their buffers and the descriptor until they have
/// completed, what was written is still sent, and what arrives is dropped.
pub struct RingSocket {
    driver: Rc<RingDriver>,
    state: Rc<SocketState>,
}

impl RingSocket {
    /// From how many bytes on a send without a copy is tried: below, to pin the pages and to be told of
    /// their release costs more than to copy them.
    pub const ZERO_COPY: usize = 64 << 10;

    pub(crate) fn new(driver: Rc<RingDriver>, descriptor: Arc<dyn AsFd>, in_napi: bool) -> io::Result<Self> {
        if in_napi {
            driver.epoll.learn_napi(descriptor.as_fd())?;
        }
        let state = SocketState {
            descriptor,
            in_napi,
            zero_copy: Cell::new(true),
            zero_copies: Cell::new(0),
            receive: RefCell::default(),
            send: RefCell::default(),
        };
        Ok(Self { driver, state: Rc::new(state) })
    }

    /// The next bytes; none at the end of the stream.
    pub fn poll_receive(&self, context: &mut Context<'_>) -> Poll<io::Result<Option<Received>>> {
        let mut receive = self.state.receive.borrow_mut();
        // What came before the end of the runtime is still there.
        if let Some(received) = receive.pop() {
            return Poll::Ready(Ok(Some(received)));
        }
        if self.driver.is_closed() {
            return Poll::Ready(Err(runtime_has_ended()));
        }
        if receive.ended {
            return Poll::Ready(receive.failed.take().map_or(Ok(None), Err));
        }
        store(&mut receive.waker, context);
        if receive.operation.is_none() && !receive.starved {
            drop(receive);
            self.driver.arm_receive(&self.state);
        }
        Poll::Pending
    }

    fn may_write(&self, send: &Send) -> io::Result<()> {
        send.check()?;
        if send.ends {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if self.driver.is_closed() { Err(runtime_has_ended()) } else { Ok(()) }
    }

    /// Takes bytes over to be sent; returns how many. Waits while too many are unsent.
    pub fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut send = self.state.send.borrow_mut();
        self.may_write(&send)?;
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let unsent = send.unsent();
        if unsent == 0 && bytes.len() >= DIRECT {
            use rustix::net::SendFlags;
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(self.state.fd(), bytes, flags) {
                Ok(sent) => return Poll::Ready(Ok(sent)),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
        let room = UNSENT_LIMIT.saturating_sub(unsent);
        if room == 0 {
            store(&mut send.waker, context);
            return Poll::Pending;
        }
        let length = room.min(bytes.len());
        if send.queued.capacity() == 0 {
            send.queued = self.driver.spare_buffer();
        }
        send.queued.extend_from_slice(&bytes[..length]);
        let list = send.in_flight.is_none() && !std::mem::replace(&mut send.listed, true);
        drop(send);
        if list {
            self.driver.list_send(&self.state);
        }
        Poll::Ready(Ok(length))
    }

    /// Sends bytes that the caller gives away, without a copy in user space, and from
    /// [`RingSocket::ZERO_COPY`] bytes on without one in the kernel where the route allows it
    /// (`IORING_OP_SEND_ZC`). [`RingSocket::poll_flush`] waits for them, and must have been ready before.
    ///
    /// # Errors
    /// Those of earlier writes, and `WouldBlock` where something is still unsent.
    pub fn send_owned(&self, bytes: bytes::Bytes) -> io::Result<()> {
        let mut send = self.state.send.borrow_mut();
        self.may_write(&send)?;
        if send.unsent() > 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if !bytes.is_empty() {
            send.in_flight = Some(self.driver.take_off(Outgoing::Lent(bytes)));
            drop(send);
            self.driver.submit_send(&self.state, true);
        }
        Ok(())
    }

    /// Has the writing end (`shutdown(2)`, `SHUT_WR`) once all that was written is sent. `false` where
    /// nothing is left to be sent, and the caller can end it at once.
    pub fn shutdown_after_sends(&self) -> bool {
        let mut send = self.state.send.borrow_mut();
        send.ends = send.unsent() > 0;
        send.ends
    }

    /// Waits until all that was written has been handed to the kernel.
    pub fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut send = self.state.send.borrow_mut();
        send.check()?;
        if send.unsent() == 0 {
            return Poll::Ready(Ok(()));
        }
        if self.driver.is_closed() {
            return Poll::Ready(Err(runtime_has_ended()));
        }
        store(&mut send.waker, context);
        Poll::Pending
    }
}

impl fmt::Debug for RingSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingSocket").field("fd", &self.state.fd()).finish_non_exhaustive()
    }
}

impl Drop for RingSocket {
    fn drop(&mut self) {
        let mut receive = self.state.receive.borrow_mut();
        receive.abandoned = true;
        receive.waker = None;
        let unread = (receive.piece.take(), std::mem::take(&mut receive.copied));
        let operation = receive.operation;
        drop(receive);
        drop(unread);
        let mut send = self.state.send.borrow_mut();
        send.waker = None;
        if send.unsent() > 0 || self.state.zero_copies.get() > 0 {
            // Nobody waits any more, so nobody would give up on a peer that takes nothing. Has no
            // meaning for Unix sockets, whose peers are on this machine.
            let _ = rustix::net::sockopt::set_tcp_user_timeout(self.state.fd(), GIVE_UP_MS);
        }
        drop(send);
        self.state.end_if_abandoned();
        if let Some(operation) = operation
            && !self.driver.is_closed()
        {
            self.driver.cancel(operation.get());
        }
        if self.state.in_napi {
            self.driver.epoll.forget_napi(self.state.fd());
        }
    }
}
