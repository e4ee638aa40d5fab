//! The socket under HTTP connections.

use std::cell::Cell;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};
use net::{FileSender, Stream};
use runtime::Sleep;

use super::file_body::{FilePart, file_part};

/// A socket as hyper needs it: its flush doesn't wait, it sends files, and it can limit how long
/// the peer takes nothing.
///
/// hyper flushes after each response. On a ring the bytes are sent at the end of the turn anyway,
/// and waiting for it would poll the connection once more for each response, and hold HTTP/2 up in
/// between. An error of the send is returned by the next write or by the close, and the close does
/// wait.
///
/// A close after which the client sends nothing ([`SocketUsage::ends_at_once`]) leaves the end of
/// the stream to the drop, which follows. If one short write was all, its send, too: the send buffer
/// of a new connection has room for it.
///
/// Where the bytes to write stand for those of a file, the file is sent.
///
/// `TCP_NODELAY` is set before the second write: HTTP/2 and streamed bodies write in parts, and the
/// last must not wait for an acknowledgment. A first one never does, as the kernel holds a small
/// segment back only behind another one (`net/ipv4/tcp_output.c`, `tcp_nagle_check`), unless it is
/// so long that it is sent in parts.
#[derive(Debug)]
pub(super) struct HttpSocket<K> {
    stream: Stream<K>,
    /// What sends of files wait for. Boxed, and made for the first file: most connections have
    /// none.
    file_sender: Option<Box<FileSender>>,
    /// How long a write may wait for the peer, and the wait.
    stall_limit: Option<Duration>,
    stalled: Option<Box<Sleep>>,
    /// `TCP_NODELAY` has to be set, as there was no more than one short write so far.
    delays: bool,
    usage: Rc<SocketUsage>,
}

/// The send buffer of a new connection has room for as much (`net.ipv4.tcp_wmem`, the default).
const SENT_AT_ONCE: usize = 16 << 10;

/// What is done on a socket, to find out whether its connection is idle.
#[derive(Debug, Default)]
pub(super) struct SocketUsage {
    pub(super) reads: Cell<u64>,
    pub(super) writes: Cell<u64>,
    /// Whether bytes wait until the peer takes others.
    pub(super) write_waits: Cell<bool>,
    /// The client sends nothing after the request that was read last.
    pub(super) has_last_request: Cell<bool>,
    /// A read was so long that it may have left bytes in the socket.
    had_long_read: Cell<bool>,
    /// A graceful shutdown has begun: its end must not come before that of the last answers.
    pub(super) shuts_down: Cell<bool>,
}

/// No read of a stream takes more from an epoll driver's socket.
const LONG_READ: usize = 16 << 10;

impl SocketUsage {
    fn count_read(&self, length: usize) {
        self.reads.set(self.reads.get().wrapping_add(u64::from(length > 0)));
        if length >= LONG_READ {
            self.had_long_read.set(true);
        }
    }

    /// Whether a close need not wait for the client, which has said that it sends nothing more. One
    /// that does all the same (RFC 9112, section 9.6, forbids it) may lose its answer to a reset,
    /// unless what it sends comes with its request.
    pub(super) fn ends_at_once(&self) -> bool {
        self.has_last_request.get() && !self.had_long_read.get()
    }
}

impl<K> HttpSocket<K> {
    /// `is_tcp`: it has the option `TCP_NODELAY`.
    pub(super) fn new(stream: Stream<K>, is_tcp: bool) -> Self {
        let (file_sender, stall_limit, stalled) = (None, None, None);
        Self { stream, file_sender, stall_limit, stalled, delays: is_tcp, usage: Rc::default() }
    }

    /// Fails writes that wait for longer than `limit`.
    pub(super) fn with_stall_limit(mut self, limit: Option<Duration>) -> Self {
        self.stall_limit = limit;
        self
    }

    pub(super) fn usage(&self) -> Rc<SocketUsage> {
        Rc::clone(&self.usage)
    }

    /// Sets `TCP_NODELAY` before the second write, and before a long first one.
    fn end_delay(&mut self, length: usize) {
        if self.delays && (self.usage.writes.get() > 0 || length > SENT_AT_ONCE) {
            self.delays = false;
            // Fails only if the connection has broken, which the write reports.
            let _ = rustix::net::sockopt::set_tcp_nodelay(&self.stream, true);
        }
    }

