//! Futures, streams and listeners that are dropped at random points lose no byte and leak no
//! descriptor.

use std::cell::Cell;
use std::future::Future;
use std::io::ErrorKind;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use futures_util::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use net::{TcpListener, TcpStream};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use tests_macros::isolated;

use crate::common::{local, open_descriptors, pair, poll_times, serve_echo};
use crate::drivers::{drivers, one_worker};

/// The number of rounds of the randomized tests; `DROPS` in the environment sets it.
fn drops() -> u32 {
    std::env::var("DROPS").ok().and_then(|drops| drops.parse().ok()).unwrap_or(10_000)
}

/// When a pending future is dropped.
#[derive(Clone, Copy)]
enum Patience {
    Time(Duration),
    /// After this many more polls, one in each turn of the worker.
    Polls(u32),
}

impl Patience {
    fn random(random: &mut SmallRng) -> Self {
        match random.random_range(0..4) {
            0 => Self::Time(Duration::from_micros(random.random_range(0..40))),
            _ => Self::Polls(random.random_range(0..3)),
        }
    }

    /// Awaits a future. `None` if it was dropped before it was ready.
    async fn of<F: Future>(self, future: F) -> Option<F::Output> {
        match self {
            Self::Time(limit) => runtime::timeout(limit, future).await.ok(),
            Self::Polls(left) => poll_times(future, left).await,
        }
    }
}

/// Reads from the buffer that a stream lends, which is then to be consumed.
fn read_lent(lent: &[u8], buffer: &mut [u8]) -> std::io::Result<usize> {
    let length = lent.len().min(buffer.len());
    buffer[..length].copy_from_slice(&lent[..length]);
    Ok(length)
}

#[runtime::test]
async fn reads_dropped_at_random_points_lose_no_byte() {
    let (client, mut server) = pair().await;
    let (reader, mut writer) = client.into_split();
    drop(reader);
    let drops = drops();
    let sender = runtime::spawn(async move {
        let mut random = SmallRng::seed_from_u64(1);
        let mut next = 0u32;
        while next < drops {
            let count = random.random_range(1..50);
            let bytes: Vec<u8> = (next..next + count).flat_map(u32::to_le_bytes).collect();
            next += count;
            writer.write_all(&bytes).await.unwrap();
            if random.random() {
                runtime::sleep(Duration::from_micros(random.random_range(0..40))).await;
            }
        }
        next
    });
    let mut random = SmallRng::seed_from_u64(2);
    let (mut expected, mut partial, mut dropped) = (0u32, Vec::new(), 0);
    loop {
        let mut buffer = [0; 64];
        let size = random.random_range(1..=buffer.len());
        let patience = Patience::random(&mut random);
        let buffer = &mut buffer[..size];
        let read = match random.random_range(0..4) {
            0 => patience.of(server.read(buffer)).await,
            1 => {
                patience.of(server.fill_buf()).await.map(|lent| read_lent(lent?, buffer)).inspect(|length| {
                    if let Ok(length) = length {
                        server.consume_unpin(*length);
                    }
                })
            }
            2 => {
                patience.of(server.readable()).await.map(|ready| ready.and_then(|()| server.try_read(buffer)))
            }
            _ => {
                let mut peeked = [0; 64];
                let ahead = patience.of(server.peek(&mut peeked[..size])).await.map(Result::unwrap);
                ahead.map(|ahead| {
                    let length = server.try_read(buffer)?;
                    // The first of several buffers is read alone.
                    assert!(length > 0 || ahead == 0);
                    assert_eq!(peeked[..length.min(ahead)], buffer[..length.min(ahead)]);
                    Ok(length)
                })
            }
        };
        match read {
            None => dropped += 1,
            Some(Ok(0)) => break,
            // Readiness may be that of bytes which are read already.
            Some(Err(error)) if error.kind() == ErrorKind::WouldBlock => {}
            Some(result) => partial.extend_from_slice(&buffer[..result.unwrap()]),
        }
        while let Some((number, rest)) = partial.split_first_chunk::<4>() {
            assert_eq!(u32::from_le_bytes(*number), expected);
            expected += 1;
            partial = rest.to_vec();
        }
    }
    assert_eq!(expected, sender.await.unwrap());
    eprintln!("{dropped} reads were dropped, and {expected} numbers arrived");
    assert!(partial.is_empty() && dropped > 0);
}

