//! Moves bytes between a connection and its session.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;

use futures_util::future::Either;
use futures_util::io::BufReader;
use futures_util::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncWrite};
use net::ReadHalf;

use super::replies::{Replies, no_memory};
use super::time_limits::{record_progress, with_time_limits};
use crate::memcached::context::ServerContext;
use crate::memcached::session::{BufferCharge, Session, SessionStep};
use crate::memcached::stats::connections::ConnectionInfo;

/// Values with less than this missing, in bytes, are not read directly into their memory.
const MIN_DIRECT_READ: usize = 16 << 10;
/// With less of a value missing, in bytes, each piece wakes the task: a wait for more saves less
/// than its two system calls cost.
const MIN_MARK: usize = 32 << 10;
/// The most bytes to wait for. With more the value comes no cheaper, and later: nothing of it is
/// copied while the rest arrives.
const MAX_MARK: usize = 64 << 10;

/// What a client sends.
pub trait Input: AsyncBufRead + Unpin {
    /// Sets how many bytes have to be there before a task that waits for any is woken.
    fn wake_at(&self, _bytes: usize) {}
}

impl<K> Input for ReadHalf<'_, K> {
    fn wake_at(&self, bytes: usize) {
        // Without the mark a task is woken more often.
        let _ = self.set_receive_low_water(bytes);
    }
}

/// With TLS, and in tests.
impl<R: AsyncRead + Unpin> Input for BufReader<R> {}

/// Serves a connection until the client closes it, or a time limit passes.
pub fn serve<'a>(
    reader: impl Input,
    writer: impl AsyncWrite + Unpin,
    context: &'a ServerContext,
    connection: &'a ConnectionInfo,
) -> impl Future<Output = io::Result<()>> {
    let serving = serve_requests(reader, writer, context, connection);
    match context.config.has_time_limits() {
        false => Either::Left(serving),
        // Boxed, so that connections without time limits do not reserve memory for a timer.
        true => Either::Right(Box::pin(with_time_limits(serving, context, connection))),
    }
}

fn serve_requests<'a>(
    mut reader: impl Input,
    writer: impl AsyncWrite + Unpin,
    context: &'a ServerContext,
    connection: &'a ConnectionInfo,
) -> impl Future<Output = io::Result<()>> {
    let mut replies = Replies::new(writer, context, connection);
    let mut session = Session::new(context, context.counters.worker(runtime::current_worker()));
    // Boxed, as connections mostly wait between requests.
    let mut incomplete: Option<Box<IncompleteRequest>> = None;
    let mut mark = 1;
    async move {
        loop {
            // Of a large value's pieces only some wake the task. With time limits each is progress.
            let wanted = match session.missing_bytes() {
                missing @ MIN_MARK.. if !context.config.has_time_limits() => missing.min(MAX_MARK),
                _ => 1,
            };
            let mut waited = false;
            // A large value is read directly into its memory.
            let mut missing = session
                .missing_value_bytes()
                .filter(|missing| incomplete.is_none() && missing.len() >= MIN_DIRECT_READ);
            let is_direct = missing.is_some();
            let receiving = poll_fn(|context| {
                let polled = match &mut missing {
                    Some(missing) => Pin::new(&mut reader).poll_read(context, missing),
                    None => Pin::new(&mut reader).poll_fill_buf(context).map_ok(<[u8]>::len),
                };
                waited |= polled.is_pending();
                // Not before: what is there is read without a wait.
                if polled.is_pending() && wanted != std::mem::replace(&mut mark, wanted) {
                    reader.wake_at(wanted);
                }
                polled
            });
            let length = receiving.await?;
            if length == 0 {
                return Ok(());
            }
            begin_turn(&mut session, waited).await;
            replies.note_what_is_sent().await;
            session.counters.bytes_read.add(length as u64);
            let mut open = true;
            if is_direct {
                session.lend_buffer(take_pooled_buffer());
                session.value_bytes_received(length);
            } else {
                // Ready at once: the buffer was filled above.
                let chunk = reader.fill_buf().await?;
                session.lend_buffer(take_pooled_buffer());
                if let Some(request) = &mut incomplete {
                    request.add(chunk, &session)?;
                    // Not later: the client may not read its replies, and then this would hold the
                    // input twice.
                    reader.consume_unpin(length);
                    let used;
                    (used, open) = execute(&mut session, connection, &request.input, &mut replies).await?;
                    request.input.drain(..used);
                    incomplete.take_if(|request| request.input.is_empty());
                } else {
                    let used;
                    (used, open) = execute(&mut session, connection, chunk, &mut replies).await?;
                    if open && used < length {
                        incomplete.insert(Box::default()).add(&chunk[used..], &session)?;
                    }
                    reader.consume_unpin(length);
                }
            }
            record_activity(connection, &session);
            replies.send(&mut session).await?;
            pool_buffer(session.take_buffer());
            if !open {
                return replies.close().await;
            }
        }
    }
}

