//! Sending a file without copying it into this program.

use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use runtime::__net::RingSocket;
use runtime::io::{Direction, RingFd, poll_operation};
use socket2::Socket;

use super::generic::Stream;
use super::socket_io::{MOST_AT_ONCE, SocketBackend};

/// Sends parts of files on a stream, by `sendfile(2)`: the kernel sends the pages of its cache, and
/// none of them comes to this program.
///
/// It holds what one stream's sends wait for, so have one for each stream.
#[doc(alias = "sendfile")]
#[derive(Default)]
pub struct FileSender {
    /// The wait for room in the socket's send buffer, on a ring.
    writable: Option<Pin<Box<dyn Future<Output = io::Result<libc::c_short>>>>>,
}

impl FileSender {
    /// Sends up to `length` bytes of a file from `offset` on, at most 512 KiB, after all bytes that
    /// were written to the stream before, and returns how many; 0 if the file ends at `offset` or
    /// before it.
    ///
    /// The worker waits for the disk if the bytes are not in the page cache: read them on another
    /// thread before, where that may be. A program that doesn't ignore SIGPIPE, as Rust programs
    /// do, is killed if the connection breaks.
    ///
    /// # Errors
    /// Those of earlier writes and of `sendfile(2)`: `InvalidInput` if the file can't be mapped, as
    /// a pipe.
    pub fn poll_send<K>(
        &mut self,
        context: &mut Context<'_>,
        stream: &Stream<K>,
        file: impl AsFd,
        offset: u64,
        length: usize,
    ) -> Poll<io::Result<usize>> {
        // To a fast peer a call goes on for as long as that reads.
        let length = length.min(MOST_AT_ONCE);
        let send = |socket: &Socket| {
            let mut offset = offset;
            Ok(rustix::fs::sendfile(socket, &file, Some(&mut offset), length)?)
        };
        let result = match stream.io.backend() {
            SocketBackend::Readiness(fd) => {
                ready!(fd.poll_io(Direction::Write, context, |socket| send(socket)))
            }
            SocketBackend::Ring(ring, socket) => {
                // It must not overtake what is accepted.
                ready!(ring.poll_flush(context))?;
                ready!(self.poll_on_ring(context, ring, socket, send))
            }
        };
        Poll::Ready(result.inspect(|&sent| stream.io.record_sent(sent)))
    }

    fn poll_on_ring(
        &mut self,
        context: &mut Context<'_>,
        ring: &RingSocket,
        socket: &Arc<Socket>,
        send: impl Fn(&Socket) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        ready!(poll_operation(context));
        loop {
            if let Some(writable) = &mut self.writable {
                let result = ready!(writable.as_mut().poll(context));
                self.writable = None;
                result?;
            }
            ring.check_open()?;
            match send(socket) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let socket = RingFd::new(Arc::clone(socket));
                    self.writable = Some(Box::pin(async move { socket.poll(libc::POLLOUT).await }));
                }
                result => return Poll::Ready(result),
            }
        }
    }
}

impl fmt::Debug for FileSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSender").field("waits", &self.writable.is_some()).finish()
    }
}

impl<K> Stream<K> {
    /// Sends `length` bytes of a file from `offset` on, after all bytes that were written before:
    /// see [`FileSender`].
    ///
    /// If the future is dropped before it is ready, some of the bytes may have been sent.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before, and those of [`FileSender::poll_send`].
    #[doc(alias = "sendfile")]
    pub async fn send_file(&mut self, file: impl AsFd, offset: u64, length: u64) -> io::Result<()> {
        let mut sender = FileSender::default();
        let (mut offset, mut left) = (offset, length);
        while left > 0 {
            let chunk = usize::try_from(left).unwrap_or(usize::MAX);
            let send = |context: &mut Context<'_>| sender.poll_send(context, self, &file, offset, chunk);
            let sent = std::future::poll_fn(send).await? as u64;
            if sent == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            offset += sent;
            left -= sent.min(left);
        }
        Ok(())
    }
}
