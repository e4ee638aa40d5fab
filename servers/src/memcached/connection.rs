//! A session on a socket.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::server::{Place, Shared};
use super::session::{Session, Step};

/// Room for answers that a buffer keeps while nobody uses it.
const KEEP: usize = 128 << 10;
/// How many such buffers a thread keeps.
const KEPT: usize = 16;
/// A client has so long to say who it is.
const UNKNOWN_FOR: Duration = Duration::from_secs(10);
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

/// Serves a connection until the client closes it.
pub async fn run(
    mut reader: impl AsyncBufRead + Unpin,
    mut writer: impl AsyncWrite + Unpin,
    shared: Arc<Shared>,
    place: &Place,
) -> io::Result<()> {
    let stats = shared.stats.worker(runtime::current_worker());
    let mut session = Session::new(&shared, stats);
    let mut carry: Vec<u8> = Vec::new();
    let patience = Patience::new(&shared);
    loop {
        // A large value goes where it stays.
        if carry.is_empty()
            && let Some(room) = session.room().filter(|room| room.len() >= LEAST_DIRECT)
        {
            let mut waited = false;
            let length = patience.with(true, noting(&mut waited, reader.read(room))).await?;
            if length == 0 {
                return Ok(());
            }
            stats.bytes_read.add(length as u64);
            take_turn(&mut session, waited).await;
            session.lend_buffer(take_buffer());
            session.received(length);
            patience.with(true, send(&mut session, &shared, &mut writer)).await?;
            give_back_buffer(session.take_buffer());
            place.seen(session.now(), session.is_receiving());
            continue;
        }
        let mut waited = false;
        let trusted = session.is_trusted();
        let filling =
            poll_fn(|context| Pin::new(&mut reader).poll_fill_buf(context).map_ok(<[u8]>::is_empty));
        if patience.with(trusted, noting(&mut waited, filling)).await? {
            return Ok(());
        }
        take_turn(&mut session, waited).await;
        // At once: it is there.
        let chunk = reader.fill_buf().await?;
        let length = chunk.len();
        stats.bytes_read.add(length as u64);
        session.lend_buffer(take_buffer());
        let open = if carry.is_empty() {
            let answering = answer(&mut session, &shared, chunk, &mut writer);
            let (used, open) = patience.with(trusted, answering).await?;
            carry.extend_from_slice(&chunk[used..]);
            open
        } else {
            carry.extend_from_slice(chunk);
            let answering = answer(&mut session, &shared, &carry, &mut writer);
            let (used, open) = patience.with(trusted, answering).await?;
            carry.drain(..used);
            if carry.is_empty() {
                carry = Vec::new();
            }
            open
        };
        reader.consume_unpin(length);
        place.seen(session.now(), session.is_receiving());
        patience.with(trusted, send(&mut session, &shared, &mut writer)).await?;
        give_back_buffer(session.take_buffer());
        if !open {
            return writer.close().await;
        }
    }
}

/// Notes whether a future had to wait.
async fn noting<F: Future>(waited: &mut bool, future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    poll_fn(|context| {
        let polled = future.as_mut().poll(context);
        *waited |= polled.is_pending();
        polled
    })
    .await
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

/// How long a client is waited for.
struct Patience<'a> {
    shared: &'a Shared,
    /// When a client that has not said who it is has to go, whatever it sends meanwhile.
    unknown_until: Instant,
}

impl<'a> Patience<'a> {
    fn new(shared: &'a Shared) -> Self {
        Self { shared, unknown_until: Instant::now() + UNKNOWN_FOR }
    }

    async fn with<T>(&self, trusted: bool, waiting: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let limit = match (trusted, self.shared.settings.idle_timeout) {
            (true, None) => return waiting.await,
            (true, Some(limit)) => limit,
            (false, idle) => {
                let left = self.unknown_until.saturating_duration_since(Instant::now());
                idle.map_or(left, |idle| idle.min(left))
            }
        };
        match runtime::timeout(limit, waiting).await {
            Ok(result) => result,
            Err(_) => {
                self.shared.stats.worker(runtime::current_worker()).idle_kicks.add(1);
                Err(io::Error::new(io::ErrorKind::TimedOut, "the client took too long"))
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
