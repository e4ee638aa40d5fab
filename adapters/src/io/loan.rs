//! A stream that its worker lends to a library, and gets back.
//!
//! Some libraries want a stream to be `Send`: hyper moves an upgraded connection to the task that
//! awaits the upgrade. A stream stays on its worker. So it is in memory that a task of the worker
//! shares with the borrower. On another thread the borrower gets errors. When it is dropped,
//! wherever that is, the stream is closed on its worker, and the task ends. When the task is
//! dropped first, at the deadline of a shutdown, the borrower's reads and writes fail.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use futures_channel::oneshot;
use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};
use send_wrapper::SendWrapper;

use super::stream_io::{Io, impl_write};

/// Makes the two sides of a loan.
pub(crate) fn lend<S>(stream: S) -> (Lender<S>, SendIo<S>) {
    let stream = RefCell::new(Some(Io::new(stream)));
    let shared = Rc::new(Shared { stream, closed: Cell::default(), waiting: RefCell::default() });
    let (home, returned) = oneshot::channel();
    let borrowed = SendIo { loan: Some((SendWrapper::new(Rc::clone(&shared)), home)) };
    (Lender { shared, returned }, borrowed)
}

struct Shared<S> {
    /// None after the lender has taken it back.
    stream: RefCell<Option<Io<S>>>,
    /// The side that writes was closed, without an error.
    closed: Cell<bool>,
    /// Who waits to read, and who to write.
    waiting: RefCell<[Option<Waker>; 2]>,
}

const READING: usize = 0;
const WRITING: usize = 1;

pub(crate) struct Lender<S> {
    shared: Rc<Shared<S>>,
    returned: oneshot::Receiver<SendWrapper<Rc<Shared<S>>>>,
}

impl<S> Lender<S> {
    /// Waits until the borrower is dropped, and gives its stream back if the borrower has closed
    /// it. Otherwise the stream is dropped: an answer that was broken off must not look complete,
    /// as a close makes it.
    pub(crate) async fn returned(mut self) -> Option<S> {
        // Dropped here, on the stream's worker.
        let _ = (&mut self.returned).await;
        let stream = self.shared.stream.borrow_mut().take();
        stream.filter(|_| self.shared.closed.get()).map(Io::into_inner)
    }
}

impl<S> Drop for Lender<S> {
    fn drop(&mut self) {
        // The borrower may give its share back at this moment. If it has, the share is dropped
        // here, on its worker; if not, the borrower sees that nobody takes it.
        self.returned.close();
        let _ = self.returned.try_recv();
        let stream = self.shared.stream.borrow_mut().take();
        drop(stream);
        let waiting = mem::take(&mut *self.shared.waiting.borrow_mut());
        waiting.into_iter().flatten().for_each(Waker::wake);
    }
}

type Loan<S> = (SendWrapper<Rc<Shared<S>>>, oneshot::Sender<SendWrapper<Rc<Shared<S>>>>);

/// A stream of this worker that is `Send`, for libraries that ask for it, with the I/O traits of
/// hyper and tokio, and the one to write of futures-io.
///
/// It may be moved to another thread and dropped there; then it is closed on its worker. It is read
/// and written on its worker only: elsewhere it gives errors.
pub struct SendIo<S> {
    /// None only while it is dropped.
    loan: Option<Loan<S>>,
}

impl<S: 'static> SendIo<S> {
    /// Makes a stream `Send`. A small task of this worker keeps it, until it is dropped.
    pub fn new(stream: S) -> Self {
        let (lender, borrowed) = lend(stream);
        drop(runtime::spawn(lender.returned()));
        borrowed
    }
}

impl<S> Drop for SendIo<S> {
    fn drop(&mut self) {
        let Some((shared, home)) = self.loan.take() else { return };
        if let Err(shared) = home.send(shared)
            && !shared.valid()
        {
            // The lender is gone and has closed the stream. What remains is a few bytes of another
            // thread.
            mem::forget(shared);
        }
    }
}

impl<S: Unpin> SendIo<S> {
    /// Polls the stream, if this is its worker and the lender has not taken it back.
    fn poll_stream<T>(
        &self,
        context: &mut Context<'_>,
        direction: usize,
        poll: impl FnOnce(Pin<&mut Io<S>>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let Some((shared, _)) = self.loan.as_ref().filter(|(shared, _)| shared.valid()) else {
            return Poll::Ready(Err(io::Error::other(
                "a stream was used on another thread than that of its worker: spawn the task that uses it on the worker that has \
                 opened it (runtime::spawn), or move it there by runtime::spawn_on",
            )));
        };
        let mut stream = shared.stream.borrow_mut();
        let Some(stream) = stream.as_mut() else {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "the server has shut down and closed the connection",
            )));
        };
        let result = poll(Pin::new(stream), context);
        if result.is_pending() {
            let waiting = &mut shared.waiting.borrow_mut()[direction];
            match waiting {
                Some(waker) => waker.clone_from(context.waker()),
                None => *waiting = Some(context.waker().clone()),
            }
        }
        result
    }
}

impl<S: AsyncBufRead + AsyncRead + Unpin> ::hyper::rt::Read for SendIo<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ::hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_stream(context, READING, |stream, context| {
            ::hyper::rt::Read::poll_read(stream, context, buffer)
        })
    }
}

impl<S: AsyncBufRead + AsyncRead + Unpin> tokio::io::AsyncRead for SendIo<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_stream(context, READING, |stream, context| {
            tokio::io::AsyncRead::poll_read(stream, context, buffer)
        })
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for SendIo<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_stream(context, WRITING, |stream, context| AsyncWrite::poll_write(stream, context, buffer))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_stream(context, WRITING, |stream, context| {
            AsyncWrite::poll_write_vectored(stream, context, buffers)
        })
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_stream(context, WRITING, AsyncWrite::poll_flush)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = self.poll_stream(context, WRITING, AsyncWrite::poll_close);
        if let (Poll::Ready(Ok(())), Some((shared, _))) = (&ended, &self.loan) {
            shared.closed.set(true);
        }
        ended
    }
}

impl_write!([S: AsyncWrite + Unpin] SendIo<S>, ::hyper::rt::Write);
impl_write!([S: AsyncWrite + Unpin] SendIo<S>, tokio::io::AsyncWrite);

impl<S> std::fmt::Debug for SendIo<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendIo").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::io::Cursor;
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[runtime::test]
    async fn only_a_stream_that_the_borrower_has_closed_comes_back() {
        let (lender, mut borrowed) = lend(Cursor::new(Vec::new()));
        borrowed.write_all(b"whole").await.unwrap();
        AsyncWriteExt::shutdown(&mut borrowed).await.unwrap();
        drop(borrowed);
        assert_eq!(lender.returned().await.unwrap().into_inner(), b"whole");

        let (lender, mut borrowed) = lend(Cursor::new(Vec::new()));
        borrowed.write_all(b"half").await.unwrap();
        drop(borrowed);
        assert!(lender.returned().await.is_none());
    }
}
