//! A stream that its worker lends to a library, and gets back.
//!
//! Some libraries want a stream to be `Send`: hyper moves an upgraded connection to the task that
//! awaits the upgrade. A stream stays on its worker. So it is in memory that a task of the worker
//! shares with the borrower. A borrower that is polled on another thread gives its share back, and
//! has a pipe from then on, which the task copies from and to. When it is dropped, wherever that
//! is, the stream is closed on its worker, and the task ends. When the task is dropped first, at
//! the deadline of a shutdown, the borrower's reads and writes fail.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use futures_channel::oneshot;
use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};
use send_wrapper::SendWrapper;

use super::relay::{Far, Near, closed_by_server, relay};
use super::stream_io::{Io, impl_write};

/// Makes the two sides of a loan.
pub(crate) fn lend<S>(stream: S) -> (Lender<S>, SendIo<S>) {
    let stream = RefCell::new(Some(Io::new(stream)));
    let shared = Rc::new(Shared { stream, closed: Cell::default(), waiting: RefCell::default() });
    let (home, returned) = oneshot::channel();
    let borrowed = SendIo { loan: Loan::Here(SendWrapper::new(Rc::clone(&shared)), home) };
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

/// The borrower's share. It is dropped on the stream's worker.
type Share<S> = SendWrapper<Rc<Shared<S>>>;

/// A borrower gives its share back when it is dropped, and when it is polled on another thread.
struct Returned<S> {
    share: Option<Share<S>>,
    relay: Option<Near>,
}

impl<S> Drop for Returned<S> {
    fn drop(&mut self) {
        // On another thread the lender is gone and has closed the stream: what remains is a few
        // bytes of the worker's.
        if self.share.as_ref().is_some_and(|share| !share.valid()) {
            mem::forget(self.share.take());
        }
    }
}

pub(crate) struct Lender<S> {
    shared: Rc<Shared<S>>,
    returned: oneshot::Receiver<Returned<S>>,
}

impl<S: AsyncBufRead + AsyncWrite + Unpin> Lender<S> {
    /// Waits until the borrower is dropped, and gives its stream back if the borrower has closed
    /// it. Otherwise the stream is dropped: an answer that was broken off must not look complete,
    /// as a close makes it.
    pub(crate) async fn returned(mut self) -> Option<S> {
        let returned = (&mut self.returned).await.ok();
        let mut stream = self.shared.stream.borrow_mut().take()?;
        let is_closed = match returned.and_then(|mut returned| returned.relay.take()) {
            Some(relay) => relay.run(&mut stream).await,
            None => self.shared.closed.get(),
        };
        is_closed.then(|| stream.into_inner())
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

/// A stream of this worker that is `Send`, for libraries that ask for it, with the I/O traits of
/// hyper and tokio, and the one to write of futures-io.
///
/// It may be moved to another thread, used and dropped there. What is read and written there goes
/// through a pipe to the stream's worker, of 64 KiB for each direction, and wakes the other thread:
/// some ten microseconds each time. Dropped anywhere, it is closed on its worker.
pub struct SendIo<S> {
    loan: Loan<S>,
}

enum Loan<S> {
    /// On the stream's worker.
    Here(Share<S>, oneshot::Sender<Returned<S>>),
    /// Since it was polled on another thread.
    Away(Io<Far>),
    /// The lender has taken the stream back, or this is dropped.
    Ended,
}

impl<S: AsyncBufRead + AsyncWrite + Unpin + 'static> SendIo<S> {
    /// Makes a stream `Send`. A small task of this worker keeps it, until it is dropped.
    pub fn new(stream: S) -> Self {
        // Who needs it may use tokio's timers, too, such as redis.
        #[cfg(feature = "tokio-context")]
        if let Err(error) = crate::tokio_context::enter() {
            tracing::warn!(%error, "there is no tokio context: tokio's thread could not be started");
        }
        let (lender, borrowed) = lend(stream);
        drop(runtime::spawn(lender.returned()));
        borrowed
    }
}

impl<S> Drop for SendIo<S> {
    fn drop(&mut self) {
        self.give_back(None);
    }
}

impl<S> SendIo<S> {
    /// Gives the share back to the lender, if it is here and there is a lender.
    fn give_back(&mut self, relay: Option<Near>) {
        let Loan::Here(share, home) = mem::replace(&mut self.loan, Loan::Ended) else { return };
        let _ = home.send(Returned { share: Some(share), relay });
    }

    /// The pipe to the stream's worker, if this is another thread, or was once.
    fn away(&mut self) -> Option<Pin<&mut Io<Far>>> {
        if let Loan::Here(share, _) = &self.loan
            && !share.valid()
        {
            let (far, near) = relay();
            self.give_back(Some(near));
            self.loan = Loan::Away(Io::new(far));
        }
        match &mut self.loan {
            Loan::Away(pipe) => Some(Pin::new(pipe)),
            _ => None,
        }
    }

    fn share(&self) -> Option<&Rc<Shared<S>>> {
        match &self.loan {
            Loan::Here(share, _) => Some(share),
            _ => None,
        }
    }
}

impl<S: Unpin> SendIo<S> {
    /// Polls the stream on its worker, if the lender has not taken it back.
    fn poll_here<T>(
        &self,
        context: &mut Context<'_>,
        direction: usize,
        poll: impl FnOnce(Pin<&mut Io<S>>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let shared = self.share().ok_or_else(closed_by_server)?;
        let mut stream = shared.stream.borrow_mut();
        let stream = stream.as_mut().ok_or_else(closed_by_server)?;
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
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ::hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(pipe) = self.away() {
            return ::hyper::rt::Read::poll_read(pipe, context, buffer);
        }
        self.poll_here(context, READING, |stream, context| {
            ::hyper::rt::Read::poll_read(stream, context, buffer)
        })
    }
}

impl<S: AsyncBufRead + AsyncRead + Unpin> tokio::io::AsyncRead for SendIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(pipe) = self.away() {
            return tokio::io::AsyncRead::poll_read(pipe, context, buffer);
        }
        self.poll_here(context, READING, |stream, context| {
            tokio::io::AsyncRead::poll_read(stream, context, buffer)
        })
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for SendIo<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Some(pipe) = self.away() {
            return AsyncWrite::poll_write(pipe, context, buffer);
        }
        self.poll_here(context, WRITING, |stream, context| AsyncWrite::poll_write(stream, context, buffer))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let Some(pipe) = self.away() {
            return AsyncWrite::poll_write_vectored(pipe, context, buffers);
        }
        self.poll_here(context, WRITING, |stream, context| {
            AsyncWrite::poll_write_vectored(stream, context, buffers)
        })
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(pipe) = self.away() {
            return AsyncWrite::poll_flush(pipe, context);
        }
        self.poll_here(context, WRITING, AsyncWrite::poll_flush)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(pipe) = self.away() {
            return pipe.poll_close(context);
        }
        let ended = self.poll_here(context, WRITING, AsyncWrite::poll_close);
        if let (Poll::Ready(Ok(())), Some(shared)) = (&ended, self.share()) {
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

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
    #[runtime::test(workers = 2)]
    async fn a_stream_is_read_and_written_on_another_worker_and_closed_on_its_own() {
        let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = Io::new(net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap());
        let mut borrowed = SendIo::new(listener.accept().await.unwrap().0);
        let large = vec![b'x'; 200_000];
        let echo = runtime::spawn_on(1, move || async move {
            let mut received = vec![0; large.len()];
            borrowed.read_exact(&mut received).await.unwrap();
            borrowed.write_all(&received).await.unwrap();
            // Half a close: it still reads.
            AsyncWriteExt::shutdown(&mut borrowed).await.unwrap();
            let mut rest = String::new();
            borrowed.read_to_string(&mut rest).await.unwrap();
            rest
        });
        let large = vec![b'x'; 200_000];
        client.write_all(&large).await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert!(answer == large);
        client.write_all(b"the rest").await.unwrap();
        AsyncWriteExt::shutdown(&mut client).await.unwrap();
        assert_eq!(echo.await.unwrap(), "the rest");
    }

    #[runtime::test(workers = 2)]
    async fn a_stream_that_is_dropped_on_another_worker_sends_what_was_written_and_ends() {
        for closes in [false, true] {
            let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
            let mut client = Io::new(net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap());
            let (lender, mut borrowed) = lend(listener.accept().await.unwrap().0);
            let used = runtime::spawn_on(1, move || async move {
                borrowed.write_all(b"last").await.unwrap();
                if closes {
                    AsyncWriteExt::shutdown(&mut borrowed).await.unwrap();
                }
            });
            assert_eq!(lender.returned().await.is_some(), closes);
            used.await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert_eq!(answer, "last");
        }
    }

    #[runtime::test(workers = 2)]
    async fn a_reset_is_an_error_on_another_worker_and_no_end() {
        let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut borrowed = SendIo::new(listener.accept().await.unwrap().0);
        let reads = runtime::spawn_on(1, move || async move { borrowed.read(&mut [0; 8]).await });
        rustix::net::sockopt::set_socket_linger(&client, Some(std::time::Duration::ZERO)).unwrap();
        drop(client);
        assert_eq!(reads.await.unwrap().unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }

    #[runtime::test(workers = 2)]
    async fn a_peer_that_never_reads_does_not_keep_a_stream_that_was_dropped_elsewhere() {
        let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (lender, mut borrowed) = lend(listener.accept().await.unwrap().0);
        let written = runtime::spawn_on(1, move || async move {
            // Until nothing more is taken for some time.
            let wait = std::time::Duration::from_millis(50);
            while runtime::timeout(wait, borrowed.write_all(&[0; 1 << 20])).await.is_ok() {}
        });
        assert!(lender.returned().await.is_none());
        written.await.unwrap();
    }

    #[runtime::test(workers = 2)]
    async fn a_stream_on_another_worker_ends_with_its_lender() {
        let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (lender, mut borrowed) = lend(listener.accept().await.unwrap().0);
        let lender = runtime::spawn(lender.returned());
        let reads = runtime::spawn_on(1, move || async move { borrowed.read(&mut [0; 8]).await });
        runtime::sleep(std::time::Duration::from_millis(20)).await;
        lender.abort();
        let error = reads.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    }
}
