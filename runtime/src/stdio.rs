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
use std::task::{Context, Poll, ready};

use futures_io::{AsyncRead, AsyncWrite};

use crate::fs::pool_call;

/// How much one call reads at most: as much as the standard library's buffer.
const READ_SIZE: usize = 8 << 10;

/// How much one call writes at most. The bytes are copied.
const WRITE_SIZE: usize = 64 << 10;

type Call<T> = Pin<Box<dyn Future<Output = io::Result<T>>>>;

/// The standard input of this process. For lines use `futures_util`'s `BufReader`.
///
/// A read that was dropped loses nothing: the next one returns its bytes. Dropping this value does,
/// as it may have read more than was asked for. So keep one, and don't read [`std::io::stdin`]
/// beside it.
pub struct Stdin {
    reading: Option<Call<Vec<u8>>>,
    bytes: Vec<u8>,
    /// How many of the bytes were returned.
    taken: usize,
}

/// The standard input, [`Stdin`].
pub fn stdin() -> Stdin {
    Stdin { reading: None, bytes: Vec::new(), taken: 0 }
}

fn read_some(mut bytes: Vec<u8>) -> io::Result<Vec<u8>> {
    bytes.resize(READ_SIZE, 0);
    loop {
        match io::stdin().read(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => {
                bytes.truncate(read?);
                return Ok(bytes);
            }
        }
    }
}

impl AsyncRead for Stdin {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let this = &mut *self;
        if this.taken == this.bytes.len() {
            let (emptied, taken) = (&mut this.bytes, &mut this.taken);
            let reading = this.reading.get_or_insert_with(|| {
                *taken = 0;
                let bytes = std::mem::take(emptied);
                Box::pin(pool_call(move || read_some(bytes)))
            });
            let read = ready!(reading.as_mut().poll(context));
            this.reading = None;
            this.bytes = read?;
        }
        let mut left = &this.bytes[this.taken..];
        let read = left.read(buffer)?;
        this.taken += read;
        Poll::Ready(Ok(read))
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
    writing: Option<Call<()>>,
    write: fn(&[u8]) -> io::Result<()>,
}

/// As tokio calls it.
pub type Stdout = Output;
/// As tokio calls it.
pub type Stderr = Output;

/// The process's standard output. [`Output`] says when a write reaches it.
pub fn stdout() -> Output {
    Output { writing: None, write: |bytes| write_all(io::stdout().lock(), bytes) }
}

/// The standard error output.
pub fn stderr() -> Output {
    Output { writing: None, write: |bytes| write_all(io::stderr().lock(), bytes) }
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
        ready!(self.as_mut().poll_flush(context))?;
        let bytes = bytes[..bytes.len().min(WRITE_SIZE)].to_vec();
        let (length, write) = (bytes.len(), self.write);
        self.writing = Some(Box::pin(pool_call(move || write(&bytes))));
        // A thread begins at the first poll.
        match self.poll_flush(context) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(length)),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(writing) = &mut self.writing else { return Poll::Ready(Ok(())) };
        let written = ready!(writing.as_mut().poll(context));
        self.writing = None;
        Poll::Ready(written)
    }

    /// As a flush: the descriptor stays open.
    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }
}

opaque_debug!(Output, "Output");
