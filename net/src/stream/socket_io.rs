//! A connected socket's operations, by system calls or by the worker's ring.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::marker::PhantomData;
use std::net::Shutdown;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use runtime::__net::RingSocket;
use runtime::io::{AsyncFd, Direction, SourceKind, poll_operation};
use rustix::net::RecvFlags;
use socket2::Socket;

use crate::buffers::{READ_BUFFER_SIZE, ReadBuffer};
use crate::sockopt;

/// What one read or write moves at most: more would keep the worker from its other connections for
/// longer than a turn should last.
pub(super) const MOST_AT_ONCE: usize = 512 << 10;

/// Which slices of a vectored read or write one call takes as they are: from the first that is not
/// empty, as many as are together no longer than [`MOST_AT_ONCE`] and no more than `sendmsg(2)`
/// takes. With empty ones alone it would return 0, for `write_all` an error and for a reader the
/// end. And how much of the next one it may take.
fn taken_at_once(slices: &[impl Deref<Target = [u8]>]) -> (Range<usize>, usize) {
    let first = slices.iter().position(|slice| !slice.is_empty()).unwrap_or(slices.len());
    let (mut end, mut left) = (first, MOST_AT_ONCE);
    for slice in slices[first..].iter().take(libc::UIO_MAXIOV as usize) {
        if slice.len() > left {
            return (first..end, left);
        }
        (end, left) = (end + 1, left - slice.len());
    }
    (first..end, 0)
}

/// The socket without its read buffer: the part that both halves of a split stream use.
#[derive(Debug)]
pub(super) struct SocketIo<K> {
    backend: SocketBackend,
    kind: PhantomData<K>,
}

#[derive(Debug)]
pub(super) enum SocketBackend {
    /// System calls, after the driver has reported readiness.
    Readiness(AsyncFd<Arc<Socket>>),
    Ring(RingSocket, Arc<Socket>),
}

impl<K> SocketIo<K> {
    /// Takes a connected, non-blocking socket onto this worker's driver. `napi`: as
    /// [`napi_of`](sockopt::napi_of) has it. `accepted`: it is a server's, to whom the client speaks first mostly.
    pub(super) fn new(socket: Arc<Socket>, napi: u32, accepted: bool) -> io::Result<Self> {
        if let Some(time) = runtime::__net::socket_busy_poll() {
            sockopt::set_busy_poll(&*socket, time);
        }
        // A socket of this worker's NAPI goes into the epoll instance that polls it.
        let kind = if napi == 0 { SourceKind::Other } else { SourceKind::Napi(napi) };
        let backend = match runtime::__net::ring_socket(Arc::clone(&socket), kind) {
            Some(ring) => SocketBackend::Ring(ring, socket),
            None => SocketBackend::Readiness(AsyncFd::of_stream(socket, kind, accepted)?),
        };
        Ok(Self { backend, kind: PhantomData })
    }

    pub(super) fn socket(&self) -> &Socket {
        self.shared_socket()
    }

    pub(super) fn shared_socket(&self) -> &Arc<Socket> {
        match &self.backend {
            SocketBackend::Readiness(fd) => fd.get_ref(),
            SocketBackend::Ring(_, socket) => socket,
        }
    }

    pub(super) fn backend(&self) -> &SocketBackend {
        &self.backend
    }

    /// Reads what is buffered, else from the socket.
    pub(super) fn poll_read(
        &self,
        context: &mut Context<'_>,
        unread: &mut ReadBuffer,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let length = buffer.len().min(MOST_AT_ONCE);
        let buffer = &mut buffer[..length];
        if unread.is_empty()
            && let SocketBackend::Readiness(fd) = &self.backend
        {
            return poll_read_socket(fd, context, buffer.len(), |mut socket| socket.read(buffer));
        }
        if unread.is_empty()
            && let SocketBackend::Ring(ring, _) = &self.backend
            && let Some(received) = ready!(ring.poll_receive_into(context, buffer))
        {
            return Poll::Ready(received);
        }
        ready!(self.poll_fill(context, unread))?;
        Poll::Ready(Ok(unread.read(buffer)))
    }

    pub(super) fn poll_read_vectored(
        &self,
        context: &mut Context<'_>,
        unread: &mut ReadBuffer,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        if unread.is_empty()
            && let SocketBackend::Readiness(fd) = &self.backend
        {
            let (taken, _) = taken_at_once(buffers);
            let end = buffers.len().min(taken.end.max(taken.start + 1));
            let buffers = &mut buffers[taken.start..end];
            if buffers.iter().all(|buffer| buffer.is_empty()) {
                return Poll::Ready(Ok(0));
            }
            if let [one] = buffers {
                return self.poll_read(context, unread, one);
            }
            let length = buffers.iter().map(|buffer| buffer.len()).sum();
            return poll_read_socket(fd, context, length, |mut socket| socket.read_vectored(buffers));
        }
        match buffers.iter_mut().find(|buffer| !buffer.is_empty()) {
            Some(buffer) => self.poll_read(context, unread, buffer),
            None => Poll::Ready(Ok(0)),
        }
    }

