//! Moves bytes between a connection and its session.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use futures_util::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt};

use super::list::ConnectionInfo;
use super::reply_buffers;
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
pub async fn serve(
    reader: impl AsyncBufRead + Unpin,
    writer: impl AsyncWrite + Unpin,
    context: &Arc<ServerContext>,
    connection: &ConnectionInfo,
) -> io::Result<()> {
    let serving = serve_requests(reader, writer, Arc::clone(context), connection);
    match context.config.has_time_limits() {
        false => serving.await,
        // Boxed, so that connections without time limits do not reserve memory for a timer.
        true => Box::pin(with_time_limits(serving, context, connection)).await,
    }
}

/// Serves a connection until the client closes it.
async fn serve_requests(
    mut reader: impl AsyncBufRead + Unpin,
    mut writer: impl AsyncWrite + Unpin,
    context: Arc<ServerContext>,
    connection: &ConnectionInfo,
) -> io::Result<()> {
    let counters = context.counters.worker(runtime::current_worker());
    let mut session = Session::new(&context, counters);
    // Input that does not form a complete request yet.
    let mut incomplete: Vec<u8> = Vec::new();
    let mut incomplete_charge = BufferCharge::default();
    loop {
        let mut waited = false;
        // A large value is read directly into its memory.
        if incomplete.is_empty()
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
            counters.bytes_read.add(length as u64);
            begin_turn(&mut session, waited).await;
            session.lend_buffer(reply_buffers::take());
            session.value_bytes_received(length);
            record_activity(&context, connection, &session);
            send_replies(&mut session, &context, connection, &mut writer).await?;
            reply_buffers::give_back(session.take_buffer());
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
        counters.bytes_read.add(length as u64);
        session.lend_buffer(reply_buffers::take());
        let open = if incomplete.is_empty() {
            let (used, open) = execute(&mut session, &context, connection, chunk, &mut writer).await?;
            incomplete.extend_from_slice(&chunk[used..]);
            open
        } else {
            incomplete.extend_from_slice(chunk);
            if incomplete_charge.set(&context, incomplete.capacity(), MAX_FREE_INPUT).is_err() {
                counters.read_no_memory.add(1);
                return Err(no_memory("the server has no memory for the client's long line"));
            }
            let (used, open) = execute(&mut session, &context, connection, &incomplete, &mut writer).await?;
            incomplete.drain(..used);
            if incomplete.is_empty() {
                incomplete = Vec::new();
                incomplete_charge = BufferCharge::default();
            }
            open
        };
        reader.consume_unpin(length);
        record_activity(&context, connection, &session);
        send_replies(&mut session, &context, connection, &mut writer).await?;
        reply_buffers::give_back(session.take_buffer());
        if !open {
            return writer.close().await;
        }
    }
}

fn record_activity(context: &ServerContext, connection: &ConnectionInfo, session: &Session<'_>) {
    record_progress(context, connection);
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
async fn execute(
    session: &mut Session<'_>,
    context: &ServerContext,
    connection: &ConnectionInfo,
    input: &[u8],
    writer: &mut (impl AsyncWrite + Unpin),
) -> io::Result<(usize, bool)> {
    let mut used = 0;
    loop {
        let (more, step) = session.feed(&input[used..]);
        used += more;
        // Not only at the end: a client may have authenticated before a reply that it takes a long time to read.
        record_activity(context, connection, session);
        match step {
            SessionStep::NeedInput => return Ok((used, true)),
            SessionStep::Close => return Ok((used, false)),
            SessionStep::Send => {
                send_replies(session, context, connection, writer).await?;
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

async fn send_replies(
    session: &mut Session<'_>,
    context: &ServerContext,
    connection: &ConnectionInfo,
    writer: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    while session.has_replies() {
        let mut buffer = session.take_buffer();
        let mut sent = buffer.len();
        write_all(writer, &buffer, buffer.capacity(), context, connection).await?;
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
            write_all(writer, large.bytes(), 0, context, connection).await?;
        }
        session.count_sent(sent);
    }
    if context.tls().is_some() {
        // TLS may still buffer some of it.
        writer.flush().await?;
    }
    Ok(())
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
