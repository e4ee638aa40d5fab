//! Copying from one TCP stream to another within the kernel.

use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use runtime::io::{AsyncFd, Direction, RingFd, poll_operation};
use rustix::buffer::spare_capacity;
use rustix::pipe::{PipeFlags, SpliceFlags};
use socket2::Socket;

use super::generic::Stream;
use super::socket_io::{SocketBackend, SocketIo};
use crate::buffers::ReadBuffer;
use crate::tcp::Tcp;

/// How many bytes one call moves at most: what a pipe holds by default.
const CHUNK: usize = 64 << 10;

/// Copies from one stream to another until the first has ended, and returns how many bytes. The second stays open: close it to
/// pass the end on.
///
/// The bytes go through a pipe, by `splice(2)`: the kernel passes its pages on, and none of them comes to this program. What
/// the program has received before is written first. Where there is no pipe to be had, or the kernel can't splice these
/// sockets, the bytes are copied.
///
/// If the future is dropped before it is ready, what has come from the first stream and not gone to the second is read from
/// the first again. If the second one's connection breaks, a program that doesn't ignore SIGPIPE, as Rust programs do, is
/// killed by it.
///
/// # Errors
/// The first error of either stream.
#[doc(alias = "sendfile")]
pub async fn copy(from: &mut Stream<Tcp>, to: &mut Stream<Tcp>) -> io::Result<u64> {
    let mut copied = write_unread(&mut from.unread, to).await?;
    if let SocketBackend::Ring(ring, _) = from.io.backend() {
        std::future::poll_fn(|context| ring.poll_set_aside(context)).await;
        while let Some(received) = ring.take_received() {
            let Some(received) = received? else {
                flush(to).await?;
                return Ok(copied);
            };
            from.unread.hold(received);
            copied += write_unread(&mut from.unread, to).await?;
        }
    }
    // What is spliced must not overtake it.
    flush(to).await?;
    let Ok((reader, writer)) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK) else {
        return copy_by_buffer(from, to, copied).await;
    };
    let mut pipe = Pipe { reader, writer, bytes: 0, unread: &mut from.unread };
    let mut spliced = false;
    loop {
        match pipe.fill(&from.io).await {
            Ok(0) => return Ok(copied),
            Ok(_) => spliced = true,
            // `EINVAL`: this socket can't be spliced, for example because something else handles its data.
            Err(error) if error.kind() == ErrorKind::InvalidInput && !spliced => break,
            Err(error) => return Err(error),
        }
        while pipe.bytes > 0 {
            copied += pipe.empty(&to.io).await? as u64;
        }
    }
    drop(pipe);
    copy_by_buffer(from, to, copied).await
}

async fn copy_by_buffer(from: &mut Stream<Tcp>, to: &mut Stream<Tcp>, mut copied: u64) -> io::Result<u64> {
    loop {
        std::future::poll_fn(|context| from.io.poll_fill(context, &mut from.unread)).await?;
        if from.unread.is_empty() {
            flush(to).await?;
            return Ok(copied);
        }
        copied += write_unread(&mut from.unread, to).await?;
    }
}

async fn write_unread(unread: &mut ReadBuffer, to: &Stream<Tcp>) -> io::Result<u64> {
    let mut written = 0;
    while !unread.is_empty() {
        let bytes = [IoSlice::new(unread.unread())];
        let length = std::future::poll_fn(|context| to.io.poll_write(context, &bytes)).await?;
        unread.consume(length);
        written += length as u64;
    }
    Ok(written)
}

async fn flush(to: &Stream<Tcp>) -> io::Result<()> {
    std::future::poll_fn(|context| to.io.poll_flush(context)).await
}

/// The pipe between the two sockets. What is in it when it is dropped goes back to the stream that it came from.
struct Pipe<'a> {
    reader: OwnedFd,
    writer: OwnedFd,
    bytes: usize,
    unread: &'a mut ReadBuffer,
}

impl Pipe<'_> {
    /// Moves what a socket has received into the empty pipe. Returns how many bytes, 0 at the end of the stream.
    async fn fill(&mut self, from: &SocketIo<Tcp>) -> io::Result<usize> {
        let moved = when_ready(from, Direction::Read, |socket| splice(socket, &self.writer, CHUNK)).await?;
        match from.backend() {
            SocketBackend::Readiness(fd) => fd.record_read(moved, moved),
            SocketBackend::Ring(ring, _) => ring.record_received(moved),
        }
        self.bytes = moved;
        Ok(moved)
    }

    /// Moves bytes of the pipe to a socket. Returns how many.
    async fn empty(&mut self, to: &SocketIo<Tcp>) -> io::Result<usize> {
        let moved =
            when_ready(to, Direction::Write, |socket| splice(&self.reader, socket, self.bytes)).await?;
        if moved == 0 {
            return Err(ErrorKind::WriteZero.into());
        }
        to.record_sent(moved);
        self.bytes -= moved;
        Ok(moved)
    }
}

impl Drop for Pipe<'_> {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        let mut bytes = Vec::with_capacity(self.bytes);
        while bytes.len() < self.bytes {
            // It is in the pipe, so the read neither waits nor fails.
            match rustix::io::read(&self.reader, spare_capacity(&mut bytes)) {
                Ok(1..) => {}
                result => {
                    debug_assert!(false, "a pipe with bytes can't be read: {result:?}");
                    break;
                }
            }
        }
        self.unread.put_back(bytes);
    }
}

fn splice(from: impl AsFd, to: impl AsFd, bytes: usize) -> io::Result<usize> {
    Ok(rustix::pipe::splice(from, None, to, None, bytes, SpliceFlags::NONBLOCK | SpliceFlags::MOVE)?)
}

/// Tries an operation until it doesn't block.
async fn when_ready(
    io: &SocketIo<Tcp>,
    direction: Direction,
    mut operation: impl FnMut(&Socket) -> io::Result<usize>,
) -> io::Result<usize> {
    match io.backend() {
        SocketBackend::Readiness(fd) => AsyncFd::io(fd, direction, |socket| operation(socket)).await,
        SocketBackend::Ring(ring, socket) => loop {
            std::future::poll_fn(|context| poll_operation(context)).await;
            ring.check_open()?;
            match operation(socket) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let events = match direction {
                        Direction::Read => libc::POLLIN,
                        Direction::Write => libc::POLLOUT,
                    };
                    RingFd::new(Arc::clone(socket)).poll(events).await?;
                }
                result => return result,
            }
        },
    }
}
