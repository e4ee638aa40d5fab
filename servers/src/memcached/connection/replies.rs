//! Sends replies, and counts the memory that they take while the client does not read them.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::{AsyncWrite, AsyncWriteExt};

use super::time_limits::record_progress;
use crate::memcached::context::ServerContext;
use crate::memcached::session::{BufferCharge, FREE_BUFFER, Session};
use crate::memcached::stats::connections::ConnectionInfo;
use crate::memcached::store::LargeValue;

/// What a ring holds of a connection's unsent bytes, at most. TLS holds as much before that.
const MOST_HELD: usize = 64 << 10;

/// How often a client that does not read a value is looked at.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Where a connection's replies go. A ring, and TLS, accept bytes up to a limit and send them
/// later; a flush says when. So they are counted here: who has more than little unsent is not
/// served until that is sent, and counts against the store's limit.
pub struct Replies<'a, W> {
    writer: W,
    context: &'a ServerContext,
    connection: &'a ConnectionInfo,
    /// Bytes that the writer has accepted, and may still hold.
    held: usize,
}

impl<'a, W: AsyncWrite + Unpin> Replies<'a, W> {
    pub fn new(writer: W, context: &'a ServerContext, connection: &'a ConnectionInfo) -> Self {
        Self { writer, context, connection, held: 0 }
    }

    /// Without waiting: mostly all is sent when the next request comes.
    pub async fn note_what_is_sent(&mut self) {
        if self.held > 0 {
            poll_fn(|task| {
                self.update_held(task);
                Poll::Ready(())
            })
            .await;
        }
    }

    pub async fn close(&mut self) -> io::Result<()> {
        self.writer.close().await
    }

    /// An error comes again with the next write.
    fn update_held(&mut self, task: &mut Context<'_>) {
        if Pin::new(&mut self.writer).poll_flush(task).is_ready() {
            self.held = 0;
        }
    }

    /// Sends a session's replies. Not an async function, whose future would be larger.
    #[expect(clippy::manual_async_fn, reason = "the future of an async function holds its arguments twice")]
    pub fn send(&mut self, session: &mut Session<'_>) -> impl Future<Output = io::Result<()>> {
        async move {
            while session.has_replies() {
                let mut buffer = session.take_buffer();
                let mut sent = buffer.len();
                self.write_all(&buffer, buffer.capacity(), None).await?;
                buffer.clear();
                if buffer.capacity() <= FREE_BUFFER || !session.has_replies() {
                    session.lend_buffer(buffer);
                } else {
                    // The large value that follows may take long.
                    drop(buffer);
                }
                if let Some(large) = session.take_large_value() {
                    sent += large.bytes().len();
                    // The store counts large values itself.
                    self.write_all(large.bytes(), 0, Some(&large)).await?;
                }
                session.counters.bytes_written.add(sent as u64);
            }
            // TLS sends nothing by itself.
            if self.held > FREE_BUFFER || self.context.tls.is_some() {
                self.flush(session.replies.capacity()).await?;
            }
            Ok(())
        }
    }

    /// Writes all bytes. A client that takes some of them is not idle. While it must wait, a buffer
    /// of `capacity` bytes, and what the writer holds, count against the store's limit. A client that
    /// does not read a value which was replaced meanwhile may be disconnected.
    fn write_all(
        &mut self,
        mut bytes: &[u8],
        capacity: usize,
        large: Option<&LargeValue>,
    ) -> impl Future<Output = io::Result<()>> {
        let (mut charge, mut next_check) = (BufferCharge::default(), None);
        poll_fn(move |task| {
            while !bytes.is_empty() {
                let polled = Pin::new(&mut self.writer).poll_write(task, bytes);
                self.connection.stalled.store(polled.is_pending());
                let Poll::Ready(written) = polled? else {
                    self.update_held(task);
                    self.count(&mut charge, capacity)?;
                    return match large {
                        Some(large) => self.poll_replaced(large, &mut next_check, task).map(Err),
                        None => Poll::Pending,
                    };
                };
                if written == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                bytes = &bytes[written..];
                let most = if self.context.tls.is_some() { 2 * MOST_HELD } else { MOST_HELD };
                self.held = most.min(self.held + written);
                record_progress(self.context, self.connection);
            }
            Poll::Ready(Ok(()))
        })
    }

    /// Waits until everything is sent, as [`Replies::write_all`].
    fn flush(&mut self, capacity: usize) -> impl Future<Output = io::Result<()>> {
        let mut charge = BufferCharge::default();
        poll_fn(move |task| {
            let polled = Pin::new(&mut self.writer).poll_flush(task);
            self.connection.stalled.store(polled.is_pending());
            match polled {
                Poll::Pending => self.count(&mut charge, capacity)?,
                Poll::Ready(_) => {
                    self.held = 0;
                    record_progress(self.context, self.connection);
                }
            }
            polled
        })
    }

    /// Ready when the memory of a value that the client does not read is needed. Boxed, as few
    /// clients are waited for.
    fn poll_replaced(
        &self,
        value: &LargeValue,
        next_check: &mut Option<Box<runtime::Sleep>>,
        task: &mut Context<'_>,
    ) -> Poll<io::Error> {
        loop {
            let sleep = next_check.get_or_insert_with(|| Box::new(runtime::sleep(CHECK_INTERVAL)));
            ready!(Pin::new(sleep).poll(task));
            *next_check = None;
            if value.is_replaced() && self.context.store.shards.memory.has_too_many_replaced() {
                let message = "the client does not read a value that was replaced, whose memory is needed";
                return Poll::Ready(no_memory(message));
            }
        }
    }

    fn count(&self, charge: &mut BufferCharge, capacity: usize) -> io::Result<()> {
        charge.set(self.context, capacity + self.held).map_err(|_| {
            self.context.counters.worker(runtime::current_worker()).reply_no_memory.add(1);
            no_memory("the server has no memory for replies that the client does not read")
        })
    }
}

pub fn no_memory(message: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, message)
}
