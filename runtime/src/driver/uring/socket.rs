//! A connected stream socket on a worker's ring.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::driver::UringDriver;
use super::send::ZERO_COPY;
use super::socket_state::{Received, SendBuffer, SendState, SocketState, runtime_has_ended, store_waker};
use crate::coop;

/// Unsent bytes of one connection above which a write has to wait.
const UNSENT_LIMIT: usize = 64 << 10;
/// A write of at least this many bytes, to a connection without unsent bytes, is sent at once and not
/// copied first.
const DIRECT_WRITE: usize = 16 << 10;
/// How long a dropped socket may make no progress with what it has to send, in milliseconds.
const DROPPED_TIMEOUT_MS: u32 = 30_000;

/// A connected stream socket on a worker's ring.
///
/// The receive is armed once and delivers data as it arrives, into buffers of the worker. Writes are
/// copied, and all writes of a turn are submitted together at its end; a failed one makes the next write
/// return its error. A write of 16 KiB or more with nothing unsent before it is sent at once, without a copy. The socket may be dropped at any time: operations keep their buffers and the descriptor
/// until they have completed, written bytes are still sent, and bytes that arrive are discarded.
pub struct RingSocket {
    driver: Rc<UringDriver>,
    state: Rc<SocketState>,
}

impl RingSocket {
    /// The smallest send for which zero-copy is tried, in bytes: 64 KiB.
    pub const ZERO_COPY: usize = ZERO_COPY;

    pub(crate) fn new(driver: Rc<UringDriver>, descriptor: Arc<dyn AsFd>, in_napi: bool) -> io::Result<Self> {
        if in_napi {
            driver.epoll().learn_napi(descriptor.as_fd())?;
        }
        Ok(Self { driver, state: Rc::new(SocketState::new(descriptor, in_napi)) })
    }

    /// Receives the next bytes; `None` at the end of the stream. One task may wait at a time.
    ///
    /// # Errors
    /// Those of `recv(2)`, and `NotConnected` if the runtime has ended.
    pub fn poll_receive(&self, context: &mut Context<'_>) -> Poll<io::Result<Option<Received>>> {
        ready!(coop::poll_budget(context));
        let mut receive = self.state.receive.borrow_mut();
        // Bytes that came before the end of the runtime can still be read.
        if let Some(received) = receive.pop() {
            coop::spend();
            return Poll::Ready(Ok(Some(received)));
        }
        if self.driver.is_closed() {
            return Poll::Ready(Err(runtime_has_ended()));
        }
        if receive.ended {
            return Poll::Ready(receive.failed.take().map_or(Ok(None), Err));
        }
        store_waker(&mut receive.waker, context);
        if receive.operation.is_none() && !receive.starved {
            drop(receive);
            self.driver.arm_receive(&self.state);
        }
        Poll::Pending
    }

    fn check_writable(&self, send: &SendState) -> io::Result<()> {
        send.check()?;
        if send.ended {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if self.driver.is_closed() { Err(runtime_has_ended()) } else { Ok(()) }
    }

    /// Copies bytes to be sent, and returns how many. Waits while 64 KiB are unsent. One task may wait at a
    /// time.
    ///
    /// # Errors
    /// That of an earlier send, that of `send(2)` for a write that is sent at once, `BrokenPipe` after [`RingSocket::shutdown_after_sends`], and `NotConnected`
    /// if the runtime has ended.
    pub fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(coop::poll_budget(context));
        let mut send = self.state.send.borrow_mut();
        self.check_writable(&send)?;
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let unsent = send.unsent();
        if unsent == 0 && bytes.len() >= DIRECT_WRITE {
            use rustix::net::SendFlags;
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(self.state.fd(), bytes, flags) {
                Ok(sent) => {
                    coop::spend();
                    return Poll::Ready(Ok(sent));
                }
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(error) => {
                    // Nothing is in flight. Later writes fail as well.
                    let _ = send.fail(error.into());
                    return Poll::Ready(Err(error.into()));
                }
            }
        }
        let room = UNSENT_LIMIT.saturating_sub(unsent);
        if room == 0 {
            store_waker(&mut send.waker, context);
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
        coop::spend();
        Poll::Ready(Ok(length))
    }

    /// Sends bytes without a copy in user space and, from [`RingSocket::ZERO_COPY`] bytes on, without a copy
    /// in the kernel if the route allows it (`IORING_OP_SEND_ZC`). [`RingSocket::poll_flush`] must have been
    /// ready before, and then waits for these bytes.
    ///
    /// # Errors
    /// Those of [`RingSocket::poll_write`], and `WouldBlock` if something is unsent.
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

    /// Shuts down the sending side (`shutdown(2)`, `SHUT_WR`) once everything written is sent. `false` if
    /// nothing is left to send, and the caller can shut it down at once. Further writes fail with `BrokenPipe`.
    pub fn shutdown_after_sends(&self) -> bool {
        let mut send = self.state.send.borrow_mut();
        send.ended = true;
        send.shutdown_when_sent = send.unsent() > 0;
        send.shutdown_when_sent
    }

    /// Waits until the kernel has taken everything that was written.
    ///
    /// # Errors
    /// That of an earlier send, and `NotConnected` if the runtime has ended.
    pub fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut send = self.state.send.borrow_mut();
        send.check()?;
        if send.unsent() == 0 {
            return Poll::Ready(Ok(()));
        }
        if self.driver.is_closed() {
            return Poll::Ready(Err(runtime_has_ended()));
        }
        store_waker(&mut send.waker, context);
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
        receive.dropped = true;
        receive.waker = None;
        let unread = receive.take_unread();
        let operation = receive.operation;
        drop(receive);
        drop(unread);
        let mut send = self.state.send.borrow_mut();
        send.waker = None;
        if send.unsent() > 0 || self.state.zero_copies.get() > 0 {
            // No task is left that could give up on a peer that takes nothing. Has no effect on Unix
            // sockets, whose peers are on this machine.
            let _ = rustix::net::sockopt::set_tcp_user_timeout(self.state.fd(), DROPPED_TIMEOUT_MS);
        }
        drop(send);
        self.state.shutdown_if_dropped();
        if let Some(operation) = operation
            && !self.driver.is_closed()
        {
            self.driver.cancel(operation.get());
        }
        if self.state.in_napi {
            self.driver.epoll().forget_napi(self.state.fd());
        }
    }
}