/// Input that does not form a complete request yet.
#[derive(Default)]
struct IncompleteRequest {
    input: Vec<u8>,
    charge: BufferCharge,
}

impl IncompleteRequest {
    /// Adds input. A long request counts against the store's limit.
    fn add(&mut self, input: &[u8], session: &Session<'_>) -> io::Result<()> {
        self.input.extend_from_slice(input);
        self.charge.set(session.context, self.input.capacity()).map_err(|_| {
            session.counters.read_no_memory.add(1);
            no_memory("the server has no memory for the client's long line")
        })
    }
}

fn record_activity(connection: &ConnectionInfo, session: &Session<'_>) {
    record_progress(session.context, connection);
    connection.last_request.store(session.now);
    connection.receiving_value.store(session.is_receiving_value());
    connection.authenticated.store(session.authenticated);
}

/// Lets other connections run if this client's input is always available at once and its turn is
/// over.
async fn begin_turn(session: &mut Session<'_>, waited: bool) {
    if waited {
        session.renew_turn();
    } else if session.spend_turn() {
        runtime::yield_now().await;
        session.renew_turn();
    }
    session.update_clock();
}

/// Executes all complete requests in `input`. Returns how many bytes they took, and whether the
/// connection stays open.
#[expect(clippy::manual_async_fn, reason = "the future of an async function holds its arguments twice")]
fn execute(
    session: &mut Session<'_>,
    connection: &ConnectionInfo,
    input: &[u8],
    replies: &mut Replies<'_, impl AsyncWrite + Unpin>,
) -> impl Future<Output = io::Result<(usize, bool)>> {
    async move {
        let mut used = 0;
        loop {
            let (more, step) = session.feed(&input[used..]);
            used += more;
            // Not only at the end: a client may have authenticated before a reply that it takes a
            // long time to read.
            record_activity(connection, session);
            match step {
                SessionStep::NeedInput => return Ok((used, true)),
                SessionStep::Close => return Ok((used, false)),
                SessionStep::Send | SessionStep::Yield => {
                    if step == SessionStep::Yield {
                        session.counters.conn_yields.add(1);
                    }
                    // A connection that yields holds no replies meanwhile, because all connections
                    // could.
                    replies.send(session).await?;
                    pool_buffer(session.take_buffer());
                    runtime::yield_now().await;
                    session.update_clock();
                    session.lend_buffer(take_pooled_buffer());
                }
            }
        }
    }
}

/// Larger buffers, in bytes, are freed instead of pooled.
const MAX_POOLED_CAPACITY: usize = 128 << 10;
/// Buffers that a thread's pool holds.
const MAX_POOLED: usize = 16;

thread_local! {
    static POOL: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

fn take_pooled_buffer() -> Vec<u8> {
    POOL.try_with(|pool| pool.borrow_mut().pop()).ok().flatten().unwrap_or_default()
}

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
