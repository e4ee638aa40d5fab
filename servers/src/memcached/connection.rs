//! A session on a socket.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt};

use super::session::{Session, Step};
use super::shared::{Place, Shared};

/// Room for answers that a buffer keeps while nobody uses it.
const KEEP: usize = 128 << 10;
/// How many such buffers a thread keeps.
const KEPT: usize = 16;
/// A client has so long to say who it is, whatever it sends meanwhile.
const UNKNOWN_FOR: Duration = Duration::from_secs(10);
/// How often that, and how long it was idle, is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Less than this is not worth reading by itself into its final place.
const LEAST_DIRECT: usize = 16 << 10;

thread_local! {
    /// Buffers for answers, lent to connections while they answer: an idle one has none.
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

fn take_buffer() -> Vec<u8> {
    BUFFERS.try_with(|buffers| buffers.borrow_mut().pop()).ok().flatten().unwrap_or_default()
}

fn give_back_buffer(mut buffer: Vec<u8>) {
    if buffer.capacity() > KEEP || buffer.capacity() == 0 {
        return;
    }
    buffer.clear();
    // While a thread ends its buffers may be gone already.
    let _ = BUFFERS.try_with(|buffers| {
        let mut buffers = buffers.borrow_mut();
        if buffers.len() < KEPT {
            buffers.push(buffer);
        }
    });
}

/// Serves a connection until the client closes it, or has taken too long where there is a limit.
pub async fn serve(
    reader: impl AsyncBufRead + Unpin,
    writer: impl AsyncWrite + Unpin,
    shared: &Arc<Shared>,
    place: &Place,
) -> io::Result<()> {
    let running = run(reader, writer, Arc::clone(shared), place);
    match shared.settings.watches() {
        false => running.await,
        // By itself, or each connection without a limit would keep room for its timer.
        true => Box::pin(watched(running, shared, place)).await,
    }
}

/// Serves a connection until the client closes it.
async fn run(
    mut reader: impl AsyncBufRead + Unpin,
    mut writer: impl AsyncWrite + Unpin,
    shared: Arc<Shared>,
    place: &Place,
) -> io::Result<()> {
    let stats = shared.stats.worker(runtime::current_worker());
    let mut session = Session::new(&shared, stats);
    let mut carry: Vec<u8> = Vec::new();
    loop {
        let mut waited = false;
        // A large value goes where it stays.
        if carry.is_empty()
            && let Some(room) = session.room().filter(|room| room.len() >= LEAST_DIRECT)
        {
            let reading = poll_fn(|context| {
                let polled = Pin::new(&mut reader).poll_read(context, room);
                waited |= polled.is_pending();
                polled
            });
            let length = reading.await?;
            if length == 0 {
                return Ok(());
            }
            stats.bytes_read.add(length as u64);
            take_turn(&mut session, waited).await;
            session.lend_buffer(take_buffer());
            session.received(length);
            place.seen(&session);
            send(&mut session, &shared, &mut writer).await?;
            give_back_buffer(session.take_buffer());
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
        take_turn(&mut session, waited).await;
        // At once: it is there.
        let chunk = reader.fill_buf().await?;
        stats.bytes_read.add(length as u64);
        session.lend_buffer(take_buffer());
        let open = if carry.is_empty() {
            let (used, open) = answer(&mut session, &shared, chunk, &mut writer).await?;
            carry.extend_from_slice(&chunk[used..]);
            open
        } else {
            carry.extend_from_slice(chunk);
            let (used, open) = answer(&mut session, &shared, &carry, &mut writer).await?;
            carry.drain(..used);
            if carry.is_empty() {
                carry = Vec::new();
            }
            open
        };
        reader.consume_unpin(length);
        place.seen(&session);
        send(&mut session, &shared, &mut writer).await?;
        give_back_buffer(session.take_buffer());
        if !open {
            return writer.close().await;
        }
    }
}

/// A client whose next bytes are there already has others wait for it, unless it gives them a turn.
async fn take_turn(session: &mut Session<'_>, waited: bool) {
    if waited {
        session.waited();
    } else if session.spend_turn() {
        runtime::yield_now().await;
        session.waited();
    }
    session.tick();
}

/// Serves a connection whose client is not waited for endlessly: until it has said who it is, and where
/// there is a limit for idle ones.
async fn watched(
    running: impl Future<Output = io::Result<()>>,
    shared: &Shared,
    place: &Place,
) -> io::Result<()> {
    let mut running = std::pin::pin!(running);
    let start = Instant::now();
    loop {
        match runtime::timeout(LOOK_EVERY, running.as_mut()).await {
            Ok(result) => return result,
            Err(_) => {
                let unknown = !place.is_trusted() && start.elapsed() >= UNKNOWN_FOR;
                if unknown || place.is_idle() {
                    shared.stats.worker(runtime::current_worker()).idle_kicks.add(1);
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "the client took too long"));
                }
            }
        }
    }
}

/// Answers all that is whole in `input`; returns how much that was, and whether to go on.
async fn answer(
    session: &mut Session<'_>,
    shared: &Shared,
    input: &[u8],
    writer: &mut (impl AsyncWrite + Unpin),
) -> io::Result<(usize, bool)> {
    let mut used = 0;
    loop {
        let (more, step) = session.feed(&input[used..]);
        used += more;
        match step {
            Step::More => return Ok((used, true)),
            Step::Close => return Ok((used, false)),
            Step::Send => {
                send(session, shared, writer).await?;
                runtime::yield_now().await;
                session.tick();
            }
            Step::Yield => {
                session.count_yield();
                runtime::yield_now().await;
                session.tick();
            }
        }
    }
}

async fn send(
    session: &mut Session<'_>,
    shared: &Shared,
    writer: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    while session.has_answers() {
        let mut buffer = session.take_buffer();
        let mut sent = buffer.len();
        writer.write_all(&buffer).await?;
        buffer.clear();
        session.lend_buffer(buffer);
        if let Some(large) = session.take_large() {
            sent += large.bytes().len();
            writer.write_all(large.bytes()).await?;
        }
        session.count_sent(sent);
    }
    if shared.tls_is_on() {
        // What encrypts may still hold some of it.
        writer.flush().await?;
    }
    Ok(())
}