#[test]
#[isolated]
fn connections_dropped_at_random_points_leak_no_descriptor() {
    // Isolated, as other tests open descriptors, too.
    for driver in drivers() {
        let before = open_descriptors();
        let runtime = one_worker(driver);
        let (idle, after) = runtime.block_on(async {
            let listener = TcpListener::bind(local()).unwrap();
            let address = listener.local_addr().unwrap();
            let serving = serve_echo(listener);
            runtime::sleep(Duration::from_millis(5)).await;
            let idle = open_descriptors();
            let mut random = SmallRng::seed_from_u64(3);
            for _ in 0..drops() / 20 {
                let limit = Duration::from_micros(random.random_range(0..150));
                let length = random.random_range(1..200);
                let exchange = async {
                    let mut stream = TcpStream::connect(address).await.unwrap();
                    stream.write_all(&vec![1; length]).await.unwrap();
                    let mut answer = vec![0; length];
                    stream.read_exact(&mut answer).await.unwrap();
                    if length % 2 == 0 {
                        stream.into_std().await.unwrap();
                    }
                };
                // Dropped while it connects, writes, reads or is given back, or not at all.
                let _ = runtime::timeout(limit, exchange).await;
            }
            let give_up = std::time::Instant::now() + Duration::from_secs(30);
            // The last connections may not have been accepted yet.
            while (serving.connections() > 0 || open_descriptors() != idle)
                && std::time::Instant::now() < give_up
            {
                runtime::sleep(Duration::from_millis(5)).await;
            }
            let after = open_descriptors();
            serving.shutdown(Duration::from_secs(30)).await;
            (idle, after)
        });
        assert_eq!(idle, after, "on {driver}");
        drop(runtime);
        assert_eq!(before, open_descriptors(), "on {driver}");
    }
}

#[test]
#[isolated]
fn connections_that_arrive_while_a_listener_is_dropped_leak_no_descriptor() {
    for driver in drivers() {
        one_worker(driver).block_on(async {
            let before = open_descriptors();
            let mut random = SmallRng::seed_from_u64(5);
            for _ in 0..drops() / 100 {
                let listener = TcpListener::bind(local()).unwrap();
                let address = listener.local_addr().unwrap();
                // More than a ring accepts ahead.
                let clients: Vec<_> = (0..random.random_range(1..90))
                    .map(|_| std::net::TcpStream::connect(address).unwrap())
                    .collect();
                let patience = Patience::random(&mut random);
                let mut taken = Vec::new();
                while let Some(accepted) = patience.of(listener.accept()).await {
                    taken.push(accepted.unwrap());
                    if random.random_range(0..20) == 0 {
                        break;
                    }
                }
                drop(listener);
                drop((clients, taken));
            }
            // Dropped sockets are closed in the next turns.
            let give_up = std::time::Instant::now() + Duration::from_secs(30);
            while open_descriptors() != before && std::time::Instant::now() < give_up {
                runtime::sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(before, open_descriptors(), "on {driver}");
        });
    }
}

type SocketUse = Box<dyn Fn(&mut Context<'_>)>;

thread_local! {
    /// What a waker does with its socket when it is dropped.
    static USE_SOCKET: Cell<Option<SocketUse>> = const { Cell::new(None) };
}

/// A waker that uses the socket that holds it when it is dropped, as one does that owns a task.
struct UsesSocket;

impl Wake for UsesSocket {
    fn wake(self: Arc<Self>) {}
}

impl Drop for UsesSocket {
    fn drop(&mut self) {
        if let Some(action) = USE_SOCKET.take() {
            action(&mut Context::from_waker(Waker::noop()));
        }
    }
}

/// Polls with a waker that uses the socket when it is replaced by the next one.
fn use_when_replaced<S: 'static>(socket: S, poll: fn(&S, &mut Context<'_>)) {
    let socket = Rc::new(socket);
    poll(&socket, &mut Context::from_waker(&Arc::new(UsesSocket).into()));
    let again = Rc::clone(&socket);
    USE_SOCKET.set(Some(Box::new(move |context| poll(&again, context))));
    poll(&socket, &mut Context::from_waker(Waker::noop()));
    assert!(USE_SOCKET.take().is_none(), "the replaced waker was not dropped");
}

#[runtime::test]
async fn a_waker_that_is_replaced_may_use_the_same_socket() {
    use_when_replaced(TcpListener::bind(local()).unwrap(), |listener, context| {
        assert!(listener.poll_accept(context).is_pending());
    });
    use_when_replaced(net::UdpSocket::bind(local()).unwrap(), |socket, context| {
        assert!(socket.poll_recv(context, &mut [0]).is_pending());
    });
}
