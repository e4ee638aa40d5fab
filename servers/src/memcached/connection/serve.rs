//! Moves bytes between a connection and its session.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::Poll;

use futures_util::future::Either;
use futures_util::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt};

use super::list::ConnectionInfo;

use super::time_limits::with_time_limits;
use crate::memcached::context::ServerContext;
use crate::memcached::session::{BufferCharge, Session, SessionStep};

/// Values with less than this missing, in bytes, are not read directly into their memory.
const MIN_DIRECT_READ: usize = 16 << 10;
/// A buffer of replies up to this size, in bytes, doesn't count against the store's limit. Only values of more than 32 KiB,
/// and long statistics, make one larger.
const MAX_FREE_REPLIES: usize = 128 << 10;
/// An incomplete request up to this size, in bytes, doesn't count. Only a get of many keys is longer.
const MAX_FREE_INPUT: usize = 64 << 10;

/// Serves a connection until the client closes it, or a time limit passes.
pub fn serve(
    reader: impl AsyncBufRead + Unpin,
    writer: impl AsyncWrite + Unpin,
    context: &ServerContext,
    connection: &ConnectionInfo,
) -> impl Future<Output = io::Result<()>> {
    let serving = serve_requests(reader, writer, context, connection);
    match context.config.has_time_limits() {
        false => Either::Left(serving),
        // Boxed, so that connections without time limits do not reserve memory for a timer.
        true => Either::Right(Box::pin(with_time_limits(serving, context, connection))),
    }
}

/// Serves a connection until the client closes it.
fn serve_requests(
    mut reader: impl AsyncBufRead + Unpin,
    mut writer: impl AsyncWrite + Unpin,
    context: &ServerContext,
    connection: &ConnectionInfo,
) -> impl Future<Output = io::Result<()>> {
    let mut session = Session::new(context, context.counters.worker(runtime::current_worker()));
    // Boxed, as connections mostly wait between requests.
    let mut incomplete: Option<Box<IncompleteRequest>> = None;
    async move {
        loop {
            let mut waited = false;
            // A large value is read directly into its memory.
            if incomplete.is_none()
                && let Some(missing) =
                    session.missing_value_bytes().filter(|missing| missing.len() >= MIN_DIRECT_READ)
            {
                let reading = poll_fn(|context| {
                    let polled = Pin::new(&mut reader).poll_read(context, missing);
                    waited |= polled.is_pending();
                    polled
                });
                let length = reading.await?;
                if length == 0 {
                    return Ok(());
                }
                session.counters.bytes_read.add(length as u64);
                begin_turn(&mut session, waited).await;
                session.lend_buffer(take_pooled_buffer());
                session.value_bytes_received(length);
                record_activity(connection, &session);
                send_replies(&mut session, connection, &mut writer).await?;
                pool_buffer(session.take_buffer());
                continue;
            }
            let filling = poll_fn(|context| {
                let polled = Pin::new(&mut reader).poll_fill_buf(context);
                waited |= polled.is_pending();
                polled.map_ok(<[u8]>::len)
            });
            let length = filling.await?;
            if length == 0 {
                return Ok(());
            }
            begin_turn(&mut session, waited).await;
            // Ready at once: the buffer was filled above.
            let chunk = reader.fill_buf().await?;
            session.counters.bytes_read.add(length as u64);
            session.lend_buffer(take_pooled_buffer());
            let open = match &mut incomplete {
                None => {
                    let (used, open) = execute(&mut session, connection, chunk, &mut writer).await?;
                    if used < chunk.len() {
                        incomplete = Some(Box::new(IncompleteRequest::new(&chunk[used..])));
                    }
                    open
                }
                Some(request) => {
                    request.input.extend_from_slice(chunk);
                    request.charge(&session)?;
                    let (used, open) = execute(&mut session, connection, &request.input, &mut writer).await?;
                    request.input.drain(..used);
                    if request.input.is_empty() {
                        incomplete = None;
                    }
                    open
                }
            };
            reader.consume_unpin(length);
            record_activity(connection, &session);
            send_replies(&mut session, connection, &mut writer).await?;
            pool_buffer(session.take_buffer());
            if !open {
                return writer.close().await;
            }
        }
    }
}

/// Input that does not form a complete request yet.
struct IncompleteRequest {
    input: Vec<u8>,
    charge: BufferCharge,
}

impl IncompleteRequest {
    fn new(input: &[u8]) -> Self {
        Self { input: input.to_vec(), charge: BufferCharge::default() }
    }

    /// Counts a long request against the store's limit.
    fn charge(&mut self, session: &Session<'_>) -> io::Result<()> {
        self.charge.set(session.context, self.input.capacity(), MAX_FREE_INPUT).map_err(|_| {
            session.counters.read_no_memory.add(1);
            no_memory("the server has no memory for the client's long line")
        })
    }
}

fn record_activity(connection: &ConnectionInfo, session: &Session<'_>) {
    record_progress(session.context, connection);
    connection.update(session.now(), session.is_receiving_value(), session.is_authenticated());
}