    /// Fills `unread` if it is empty. It stays empty at the end of the stream.
    pub(super) fn poll_fill(
        &self,
        context: &mut Context<'_>,
        unread: &mut ReadBuffer,
    ) -> Poll<io::Result<()>> {
        if !unread.is_empty() {
            return Poll::Ready(Ok(()));
        }
        match &self.backend {
            SocketBackend::Readiness(fd) => {
                ready!(poll_read_socket(fd, context, READ_BUFFER_SIZE, |socket| unread.fill(socket)))?;
            }
            SocketBackend::Ring(ring, _) => {
                if let Some(received) = ready!(ring.poll_receive(context))? {
                    unread.hold(received);
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    pub(super) fn poll_write(
        &self,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let shortened: Vec<IoSlice<'_>>;
        let buffers = match buffers {
            [one] if one.len() <= MOST_AT_ONCE => buffers,
            buffers => {
                let (taken, left) = taken_at_once(buffers);
                let whole = &buffers[taken.clone()];
                match buffers.get(taken.end).filter(|_| left > 0) {
                    None => whole,
                    // Part of the long slice is sent in the same call. Otherwise a short slice before
                    // it, such as a header, would be sent as a separate packet.
                    Some(next) => {
                        let whole = whole.iter().map(|slice| IoSlice::new(slice));
                        shortened = whole.chain([IoSlice::new(&next[..left])]).collect();
                        &shortened
                    }
                }
            }
        };
        match &self.backend {
            SocketBackend::Readiness(fd) => {
                let result = ready!(fd.poll_io(Direction::Write, context, |socket| match buffers {
                    // A broken connection is an error here, never a signal.
                    [one] => socket.send_with_flags(one, libc::MSG_NOSIGNAL),
                    several => socket.send_vectored_with_flags(several, libc::MSG_NOSIGNAL),
                }));
                Poll::Ready(result.inspect(|&sent| fd.record_sent(sent)))
            }
            SocketBackend::Ring(ring, _) => ring.poll_write(context, buffers),
        }
    }

    pub(super) fn set_receive_low_water(&self, bytes: usize) -> io::Result<()> {
        let bytes = bytes.clamp(1, libc::c_int::MAX as usize) as libc::c_int;
        sockopt::set_int(self.socket(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes)
    }

    /// Counts bytes that were sent on the socket itself.
    pub(super) fn record_sent(&self, bytes: usize) {
        match &self.backend {
            SocketBackend::Readiness(fd) => fd.record_sent(bytes),
            SocketBackend::Ring(ring, _) => ring.record_sent(bytes),
        }
    }

    /// Waits until [`SocketIo::try_read`] has something to return.
    pub(super) async fn readable(&self, unread: &ReadBuffer) -> io::Result<()> {
        match &self.backend {
            _ if !unread.is_empty() => std::future::poll_fn(|context| poll_operation(context)).await,
            SocketBackend::Readiness(fd) => {
                fd.watch()?;
                fd.ready(Direction::Read).await;
            }
            SocketBackend::Ring(ring, _) => std::future::poll_fn(|context| ring.poll_readable(context)).await,
        }
        Ok(())
    }

    /// Waits until [`SocketIo::try_write`] would accept a byte or fail.
    pub(super) async fn writable(&self) -> io::Result<()> {
        match &self.backend {
            SocketBackend::Readiness(fd) => {
                fd.watch()?;
                fd.ready(Direction::Write).await;
            }
            SocketBackend::Ring(ring, _) => std::future::poll_fn(|context| ring.poll_writable(context)).await,
        }
        Ok(())
    }

    pub(super) fn try_read(&self, unread: &mut ReadBuffer, buffer: &mut [u8]) -> io::Result<usize> {
        if unread.is_empty() && !buffer.is_empty() {
            match &self.backend {
                SocketBackend::Readiness(fd) => {
                    let length = fd.try_io(Direction::Read, |socket| (&**socket).read(buffer))?;
                    fd.record_read(length, buffer.len());
                    return Ok(length);
                }
                SocketBackend::Ring(ring, _) => match ring.try_receive()? {
                    Some(received) => unread.hold(received),
                    None => return Ok(0),
                },
            }
        }
        Ok(unread.read(buffer))
    }

    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match &self.backend {
            SocketBackend::Readiness(fd) => {
                let sent =
                    fd.try_io(Direction::Write, |socket| socket.send_with_flags(bytes, libc::MSG_NOSIGNAL))?;
                fd.record_sent(sent);
                Ok(sent)
            }
            SocketBackend::Ring(ring, _) => ring.try_write(&[IoSlice::new(bytes)]),
        }
    }

    /// Copies what the next reads return. A ring's bytes are those that have come, in the stream's
    /// buffer and in the ring's.
    pub(super) fn poll_peek(
        &self,
        context: &mut Context<'_>,
        unread: &mut ReadBuffer,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        match &self.backend {
            SocketBackend::Readiness(fd) if unread.is_empty() => {
                fd.poll_io(Direction::Read, context, |socket| peek(socket, buffer))
            }
            SocketBackend::Readiness(fd) => {
                ready!(poll_operation(context));
                let length = unread.peek(buffer);
                Poll::Ready(Ok(length + peek_available(fd.get_ref(), &mut buffer[length..])))
            }
            SocketBackend::Ring(ring, _) => {
                if !unread.is_empty() {
                    ready!(poll_operation(context));
                }
                ready!(self.poll_fill(context, unread))?;
                let length = unread.peek(buffer);
                let more = if length == 0 { 0 } else { ring.peek(&mut buffer[length..]) };
                Poll::Ready(Ok(length + more))
            }
        }
    }

    /// Waits until no operation uses the socket, and everything written is sent.
    pub(super) fn poll_quiesce(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.backend {
            SocketBackend::Readiness(_) => Poll::Ready(Ok(())),
            SocketBackend::Ring(ring, _) => ring.poll_quiesce(context),
        }
    }

    /// Takes all bytes that are in this program's memory: `unread`'s, and those that a ring has
    /// received after them.
    pub(super) fn take_unread(&self, unread: &mut ReadBuffer) -> Vec<u8> {
        let mut bytes = unread.unread().to_vec();
        unread.consume(bytes.len());
        if let SocketBackend::Ring(ring, _) = &self.backend {
            bytes.append(&mut ring.take_unread());
        }
        bytes
    }

    pub(super) async fn write_owned(&self, bytes: Bytes) -> io::Result<()> {
        if let SocketBackend::Ring(ring, _) = &self.backend {
            std::future::poll_fn(|context| ring.poll_flush(context)).await?;
            ring.send_owned(bytes)?;
            return std::future::poll_fn(|context| ring.poll_flush(context)).await;
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let write = |context: &mut Context<'_>| self.poll_write(context, &[IoSlice::new(rest)]);
            let written = std::future::poll_fn(write).await?;
            rest = &rest[written..];
        }
        Ok(())
    }

    pub(super) fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.backend {
            SocketBackend::Readiness(_) => Poll::Ready(Ok(())),
            SocketBackend::Ring(ring, _) => ring.poll_flush(context),
        }
    }

    /// Accepted writes are sent before the writing side ends.
    pub(super) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if let SocketBackend::Ring(ring, _) = &self.backend
            && how != Shutdown::Read
            && ring.shutdown_after_sends()
        {
            return if how == Shutdown::Both { self.socket().shutdown(Shutdown::Read) } else { Ok(()) };
        }
        self.socket().shutdown(how)
    }

    pub(super) fn poll_close(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(context))?;
        if let SocketBackend::Ring(ring, _) = &self.backend {
            ring.shutdown_after_sends();
        }
        Poll::Ready(match self.socket().shutdown(Shutdown::Write) {
            // The peer has closed the connection already.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            result => result,
        })
    }
}

/// Reads by `read`, which has room for `capacity` bytes, when the socket is ready.
fn poll_read_socket(
    fd: &AsyncFd<Arc<Socket>>,
    context: &mut Context<'_>,
    capacity: usize,
    mut read: impl FnMut(&Socket) -> io::Result<usize>,
) -> Poll<io::Result<usize>> {
    let result = ready!(fd.poll_io(Direction::Read, context, |socket| read(socket)));
    if let Ok(length) = result {
        fd.record_read(length, capacity);
    }
    Poll::Ready(result)
}

fn peek(socket: &Socket, buffer: &mut [u8]) -> io::Result<usize> {
    let (length, _) = rustix::net::recv(socket, buffer, RecvFlags::PEEK)?;
    Ok(length)
}

/// Peeks if there are bytes. Without any it leaves the socket alone: a call would take its error.
fn peek_available(socket: &Socket, buffer: &mut [u8]) -> usize {
    match rustix::io::ioctl_fionread(socket) {
        Ok(1..) if !buffer.is_empty() => peek(socket, buffer).unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_takes_no_empty_slices_at_the_front_and_no_more_than_is_moved_at_once() {
        let (empty, byte, half) = (&b""[..], &b"a"[..], &vec![0; MOST_AT_ONCE / 2][..]);
        let long = &vec![0; 2 * MOST_AT_ONCE][..];
        let (most, left) = (MOST_AT_ONCE, MOST_AT_ONCE / 2 - 1);
        assert_eq!(taken_at_once(&[empty; 0]), (0..0, 0));
        assert_eq!(taken_at_once(&[empty; 3]), (3..3, 0));
        assert_eq!(taken_at_once(&[[empty; 1500], [byte; 1500]].concat()), (1500..2524, 0));
        assert_eq!(taken_at_once(&[half, empty, half, byte]), (0..3, 0));
        assert_eq!(taken_at_once(&[byte, half, half]), (0..2, left));
        assert_eq!(taken_at_once(&[empty, long, byte]), (1..1, most));
    }
}
