//! A connected stream socket, and a listening one, on a worker's ring.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::coop;
use crate::driver::readiness::store_waker;
use crate::driver::uring::driver::UringDriver;
use crate::driver::uring::socket_state::{
    AcceptState, ListenerState, Received, SendBuffer, SendState, SocketState, copy_error, runtime_has_ended,
};

/// A write of at least this many bytes, to a connection without unsent bytes, is sent at once and
/// not copied first.
const DIRECT_WRITE: usize = 16 << 10;
/// A read of at least this many bytes may receive into the reader's memory.
const DIRECT_READ: usize = 16 << 10;

/// A connected stream socket on a worker's ring.
///
/// The receive is armed once and delivers data as it arrives, into buffers of the worker. Writes
/// are copied, and all writes of a turn are submitted together at its end; a failed one makes the
/// next write return its error. A write of 16 KiB or more with nothing unsent before it is sent at
/// once, without a copy. The socket may be dropped at any time: operations keep their buffers and
/// the descriptor until they have completed, written bytes are still sent, and bytes that arrive
/// are discarded.
pub struct RingSocket {
    driver: Rc<UringDriver>,
    state: Rc<SocketState>,
}

impl RingSocket {
    /// `in_queue`: whether its packets come by the queue that the worker serves.
    pub(crate) fn new(driver: Rc<UringDriver>, descriptor: Arc<dyn AsFd>, in_queue: bool) -> Self {
        if in_queue {
            driver.instance.note(descriptor.as_fd().as_raw_fd(), true);
        }
        Self { driver, state: Rc::new(SocketState::new(descriptor, in_queue)) }
    }

    /// Receives the next bytes; `None` at the end of the stream. One task may wait at a time. The
    /// errors are those of `recv(2)`, and here and below `NotConnected` if the runtime has ended.
    pub fn poll_receive(&self, context: &mut Context<'_>) -> Poll<io::Result<Option<Received>>> {
        ready!(coop::poll_budget(context));
        match self.take_received() {
            Some(result) => {
                coop::spend();
                if let Ok(Some(received)) = &result {
                    coop::spend_bytes(received.len());
                }
                Poll::Ready(result)
            }
            None => {
                let replaced = self.state.receive.borrow_mut().wait(context);
                drop(replaced);
                self.ensure_receiving();
                Poll::Pending
            }
        }
    }

