//! Reads that wake their task when the last byte has come.

use std::error::Error;
use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use runtime::io::{AsyncFd, Direction, Received, RingFd, RingSocket, poll_operation};
use rustix::net::RecvFlags;
use socket2::Socket;

use super::generic::Stream;
use super::socket_io::SocketBackend;
use crate::buffers::ReadBuffer;
use crate::sockopt;
use crate::tcp::Tcp;

/// How many bytes one poll receives, before other tasks get their turn: a fast sender would hold the worker otherwise.
const MOST_AT_ONCE: usize = 1 << 20;

/// [`TcpStream::read_exact_owned`](crate::TcpStream) has not filled its buffer.
///
/// It converts to its [`io::Error`].
#[derive(Debug)]
pub struct ReadExactError {
    /// `UnexpectedEof` at the end of the stream, or the error of the connection.
    pub error: io::Error,
    /// The bytes that came before, in the memory of the buffer.
    pub received: Vec<u8>,
}

impl fmt::Display for ReadExactError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the stream ended or failed after {} bytes", self.received.len())
    }
}

impl Error for ReadExactError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.error)
    }
}

impl From<ReadExactError> for io::Error {
    fn from(failed: ReadExactError) -> Self {
        failed.error
    }
}

impl Stream<Tcp> {
    /// Fills a buffer, from its first byte to its last, and returns it. Unlike with reads in a loop the task is not woken for
    /// every packet, but when the last byte is there: for values whose length is known, the larger the better.
    ///
    /// What the socket's receive buffer can't hold at once wakes the task each time that it is full. The kernel enlarges it for
    /// the rest of the connection, up to half of `net.ipv4.tcp_rmem`'s maximum, unless its size was set.
    ///
    /// If the future is dropped before it is ready, what has come by then stays in the stream, and the next read returns it:
    /// a [`timeout`](runtime::timeout) around it loses nothing.
    ///
    /// # Errors
    /// [`ReadExactError`], with the bytes that came before the end of the stream or the error. `InvalidInput` for a buffer of
    /// 4 GiB or more.
    #[doc(alias = "SO_RCVLOWAT")]
    pub async fn read_exact_owned(&mut self, buffer: Vec<u8>) -> Result<Vec<u8>, ReadExactError> {
        if u32::try_from(buffer.len()).is_err() {
            let error = io::Error::new(ErrorKind::InvalidInput, "the buffer has 4 GiB or more");
            return Err(ReadExactError { error, received: Vec::new() });
        }
        if buffer.is_empty() {
            return Ok(buffer);
        }
        std::future::poll_fn(|context| poll_operation(context)).await;
        let mut filling = Filling::new(&mut self.unread, buffer);
        let result = match self.io.backend() {
            _ if filling.missing() == 0 => Ok(()),
            SocketBackend::Readiness(fd) => filling.fill_when_ready(fd).await,
            SocketBackend::Ring(ring, socket) => filling.fill_by_ring(ring, socket).await,
        };
        let received = filling.take();
        match result {
            Ok(()) => Ok(received),
            Err(error) => Err(ReadExactError { error, received }),
        }
    }
}

/// A buffer that is being filled. If it is not taken, its bytes go back to the stream.
struct Filling<'a> {
    unread: &'a mut ReadBuffer,
    buffer: Vec<u8>,
    filled: usize,
}

impl<'a> Filling<'a> {
    /// Begins with what the stream has received already.
    fn new(unread: &'a mut ReadBuffer, mut buffer: Vec<u8>) -> Self {
        let filled = unread.read(&mut buffer);
        Self { unread, buffer, filled }
    }

    fn missing(&self) -> usize {
        self.buffer.len() - self.filled
    }

    fn take(&mut self) -> Vec<u8> {
        self.buffer.truncate(self.filled);
        self.filled = 0;
        std::mem::take(&mut self.buffer)
    }