    /// Ends a write that has waited for too long.
    fn limited<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.usage.write_waits.set(written.is_pending());
        if written.is_ready() {
            self.usage.writes.set(self.usage.writes.get().wrapping_add(1));
            if self.stalled.is_some() {
                self.stalled = None;
            }
            return written;
        }
        let Some(limit) = self.stall_limit else { return Poll::Pending };
        let stalled = self.stalled.get_or_insert_with(|| Box::new(runtime::sleep(limit)));
        ready!(Pin::new(&mut **stalled).poll(context));
        Poll::Ready(Err(io::Error::new(ErrorKind::TimedOut, "the peer takes nothing of what is sent to it")))
    }

    fn poll_send_file(
        &mut self,
        context: &mut Context<'_>,
        part: &FilePart,
        length: usize,
    ) -> Poll<io::Result<usize>> {
        let sender = self.file_sender.get_or_insert_default();
        let sent = ready!(sender.poll_send(context, &self.stream, &part.file, part.offset, length))?;
        // A body that is too short can only be broken off. hyper would take 0 for a peer that takes
        // no more.
        match sent {
            0 => Poll::Ready(Err(io::Error::new(ErrorKind::UnexpectedEof, "the file has become shorter"))),
            _ => Poll::Ready(Ok(sent)),
        }
    }
}

impl<K> AsyncRead for HttpSocket<K> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let Self { stream, usage, .. } = self.get_mut();
        let length = ready!(Pin::new(stream).poll_read(context, buffer))?;
        usage.count_read(length);
        Poll::Ready(Ok(length))
    }
}

impl<K> AsyncBufRead for HttpSocket<K> {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let Self { stream, usage, .. } = self.get_mut();
        let bytes = ready!(Pin::new(stream).poll_fill_buf(context))?;
        usage.count_read(bytes.len());
        Poll::Ready(Ok(bytes))
    }

    fn consume(self: Pin<&mut Self>, amount: usize) {
        Pin::new(&mut self.get_mut().stream).consume(amount);
    }
}

impl<K> AsyncWrite for HttpSocket<K> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        let socket = self.get_mut();
        socket.end_delay(buffer.len());
        let written = match file_part(buffer) {
            Some(part) => socket.poll_send_file(context, &part, buffer.len()),
            None => Pin::new(&mut socket.stream).poll_write(context, buffer),
        };
        socket.limited(context, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let file = buffers.iter().enumerate().find_map(|(index, buffer)| Some((index, file_part(buffer)?)));
        let socket = self.get_mut();
        socket.end_delay(buffers.iter().map(|buffer| buffer.len()).sum());
        let stream = Pin::new(&mut socket.stream);
        let written = match file {
            Some((0, part)) => socket.poll_send_file(context, &part, buffers[0].len()),
            Some((index, _)) => stream.poll_write_vectored(context, &buffers[..index]),
            None => stream.poll_write_vectored(context, buffers),
        };
        socket.limited(context, written)
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = self.get_mut();
        let stream = Pin::new(&mut socket.stream);
        let closed = match socket.usage.ends_at_once() {
            true if socket.delays && !socket.usage.shuts_down.get() => Poll::Ready(Ok(())),
            true => stream.poll_flush(context),
            false => stream.poll_close(context),
        };
        socket.limited(context, closed)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::AsyncWriteExt;
    use net::{TcpListener, TcpStream};

    use super::*;

    #[runtime::test]
    async fn the_second_write_and_a_long_first_one_wait_for_no_acknowledgment() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = async || {
            let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            HttpSocket::new(stream, true)
        };
        let mut socket = connect().await;
        for sets in [false, true] {
            socket.write_all(b"part").await.unwrap();
            assert_eq!(socket.stream.nodelay().unwrap(), sets);
        }
        let mut socket = connect().await;
        let long = [0; SENT_AT_ONCE];
        let _ = socket.write_vectored(&[IoSlice::new(b"head"), IoSlice::new(&long)]).await.unwrap();
        assert!(socket.stream.nodelay().unwrap());
    }
}
