//! Pipes: named ones (FIFOs), anonymous ones, and those of [child processes](crate::process).
//!
//! ```
//! use futures_util::{AsyncReadExt, AsyncWriteExt};
//!
//! # #[runtime::main(driver = "epoll", workers = 1)]
//! # async fn main() -> std::io::Result<()> {
//! let (mut sender, mut receiver) = runtime::pipe::pair()?;
//! sender.write_all(b"hello").await?;
//! sender.close().await?;
//! let mut read = String::new();
//! receiver.read_to_string(&mut read).await?;
//! assert_eq!(read, "hello");
//! # Ok(())
//! # }
//! ```

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::pin::Pin;
use std::process::Stdio;
use std::task::{Context, Poll, ready};

use futures_io::{AsyncRead, AsyncWrite};
use rustix::buffer::spare_capacity;
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::{ioctl_fionbio, read, write};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::driver::readiness::{Direction, SourceKind};
use crate::io::AsyncFd;

/// How much a read of all output asks for at least: a page's worth of small outputs, and the pipe
/// is emptied in few calls.
const READ_SIZE: usize = 16 << 10;

/// Both ends of a new pipe.
pub fn pair() -> io::Result<(Sender, Receiver)> {
    let (receiver, sender) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok((Sender::from_owned_fd(sender)?, Receiver::from_owned_fd(receiver)?))
}

/// Opens a named pipe. It must not block: a pipe's open waits for its other end otherwise.
fn open_named(path: &Path, access: OFlags) -> io::Result<OwnedFd> {
    let pipe = open(path, access | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&pipe)?.st_mode) != FileType::Fifo {
        let problem = format!("{} is not a named pipe (mkfifo)", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    Ok(pipe)
}

/// Takes this side's end of a pipe onto the worker's driver. The other end has its own flags.
fn non_blocking(pipe: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    ioctl_fionbio(&pipe, true)?;
    AsyncFd::new(pipe, SourceKind::Other)
}

/// Gives an end of a pipe back as the standard library has it.
fn blocking(pipe: AsyncFd<OwnedFd>) -> io::Result<OwnedFd> {
    let pipe = pipe.into_inner()?;
    ioctl_fionbio(&pipe, false)?;
    Ok(pipe)
}

/// The end of a pipe that is written to. Writing fails with `BrokenPipe` once nobody reads. Closing
/// or dropping it ends the input of the other end.
pub struct Sender {
    /// `None` after it was closed.
    pipe: Option<AsyncFd<OwnedFd>>,
}

impl Sender {
    /// Opens a named pipe to write to it.
    ///
    /// # Errors
    /// `ENXIO` while nobody has it open to read; `InvalidInput` if it is no pipe; else those of
    /// `open(2)`.
    #[doc(alias = "mkfifo")]
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::from_owned_fd(open_named(path.as_ref(), OFlags::WRONLY)?)
    }

    /// Takes a pipe's end, and makes it non-blocking.
    pub fn from_owned_fd(pipe: impl Into<OwnedFd>) -> io::Result<Self> {
        Ok(Self { pipe: Some(non_blocking(pipe.into())?) })
    }

    /// The descriptor, which blocks again.
    ///
    /// # Errors
    /// `BrokenPipe` if it was closed; else those of `epoll_ctl(2)`.
    pub fn into_owned_fd(self) -> io::Result<OwnedFd> {
        blocking(self.pipe.ok_or(io::ErrorKind::BrokenPipe)?)
    }
}

impl AsyncWrite for Sender {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Some(pipe) = &self.pipe else { return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())) };
        pipe.poll_io(Direction::Write, context, |pipe| Ok(write(pipe, bytes)?))
    }

    /// Does nothing: what is written is in the pipe.
    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pipe = None;
        Poll::Ready(Ok(()))
    }
}

opaque_debug!(Sender, "Sender");

/// The end of a pipe that is read. A read returns 0 once nobody can write to the pipe any more: a
/// child has ended, for example, and so have processes that it has left behind with the same
/// output.
pub struct Receiver {
    pipe: AsyncFd<OwnedFd>,
}

impl Receiver {
    /// Opens a named pipe to read it. Reads wait for the first writer, and end when the last one
    /// has gone; to go on then, open it again, or keep a [`Sender`] of it.
    ///
    /// # Errors
    /// `InvalidInput` if it is no pipe; else those of `open(2)`.
    #[doc(alias = "mkfifo")]
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        // Before a writer has come `read(2)` would return 0, but it isn't tried before there is an
        // event.
        Self::from_owned_fd(open_named(path.as_ref(), OFlags::RDONLY)?)
    }

    /// Takes a pipe's end, and makes it non-blocking.
    pub fn from_owned_fd(pipe: impl Into<OwnedFd>) -> io::Result<Self> {
        Ok(Self { pipe: non_blocking(pipe.into())? })
    }

    /// The descriptor, which blocks again.
    pub fn into_owned_fd(self) -> io::Result<OwnedFd> {
        blocking(self.pipe)
    }

    /// Adds to a buffer what comes until nobody can write to the pipe any more.
    pub(crate) fn poll_drain(&self, context: &mut Context<'_>, buffer: &mut Vec<u8>) -> Poll<io::Result<()>> {
        loop {
            buffer.reserve(READ_SIZE);
            let bytes = self
                .pipe
                .poll_io(Direction::Read, context, |pipe| Ok(read(pipe, spare_capacity(&mut *buffer))?));
            if ready!(bytes)? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl AsyncRead for Receiver {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.pipe.poll_io(Direction::Read, context, |pipe| Ok(read(pipe, &mut *buffer)?))
    }
}

/// Makes it the standard input of a command.
impl TryFrom<Receiver> for Stdio {
    type Error = io::Error;

    fn try_from(pipe: Receiver) -> io::Result<Self> {
        pipe.into_owned_fd().map(Self::from)
    }
}

opaque_debug!(Receiver, "Receiver");
