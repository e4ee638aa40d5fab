//! The standard streams of this process, on the threads of blocking work.
//!
//! They are not made non-blocking, as other processes may share them: the shell, and those that
//! write to the same terminal. So each read and write is a call on a thread of
//! [`spawn_blocking`](crate::spawn_blocking), one at a time for each of these values.
//!
//! A read that waits for input can't be cancelled. The end of the runtime waits for it: for a line
//! from the terminal, say. To end earlier, use
//! [`Runtime::shutdown_timeout`](crate::Runtime::shutdown_timeout) or [`std::process::exit`].
//!
//! All of them panic outside of a runtime, when they are first read or written.
//!
//! ```
//! use futures_util::AsyncWriteExt;
//!
//! # #[runtime::main(driver = "epoll", workers = 1)]
//! # async fn main() -> std::io::Result<()> {
//! let mut output = runtime::stdio::stdout();
//! output.write_all(b"ready\n").await?;
//! output.flush().await
//! # }
//! ```

use std::io::{self, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};

use crate::pool_io::{Reading, Writing};

/// How much one call reads at most: as much as the standard library's buffer.
const READ_SIZE: usize = 8 << 10;

/// The standard input of this process. It has a buffer: lines are read without a `BufReader`.
///
/// A read that was dropped loses nothing: the next one returns its bytes. Dropping this value does,
/// as it may have read more than was asked for. So keep one, and don't read [`std::io::stdin`]
/// beside it.
pub struct Stdin(Reading);

/// The standard input, [`Stdin`].
pub fn stdin() -> Stdin {
    Stdin(Reading::default())
}

fn read(buffer: &mut [u8]) -> io::Result<usize> {
    io::stdin().read(buffer)
}

impl AsyncRead for Stdin {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_read(context, buffer, READ_SIZE, read)
    }
}

impl AsyncBufRead for Stdin {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        self.get_mut().0.poll_fill(context, READ_SIZE, read)
    }

    fn consume(mut self: Pin<&mut Self>, count: usize) {
        self.0.consume(count);
    }
}

opaque_debug!(Stdin, "Stdin");

/// The standard output of this process, or its standard error output. A write returns when its
/// bytes are copied, and a thread writes them. Flush before the runtime ends: a write that no
/// thread has begun by then is dropped. A write's error is that of the next write or flush.
///
/// Up to 64 KiB are written at once; between them others may write, as in [`std::io::stdout`],
/// which this locks.
pub struct Output {
    writing: Writing,
    write: fn(&[u8]) -> io::Result<()>,
}

/// As tokio calls it.
pub type Stdout = Output;
/// As tokio calls it.
pub type Stderr = Output;

/// The process's standard output. [`Output`] says when a write reaches it.
pub fn stdout() -> Output {
    Output { writing: Writing::default(), write: |bytes| write_all(io::stdout().lock(), bytes) }
}

/// The standard error output.
pub fn stderr() -> Output {
    Output { writing: Writing::default(), write: |bytes| write_all(io::stderr().lock(), bytes) }
}

fn write_all(mut output: impl Write, bytes: &[u8]) -> io::Result<()> {
    output.write_all(bytes)?;
    output.flush()
}

impl AsyncWrite for Output {
    /// Waits for the write before, and returns its error if it had one.
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let write = self.write;
        self.writing.poll_write(context, bytes, write)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writing.poll_flush(context)
    }

    /// As a flush: the descriptor stays open.
    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }
}

opaque_debug!(Output, "Output");