    /// Receives into the caller's buffer, by a call, where a sender is faster than its reader: what
    /// is there, without waiting. `None` where a buffer of the worker serves as well: the sender
    /// is not so fast, the caller's buffer is smaller, bytes are unread, or nothing is there.
    pub fn poll_receive_into(
        &self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<Option<io::Result<usize>>> {
        let receive = self.state.receive.borrow();
        let is_fast = receive.takes_one() && receive.operation.is_none() && !receive.ended;
        if !is_fast || buffer.len() < DIRECT_READ || receive.unread() > 0 || self.driver.is_closed() {
            return Poll::Ready(None);
        }
        drop(receive);
        ready!(coop::poll_budget(context));
        match rustix::net::recv(self.state.fd(), &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((bytes @ 1.., _)) => {
                coop::spend();
                coop::spend_bytes(bytes);
                self.driver.count_received(&self.state, bytes);
                Poll::Ready(Some(Ok(bytes)))
            }
            Err(Errno::AGAIN | Errno::INTR) => Poll::Ready(None),
            // Returned by the receive that follows.
            result => {
                self.state.receive.borrow_mut().end(result.map(drop).map_err(io::Error::from));
                Poll::Ready(None)
            }
        }
    }

    /// Like [`RingSocket::poll_receive`], without waiting. It starts the receive, whose bytes later
    /// calls return: those that the worker's turns have brought by then.
    pub fn try_receive(&self) -> io::Result<Option<Received>> {
        self.take_received().unwrap_or_else(|| {
            self.ensure_receiving();
            Err(io::ErrorKind::WouldBlock.into())
        })
    }

    /// Waits until [`RingSocket::try_receive`] has something to return: bytes, the end of the
    /// stream, or an error. One task may wait at a time, here or in [`RingSocket::poll_receive`].
    pub fn poll_readable(&self, context: &mut Context<'_>) -> Poll<()> {
        ready!(coop::poll_budget(context));
        let mut receive = self.state.receive.borrow_mut();
        if receive.unread() > 0 || receive.ended || self.driver.is_closed() {
            coop::spend();
            return Poll::Ready(());
        }
        let replaced = receive.wait(context);
        drop(receive);
        drop(replaced);
        self.ensure_receiving();
        Poll::Pending
    }

    /// Copies received bytes from the first on, as many as there are and fit, and leaves them to be
    /// received. Goes on receiving if there are fewer.
    pub fn peek(&self, buffer: &mut [u8]) -> usize {
        let receive = self.state.receive.borrow();
        let length = receive.peek(buffer);
        drop(receive);
        if length < buffer.len() {
            self.ensure_receiving();
        }
        length
    }

    /// Like [`RingSocket::try_receive`], but doesn't start the receive. `None`: nothing has come.
    fn take_received(&self) -> Option<io::Result<Option<Received>>> {
        let mut receive = self.state.receive.borrow_mut();
        // Bytes that came before the end of the runtime can still be read.
        if let Some(received) = receive.pop() {
            return Some(Ok(Some(received)));
        }
        if self.driver.is_closed() {
            return Some(Err(runtime_has_ended()));
        }
        receive.ended.then(|| receive.failed.take().map_or(Ok(None), Err))
    }

    /// Arms the receive unless it is armed, or waits for buffers, or nothing more can come.
    fn ensure_receiving(&self) {
        let receive = self.state.receive.borrow();
        let arm = receive.may_arm(self.driver.options.unread_limit) && !self.driver.is_closed();
        drop(receive);
        if arm {
            self.driver.arm_receive(&self.state);
        }
    }

    /// Waits until nothing is left to send and no operation uses the socket, so that another owner
    /// of the descriptor can read and write. What was received before is left for
    /// [`RingSocket::take_unread`]. A later receive goes on with what comes after it. An error of
    /// the connection that no receive has returned yet is returned, and again by the next one.
    pub fn poll_quiesce(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(context))?;
        if self.state.zero_copies.get() > 0 {
            self.wait_to_send(context);
            return Poll::Pending;
        }
        ready!(self.poll_set_aside(context));
        let failed = self.state.receive.borrow().failed.as_ref().map(copy_error);
        Poll::Ready(failed.map_or(Ok(()), Err))
    }

    /// Cancels the pending receive and waits for its last completion. Data that it has received
    /// before stays buffered.
    fn poll_set_aside(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut receive = self.state.receive.borrow_mut();
        receive.listed = false;
        // That of a reader which has gone: it would let a lack of buffers arm the receive again.
        let stale = receive.waker.take();
        let operation = receive.operation.filter(|_| !self.driver.is_closed());
        let Some(operation) = operation else {
            drop(receive);
            drop(stale);
            return Poll::Ready(());
        };
        // There is none: it is taken above.
        let _none = receive.wait(context);
        receive.stopping = true;
        let cancel = !std::mem::replace(&mut receive.cancelled, true);
        drop(receive);
        drop(stale);
        if cancel {
            self.driver.cancel(operation.get());
        }
        Poll::Pending
    }

    /// Counts bytes that the caller has sent on the socket itself.
    pub fn record_sent(&self, bytes: usize) {
        self.driver.count_sent(bytes);
        coop::spend_bytes(bytes);
    }

    /// Whether the socket's runtime goes on.
    pub fn check_open(&self) -> io::Result<()> {
        if self.driver.is_closed() { Err(runtime_has_ended()) } else { Ok(()) }
    }

