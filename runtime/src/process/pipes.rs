//! The parent's ends of a child's pipes.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::process::Stdio;
use std::task::{Context, Poll, ready};

use futures_io::{AsyncRead, AsyncWrite};
use rustix::buffer::spare_capacity;
use rustix::io::{ioctl_fionbio, read, write};

use crate::driver::readiness::{Direction, SourceKind};
use crate::io::AsyncFd;

/// How much a read of all output asks for at least: a page's worth of small outputs, and the pipe is emptied in few calls.
const READ_SIZE: usize = 16 << 10;

/// Takes this side's end of a pipe onto the worker's driver. The child's end has its own flags, and stays blocking.
fn non_blocking(pipe: impl Into<OwnedFd>) -> io::Result<AsyncFd<OwnedFd>> {
    let pipe = pipe.into();
    ioctl_fionbio(&pipe, true)?;
    AsyncFd::new(pipe, SourceKind::Other)
}

/// Gives an end of a pipe back as the standard library has it.
fn blocking(pipe: AsyncFd<OwnedFd>) -> io::Result<OwnedFd> {
    let pipe = pipe.into_inner()?;
    ioctl_fionbio(&pipe, false)?;
    Ok(pipe)
}

/// Where a child reads its standard input from. Writing to it fails with `BrokenPipe` once nobody reads. Closing or dropping it
/// ends the child's input.
pub struct ChildStdin {
    /// `None` after it was closed.
    pipe: Option<AsyncFd<OwnedFd>>,
}

impl ChildStdin {
    pub(super) fn new(pipe: std::process::ChildStdin) -> io::Result<Self> {
        Ok(Self { pipe: Some(non_blocking(pipe)?) })
    }

    /// The descriptor, which blocks again.
    ///
    /// # Errors
    /// `BrokenPipe` if it was closed; else those of `epoll_ctl(2)`.
    pub fn into_owned_fd(self) -> io::Result<OwnedFd> {
        blocking(self.pipe.ok_or(io::ErrorKind::BrokenPipe)?)
    }
}

impl AsyncWrite for ChildStdin {
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

impl fmt::Debug for ChildStdin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildStdin").finish_non_exhaustive()
    }
}

/// Declares a pipe that a child writes to.
macro_rules! read_pipe {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        pub struct $name {
            pipe: AsyncFd<OwnedFd>,
        }

        impl $name {
            pub(super) fn new(pipe: std::process::$name) -> io::Result<Self> {
                Ok(Self { pipe: non_blocking(pipe)? })
            }

            /// The descriptor, which blocks again.
            ///
            /// # Errors
            /// Those of `epoll_ctl(2)`.
            pub fn into_owned_fd(self) -> io::Result<OwnedFd> {
                blocking(self.pipe)
            }
        }

        impl AsyncRead for $name {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                self.pipe.poll_io(Direction::Read, context, |pipe| Ok(read(pipe, &mut *buffer)?))
            }
        }

        /// Makes it the standard input of another command.
        impl TryFrom<$name> for Stdio {
            type Error = io::Error;

            fn try_from(pipe: $name) -> io::Result<Self> {
                pipe.into_owned_fd().map(Self::from)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }

        impl DrainPipe for $name {
            fn pipe(&self) -> &AsyncFd<OwnedFd> {
                &self.pipe
            }
        }
    };
}

read_pipe! {
    /// What a child writes to its standard output. A read returns 0 once nobody can write to it any more: the child has ended,
    /// and so have processes that it has left behind with the same output.
    ChildStdout
}

read_pipe! {
    /// What a child writes to its standard error; as [`ChildStdout`].
    ChildStderr
}

/// A pipe that is read to its end.
pub(super) trait DrainPipe {
    fn pipe(&self) -> &AsyncFd<OwnedFd>;

    /// Adds to a buffer what comes until nobody can write to the pipe any more.
    fn poll_drain(&self, context: &mut Context<'_>, buffer: &mut Vec<u8>) -> Poll<io::Result<()>> {
        loop {
            buffer.reserve(READ_SIZE);
            let bytes = self
                .pipe()
                .poll_io(Direction::Read, context, |pipe| Ok(read(pipe, spare_capacity(&mut *buffer))?));
            if ready!(bytes)? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}
