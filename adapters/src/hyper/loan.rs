//! A stream that its connection's task lends to hyper, and gets back.
//!
//! hyper moves an upgraded connection to whoever asked for it and therefore wants `Send`; a stream stays on its
//! worker. So the stream is in memory that the task shares with the borrower. On another thread the borrower gets
//! errors. When it is dropped, wherever that is, the stream is closed on its worker, and the task ends. When the
//! task is dropped first, at the deadline of a shutdown, the borrower's reads and writes fail.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use futures_channel::oneshot;
use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};
use send_wrapper::SendWrapper;

use crate::io::Io;

/// Makes the two sides of a loan.
pub(super) fn lend<S>(stream: S) -> (Lender<S>, Borrowed<S>) {
    let shared = Rc::new(Shared { stream: RefCell::new(Some(Io::new(stream))), waiting: RefCell::default() });
    let (home, returned) = oneshot::channel();
    let borrowed = Borrowed { loan: Some((SendWrapper::new(Rc::clone(&shared)), home)) };
    (Lender { shared, returned }, borrowed)
}

struct Shared<S> {
    /// None after the lender has taken it back.
    stream: RefCell<Option<Io<S>>>,
    /// Who waits to read, and who to write.
    waiting: RefCell<[Option<Waker>; 2]>,
}

const READING: usize = 0;
const WRITING: usize = 1;

/// The connection's task's side.
pub(super) struct Lender<S> {
    shared: Rc<Shared<S>>,
    returned: oneshot::Receiver<SendWrapper<Rc<Shared<S>>>>,
}

impl<S> Lender<S> {
    /// Waits until the borrower is dropped.
    pub(super) async fn returned(mut self) {
        // Dropped here, on the stream's worker.
        let _ = (&mut self.returned).await;
    }
}

impl<S> Drop for Lender<S> {
    fn drop(&mut self) {
        let stream = self.shared.stream.borrow_mut().take();
        drop(stream);
        let waiting = mem::take(&mut *self.shared.waiting.borrow_mut());
        waiting.into_iter().flatten().for_each(Waker::wake);
    }
}

type Loan<S> = (SendWrapper<Rc<Shared<S>>>, oneshot::Sender<SendWrapper<Rc<Shared<S>>>>);

/// hyper's side.
pub(super) struct Borrowed<S> {
    /// None only while it is dropped.
    loan: Option<Loan<S>>,
}

impl<S> Drop for Borrowed<S> {
    fn drop(&mut self) {
        let Some((shared, home)) = self.loan.take() else { return };
        if let Err(shared) = home.send(shared)
            && !shared.valid()
        {
            // The lender is gone and has closed the stream. What remains is a few bytes of another thread.
            mem::forget(shared);
        }
    }
}

impl<S: Unpin> Borrowed<S> {
    /// Polls the stream, if this is its worker and the lender has not taken it back.
    fn poll_stream<T>(
        &self,
        context: &mut Context<'_>,
        direction: usize,
        poll: impl FnOnce(Pin<&mut Io<S>>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let Some((shared, _)) = self.loan.as_ref().filter(|(shared, _)| shared.valid()) else {
            return Poll::Ready(Err(io::Error::other(
                "an upgraded connection was used on another thread; use it in a task of its own worker (runtime::spawn)",
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

impl<S: AsyncBufRead + AsyncRead + Unpin> ::hyper::rt::Read for Borrowed<S> {
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

impl<S: AsyncWrite + Unpin> ::hyper::rt::Write for Borrowed<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_stream(context, WRITING, |stream, context| {
            ::hyper::rt::Write::poll_write(stream, context, buffer)
        })
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_stream(context, WRITING, ::hyper::rt::Write::poll_flush)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_stream(context, WRITING, ::hyper::rt::Write::poll_shutdown)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_stream(context, WRITING, |stream, context| {
            ::hyper::rt::Write::poll_write_vectored(stream, context, buffers)
        })
    }
}

impl<S> std::fmt::Debug for Borrowed<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Borrowed").finish_non_exhaustive()
    }
}