    /// Takes all bytes that were received and not read.
    pub fn take_unread(&self) -> Vec<u8> {
        let (slice, copied) = self.state.receive.borrow_mut().take_unread();
        match slice {
            Some(slice) => [&slice, copied.as_slice()].concat(),
            None => copied,
        }
    }

    fn check_writable(&self, send: &SendState) -> io::Result<()> {
        send.check()?;
        if send.ended {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.check_open()
    }

    /// Stores the waker of the task that waits for room, or for the end of what is sent.
    fn wait_to_send(&self, context: &Context<'_>) {
        let replaced = store_waker(&mut self.state.send.borrow_mut().waker, context);
        drop(replaced);
    }

    /// Copies bytes to be sent, and returns how many. Waits while as much is unsent as
    /// [`Builder::ring_unsent_limit`](crate::Builder::ring_unsent_limit) says. One task may wait at
    /// a time. The error is that of an earlier send, that of `sendmsg(2)` for a write that is sent
    /// at once, or `BrokenPipe` after [`RingSocket::shutdown_after_sends`]. More slices than
    /// `sendmsg(2)` takes are an error.
    pub fn poll_write(&self, context: &mut Context<'_>, buffers: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        ready!(coop::poll_budget(context));
        match self.try_write(buffers) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.wait_to_send(context);
                Poll::Pending
            }
            result => {
                coop::spend();
                coop::spend_bytes(*result.as_ref().unwrap_or(&0));
                Poll::Ready(result)
            }
        }
    }

    /// Like [`RingSocket::poll_write`], without waiting.
    pub fn try_write(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut send = self.state.send.borrow_mut();
        self.check_writable(&send)?;
        let total: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        if total == 0 {
            return Ok(0);
        }
        let unsent = send.unsent();
        if unsent == 0 && total >= DIRECT_WRITE {
            use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let mut no_control = SendAncillaryBuffer::default();
            match sendmsg(self.state.fd(), buffers, &mut no_control, flags) {
                Ok(sent) => {
                    self.driver.count_written(sent);
                    self.driver.count_sent(sent);
                    return Ok(sent);
                }
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(error) => {
                    // Nothing is in flight. Later writes fail as well.
                    let _ = send.fail(error.into());
                    return Err(error.into());
                }
            }
        }
        let room = self.driver.options.unsent_limit.saturating_sub(unsent);
        if room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if send.queued.capacity() == 0 {
            send.queued = self.driver.spare_buffer();
        }
        let mut left = room;
        for buffer in buffers {
            let length = left.min(buffer.len());
            send.queued.extend_from_slice(&buffer[..length]);
            left -= length;
        }
        let length = room - left;
        self.driver.count_written(length);
        let list = send.in_flight.is_none() && !std::mem::replace(&mut send.listed, true);
        drop(send);
        if list {
            self.driver.list_send(&self.state);
        }
        Ok(length)
    }

    /// Waits until [`RingSocket::try_write`] would accept a byte or fail. One task may wait at a
    /// time, here or in [`RingSocket::poll_write`].
    pub fn poll_writable(&self, context: &mut Context<'_>) -> Poll<()> {
        ready!(coop::poll_budget(context));
        let send = self.state.send.borrow();
        if send.unsent() < self.driver.options.unsent_limit || self.check_writable(&send).is_err() {
            coop::spend();
            return Poll::Ready(());
        }
        drop(send);
        self.wait_to_send(context);
        Poll::Pending
    }

    /// Sends bytes without a copy in user space and, from 64 KiB on, without a copy in the kernel
    /// if the route allows it (`IORING_OP_SEND_ZC`). [`RingSocket::poll_flush`] must have been
    /// ready before (else `WouldBlock`), and then waits for these bytes.
    pub fn send_owned(&self, bytes: bytes::Bytes) -> io::Result<()> {
        let mut send = self.state.send.borrow_mut();
        self.check_writable(&send)?;
        if send.unsent() > 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if !bytes.is_empty() {
            send.in_flight = Some(self.driver.in_flight(SendBuffer::Owned(bytes)));
            drop(send);
            self.driver.submit_send(&self.state, true);
        }
        Ok(())
    }

    /// Shuts down the sending side (`shutdown(2)`, `SHUT_WR`) once everything written is sent.
    /// `false` if nothing is left to send, and the caller can shut it down at once. Further writes
    /// fail with `BrokenPipe`.
    pub fn shutdown_after_sends(&self) -> bool {
        let mut send = self.state.send.borrow_mut();
        send.ended = true;
        send.shutdown_when_sent = send.unsent() > 0;
        send.shutdown_when_sent
    }

    /// Waits until the kernel has taken everything that was written. The error is that of an
    /// earlier send.
    pub fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let send = self.state.send.borrow();
        send.check()?;
        if send.unsent() == 0 {
            return Poll::Ready(Ok(()));
        }
        self.check_open()?;
        drop(send);
        self.wait_to_send(context);
        Poll::Pending
    }
}

