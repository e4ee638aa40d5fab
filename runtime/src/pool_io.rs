//! Calls on the threads of blocking work, and the streams that are read and written by them.

use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use crate::handle::spawn_blocking;

/// How much one call writes at most, and reads at most for a file. The bytes are copied.
pub(crate) const MOST_AT_ONCE: usize = 64 << 10;

/// Runs a call on a thread of the pool. It is run also if the future is dropped before a thread has
/// begun it, because dropping the handle of a task detaches the task.
///
/// # Errors
/// Those of the call. `Other` if the runtime ends before the call has begun, or no thread can be
/// had.
pub(crate) async fn pool_call<T, F>(call: F) -> io::Result<T>
where
    F: FnOnce() -> io::Result<T> + Send + 'static,
    T: Send + 'static,
{
    let call = move || catch_unwind(AssertUnwindSafe(call));
    match spawn_blocking(call).await {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => resume_unwind(panic),
        // The call never ran: the runtime has ended, or no thread could be started.
        Err(error) => Err(io::Error::other(error.to_string())),
    }
}

/// A call that outlives the future of the operation that has begun it.
pub(crate) struct PendingCall<T>(Mutex<Pin<Box<dyn Future<Output = io::Result<T>> + Send>>>);

impl<T: Send + 'static> PendingCall<T> {
    /// The call begins with the first poll.
    pub(crate) fn new(call: impl FnOnce() -> io::Result<T> + Send + 'static) -> Self {
        // Never locked: it makes the stream `Sync`, which the future is not.
        Self(Mutex::new(Box::pin(pool_call(call))))
    }

    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut().poll(context)
    }
}

/// What threads read for a stream, one call at a time. Bytes that have come stay until they are
/// taken, also if the read that has asked for them was dropped.
#[derive(Default)]
pub(crate) struct Reading {
    call: Option<PendingCall<Vec<u8>>>,
    bytes: Vec<u8>,
    /// How many of the bytes were taken.
    taken: usize,
}

impl Reading {
    /// The bytes that were not taken yet. If there are none, `read` is called on a thread, with a
    /// buffer of `length` bytes. None at the end.
    pub(crate) fn poll_fill(
        &mut self,
        context: &mut Context<'_>,
        length: usize,
        read: impl Fn(&mut [u8]) -> io::Result<usize> + Send + 'static,
    ) -> Poll<io::Result<&[u8]>> {
        if self.taken == self.bytes.len() {
            let call = self.call.get_or_insert_with(|| {
                self.taken = 0;
                let bytes = std::mem::take(&mut self.bytes);
                PendingCall::new(move || fill(bytes, length, read))
            });
            let filled = ready!(call.poll(context));
            self.call = None;
            self.bytes = filled?;
        }
        Poll::Ready(Ok(&self.bytes[self.taken..]))
    }

    /// Takes bytes that [`Reading::poll_fill`] has returned, as many as there are. Returns how many.
    pub(crate) fn consume(&mut self, count: usize) -> usize {
        let count = count.min(self.bytes.len() - self.taken);
        self.taken += count;
        count
    }

    /// [`Reading::poll_fill`] into a buffer, and takes what has fitted.
    pub(crate) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
        length: usize,
        read: impl Fn(&mut [u8]) -> io::Result<usize> + Send + 'static,
    ) -> Poll<io::Result<usize>> {
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let bytes = ready!(self.poll_fill(context, length, read))?;
        let count = bytes.len().min(buffer.len());
        buffer[..count].copy_from_slice(&bytes[..count]);
        self.consume(count);
        Poll::Ready(Ok(count))
    }
}

fn fill(
    mut bytes: Vec<u8>,
    length: usize,
    read: impl Fn(&mut [u8]) -> io::Result<usize>,
) -> io::Result<Vec<u8>> {
    bytes.resize(length, 0);
    loop {
        match read(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => {
                bytes.truncate(read?);
                return Ok(bytes);
            }
        }
    }
}

/// What threads write for a stream, one call at a time.
#[derive(Default)]
pub(crate) struct Writing(Option<PendingCall<()>>);

impl Writing {
    /// Waits for the write before, returns its error if it had one, and has a thread call `write`
    /// with at most [`MOST_AT_ONCE`] bytes. Returns how many.
    pub(crate) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
        write: impl FnOnce(&[u8]) -> io::Result<()> + Send + 'static,
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_flush(context))?;
        let bytes = bytes[..bytes.len().min(MOST_AT_ONCE)].to_vec();
        let length = bytes.len();
        self.0 = Some(PendingCall::new(move || write(&bytes)));
        match self.poll_flush(context) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(length)),
        }
    }

    /// Whether the result of a write was not taken yet.
    pub(crate) fn is_pending(&self) -> bool {
        self.0.is_some()
    }

    /// Waits until everything is written, and returns the error of the last write once.
    pub(crate) fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(call) = &mut self.0 else { return Poll::Ready(Ok(())) };
        let written = ready!(call.poll(context));
        self.0 = None;
        Poll::Ready(written)
    }
}