/// Only for connections with time limits: it reads the kernel's clock, which the limits need (see `time_limits`).
fn record_progress(context: &ServerContext, connection: &ConnectionInfo) {
    if context.config.has_time_limits() {
        connection.record_progress(context.uptime());
    }
}

/// Lets other connections run if this client's input is always available at once and its turn is over.
async fn begin_turn(session: &mut Session<'_>, waited: bool) {
    if waited {
        session.renew_turn();
    } else if session.spend_turn() {
        runtime::yield_now().await;
        session.renew_turn();
    }
    session.update_clock();
}

/// Executes all complete requests in `input`. Returns how many bytes they took, and whether the connection
/// stays open.
#[expect(clippy::manual_async_fn, reason = "the future of an async function holds its arguments twice")]
fn execute(
    session: &mut Session<'_>,
    connection: &ConnectionInfo,
    input: &[u8],
    writer: &mut (impl AsyncWrite + Unpin),
) -> impl Future<Output = io::Result<(usize, bool)>> {
    async move {
        let mut used = 0;
        loop {
            let (more, step) = session.feed(&input[used..]);
            used += more;
            // Not only at the end: a client may have authenticated before a reply that it takes a long time to read.
            record_activity(connection, session);
            match step {
                SessionStep::NeedInput => return Ok((used, true)),
                SessionStep::Close => return Ok((used, false)),
                SessionStep::Send => {
                    send_replies(session, connection, writer).await?;
                    runtime::yield_now().await;
                    session.update_clock();
                }
                SessionStep::Yield => {
                    session.count_yield();
                    runtime::yield_now().await;
                    session.update_clock();
                }
            }
        }
    }
}

#[expect(clippy::manual_async_fn, reason = "the future of an async function holds its arguments twice")]
fn send_replies(
    session: &mut Session<'_>,
    connection: &ConnectionInfo,
    writer: &mut (impl AsyncWrite + Unpin),
) -> impl Future<Output = io::Result<()>> {
    async move {
        while session.has_replies() {
            let mut buffer = session.take_buffer();
            let mut sent = buffer.len();
            write_all(writer, &buffer, buffer.capacity(), session.context, connection).await?;
            if buffer.capacity() <= MAX_FREE_REPLIES || !session.has_replies() {
                buffer.clear();
                session.lend_buffer(buffer);
            } else {
                // The large value that follows may take long, and the buffer isn't counted meanwhile.
                drop(buffer);
            }
            if let Some(large) = session.take_large_value() {
                sent += large.bytes().len();
                // The store counts large values itself.
                write_all(writer, large.bytes(), 0, session.context, connection).await?;
            }
            session.count_sent(sent);
        }
        if session.context.tls().is_some() {
            // TLS may still buffer some of it.
            writer.flush().await?;
        }
        Ok(())
    }
}

/// Writes all bytes. A client that takes some of them is not idle. While it must wait, a buffer of `capacity` bytes counts
/// against the store's limit. Not an async function, whose future would be larger.
fn write_all<'a>(
    writer: &'a mut (impl AsyncWrite + Unpin),
    mut bytes: &'a [u8],
    capacity: usize,
    context: &'a ServerContext,
    connection: &'a ConnectionInfo,
) -> impl Future<Output = io::Result<()>> + 'a {
    let mut charge = BufferCharge::default();
    poll_fn(move |task| {
        while !bytes.is_empty() {
            let Poll::Ready(written) = Pin::new(&mut *writer).poll_write(task, bytes)? else {
                if charge.set(context, capacity, MAX_FREE_REPLIES).is_err() {
                    context.counters.worker(runtime::current_worker()).reply_no_memory.add(1);
                    let error = "the server has no memory for replies that the client does not read";
                    return Poll::Ready(Err(no_memory(error)));
                }
                return Poll::Pending;
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            bytes = &bytes[written..];
            record_progress(context, connection);
        }
        Poll::Ready(Ok(()))
    })
}

fn no_memory(message: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, message)
}

/// Larger buffers, in bytes, are freed instead of pooled.
const MAX_POOLED_CAPACITY: usize = 128 << 10;
/// Buffers that a thread's pool holds.
const MAX_POOLED: usize = 16;

thread_local! {
    static POOL: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Takes an empty buffer.
fn take_pooled_buffer() -> Vec<u8> {
    POOL.try_with(|pool| pool.borrow_mut().pop()).ok().flatten().unwrap_or_default()
}

/// Returns a buffer to the pool.
fn pool_buffer(mut buffer: Vec<u8>) {
    if buffer.capacity() > MAX_POOLED_CAPACITY || buffer.capacity() == 0 {
        return;
    }
    buffer.clear();
    // Fails while the thread exits and its pool is gone.
    let _ = POOL.try_with(|pool| {
        let mut pool = pool.borrow_mut();
        if pool.len() < MAX_POOLED {
            pool.push(buffer);
        }
    });
}