opaque_debug!(RingSocket, "RingSocket", |it| "fd" = it.state.fd());

impl Drop for RingSocket {
    fn drop(&mut self) {
        if self.state.in_queue {
            self.driver.instance.note(self.state.fd().as_raw_fd(), false);
        }
        let mut receive = self.state.receive.borrow_mut();
        receive.dropped = true;
        let waker = receive.waker.take();
        let unread = receive.take_unread();
        let operation = receive.operation;
        drop(receive);
        drop((waker, unread));
        let mut send = self.state.send.borrow_mut();
        let waker = send.waker.take();
        // What is queued goes out with the next enter, mostly whole.
        if send.in_flight.is_some() || self.state.zero_copies.get() > 0 {
            self.state.limit_dropped();
        }
        drop(send);
        drop(waker);
        self.state.shutdown_if_dropped();
        if let Some(operation) = operation
            && !self.driver.is_closed()
        {
            self.driver.cancel(operation.get());
        }
    }
}

/// The most enters that stopping a listener makes; each runs some twenty items of deferred work.
const MAX_STOP_ENTERS: usize = 100;

/// A listening socket on a worker's ring.
///
/// Up to 16 accepts are in flight while a task waits, so a few more connections may be accepted than
/// were asked for. [`RingListener::stop`] returns those that nobody has taken. Dropping the listener
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
    /// may wait. After an error of `accept(2)` further connections may be accepted.
    pub async fn accept(&self) -> io::Result<OwnedFd> {
        let mut waiting = self.state.waiters.enter();
        let mut wait = |context: &Context<'_>| {
            waiting.wait(context);
            None
        };
        std::future::poll_fn(|context| self.accept_or(context, |_| wait(context))).await
    }

    /// [`RingListener::accept`] for one task at a time; a second one replaces the first.
    pub fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<OwnedFd>> {
        self.accept_or(context, |accepts| store_waker(&mut accepts.waker, context))
    }

    fn accept_or(
        &self,
        context: &Context<'_>,
        wait: impl FnOnce(&mut AcceptState) -> Option<Waker>,
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
        let replaced = wait(&mut accepts);
        drop(accepts);
        drop(replaced);
        self.driver.arm_accepts(&self.state);
        Poll::Pending
    }

    /// Takes the socket off the ring, and returns the connections that were accepted and that
    /// nobody has taken. Further ones stay in the socket's backlog.
    pub fn stop(&self) -> Vec<OwnedFd> {
        let armed = || self.state.accepts.borrow().armed;
        if armed() > 0 && !self.driver.is_closed() {
            self.driver.cancel_accepts(&self.state);
            // Submitted at once: until they complete, the socket listens and its address is in use.
            // An enter may have other work to do first. If an enter fails, a later one submits it.
            for _ in 0..MAX_STOP_ENTERS {
                if armed() == 0 || self.driver.enter(0, None).is_err() {
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
        drop(self.stop());
    }
}