    /// Receives until the buffer is full, or [`MOST_AT_ONCE`] have come. Before it would wait, it raises the low-water mark to
    /// what is missing.
    fn receive(
        &mut self,
        low_water: &mut LowWater<'_>,
        mut receive: impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<()> {
        let end = self.buffer.len().min(self.filled + MOST_AT_ONCE);
        while self.filled < end {
            match receive(&mut self.buffer[self.filled..end]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(length) => self.filled += length,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    if error.kind() == ErrorKind::WouldBlock {
                        low_water.raise(self.missing());
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    async fn fill_when_ready(&mut self, fd: &AsyncFd<Arc<Socket>>) -> io::Result<()> {
        let mut low_water = LowWater::new(fd.get_ref());
        loop {
            {
                let mut receive = |socket: &Socket| {
                    self.receive(&mut low_water, |rest| {
                        let (length, _) = rustix::net::recv(socket, rest, RecvFlags::DONTWAIT)?;
                        // Only counted: it goes on until nothing is left.
                        fd.record_read(length, length);
                        Ok(length)
                    })
                };
                // Before the first wait the mark has to be raised, also where nothing is ready.
                match fd.try_io(Direction::Read, |socket| receive(socket)) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        fd.io(Direction::Read, |socket| receive(socket)).await?;
                    }
                    result => result?,
                }
            }
            if self.missing() == 0 {
                return Ok(());
            }
            runtime::yield_now().await;
        }
    }

    /// The last 64 KiB are left to the ring's receive. For more it is set aside: the bytes are received into the buffer,
    /// without a copy by way of the ring's buffers.
    async fn fill_by_ring(&mut self, ring: &RingSocket, socket: &Arc<Socket>) -> io::Result<()> {
        loop {
            self.take_received(ring)?;
            match self.missing() {
                0 => return Ok(()),
                missing if missing <= ring.most_awaited() => {
                    std::future::poll_fn(|context| ring.poll_received(context, missing)).await;
                }
                _ => break,
            }
        }
        std::future::poll_fn(|context| ring.poll_set_aside(context)).await;
        self.take_received(ring)?;
        let readable = RingFd::new(Arc::clone(socket));
        let mut low_water = LowWater::new(socket);
        loop {
            match self.receive(&mut low_water, |rest| ring.receive_directly(rest)) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    readable.poll(libc::POLLIN).await?;
                }
                Ok(()) if self.missing() > 0 => runtime::yield_now().await,
                result => return result,
            }
        }
    }

    fn take_received(&mut self, ring: &RingSocket) -> io::Result<()> {
        while self.missing() > 0 {
            match ring.take_received() {
                Some(Ok(Some(received))) => self.add(received),
                Some(Ok(None)) => return Err(ErrorKind::UnexpectedEof.into()),
                Some(Err(error)) => return Err(error),
                None => break,
            }
        }
        Ok(())
    }

    fn add(&mut self, received: Received) {
        let length = received.len().min(self.missing());
        self.buffer[self.filled..self.filled + length].copy_from_slice(&received[..length]);
        self.filled += length;
        if length < received.len() {
            self.unread.hold(received);
            self.unread.consume(length);
        }
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        if self.filled > 0 {
            let bytes = self.take();
            self.unread.put_back(bytes);
        }
    }
}

/// The socket's low-water mark (`SO_RCVLOWAT`): with fewer bytes it is not readable. Put back when dropped.
struct LowWater<'a> {
    socket: &'a Socket,
    before: Option<libc::c_int>,
}

impl<'a> LowWater<'a> {
    fn new(socket: &'a Socket) -> Self {
        Self { socket, before: None }
    }

    /// Raises it to this many bytes. The kernel caps it at half of the receive buffer, and takes a socket whose receive window
    /// is full for readable in any case (`net/ipv4/tcp.c`, `tcp_set_rcvlowat`, `tcp_epollin_ready`).
    fn raise(&mut self, bytes: usize) {
        if bytes <= 1 && self.before.is_none() {
            return;
        }
        if self.before.is_none() {
            self.before = Some(sockopt::receive_low_water(self.socket).unwrap_or(1));
        }
        // Without it the task is woken more often.
        let _ = sockopt::set_receive_low_water(
            self.socket,
            libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX),
        );
    }
}

impl Drop for LowWater<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // Can't fail where raising it has succeeded. It signals bytes that have come below the mark.
            let _ = sockopt::set_receive_low_water(self.socket, before);
        }
    }
}
