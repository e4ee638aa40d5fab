//! What operations that outlive their futures must keep: bytes, buffers, descriptors, answers.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use net::{TcpListener, TcpStream};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use runtime::{Builder, DriverKind};

fn local() -> std::net::SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(local()).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (server, _) = listener.accept().await.unwrap();
    (client, server)
}

/// How often futures are dropped in the randomized tests; `DROPS` in the environment asks for more.
fn drops() -> u32 {
    std::env::var("DROPS").ok().and_then(|drops| drops.parse().ok()).unwrap_or(10_000)
}

/// How long a future is waited for before it is dropped.
#[derive(Clone, Copy)]
enum Patience {
    Time(Duration),
    /// So many further polls, a turn of the worker's tasks apart.
    Polls(u32),
}

impl Patience {
    fn random(random: &mut SmallRng) -> Self {
        match random.random_range(0..4) {
            0 => Self::Time(Duration::from_micros(random.random_range(0..40))),
            _ => Self::Polls(random.random_range(0..3)),
        }
    }

    /// `None` where the future was dropped.
    async fn of<F: Future>(self, future: F) -> Option<F::Output> {
        match self {
            Self::Time(limit) => runtime::timeout(limit, future).await.ok(),
            Self::Polls(mut left) => {
                let mut future = std::pin::pin!(future);
                std::future::poll_fn(|context| match future.as_mut().poll(context) {
                    Poll::Ready(output) => Poll::Ready(Some(output)),
                    Poll::Pending if left == 0 => Poll::Ready(None),
                    Poll::Pending => {
                        left -= 1;
                        context.waker().wake_by_ref();
                        Poll::Pending
                    }
                })
                .await
            }
        }
    }
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
        let read = if random.random() {
            patience.of(server.read(&mut buffer[..size])).await
        } else {
            // The lent buffer, consumed in part.
            let lent = patience.of(server.fill_buf()).await;
            lent.map(|result| {
                result.map(|bytes| {
                    let length = bytes.len().min(size);
                    buffer[..length].copy_from_slice(&bytes[..length]);
                    length
                })
            })
            .inspect(|length| {
                if let Ok(length) = length {
                    server.consume_unpin(*length);
                }
            })
        };
        match read {
            None => dropped += 1,
            Some(Ok(0)) => break,
            Some(result) => partial.extend_from_slice(&buffer[..result.unwrap()]),
        }
        while let Some((number, rest)) = partial.split_first_chunk::<4>() {
            assert_eq!(u32::from_le_bytes(*number), expected);
            expected += 1;
            partial = rest.to_vec();
        }
    }
    assert_eq!(expected, sender.await.unwrap());
    eprintln!("{dropped} reads were dropped, and {expected} numbers came");
    assert!(partial.is_empty() && dropped > 0);
}

#[runtime::test]
async fn what_was_written_arrives_though_the_stream_was_dropped_at_once() {
    for size in [1usize, 3000, 200_000] {
        let (mut client, mut server) = pair().await;
        let writing = runtime::spawn(async move { client.write_all(&vec![7; size]).await.unwrap() });
        let mut bytes = Vec::new();
        server.read_to_end(&mut bytes).await.unwrap();
        writing.await.unwrap();
        assert_eq!(bytes.len(), size);
        assert!(bytes.iter().all(|&byte| byte == 7));
    }
}

#[runtime::test]
async fn writes_to_a_slow_reader_with_a_small_send_buffer_arrive_whole_and_in_order() {
    let (client, mut server) = pair().await;
    client.set_send_buffer_size(8 << 10).unwrap();
    let total = 600_000u32;
    let writing = runtime::spawn(async move {
        let mut client = client;
        let mut random = SmallRng::seed_from_u64(4);
        let mut next = 0;
        while next < total {
            let count = random.random_range(1..4000).min(total - next);
            let bytes: Vec<u8> = (next..next + count).flat_map(u32::to_le_bytes).collect();
            next += count;
            client.write_all(&bytes).await.unwrap();
        }
        client.close().await.unwrap();
    });
    let (mut expected, mut partial) = (0u32, Vec::new());
    loop {
        let length = {
            let bytes = server.fill_buf().await.unwrap();
            partial.extend_from_slice(bytes);
            bytes.len()
        };
        if length == 0 {
            break;
        }
        server.consume_unpin(length);
        let (numbers, _) = partial.as_chunks::<4>();
        for number in numbers {
            assert_eq!(u32::from_le_bytes(*number), expected);
            expected += 1;
        }
        partial.drain(..numbers.len() * 4);
        if expected % 7 == 0 {
            runtime::sleep(Duration::from_micros(200)).await;
        }
    }
    writing.await.unwrap();
    assert_eq!(expected, total);
}

const DRIVERS: [DriverKind; 3] = [DriverKind::Epoll, DriverKind::Uring, DriverKind::Hybrid];

fn one_worker(driver: DriverKind) -> runtime::Runtime {
    Builder::new().ignore_environment().workers(1).driver(driver).build().unwrap()
}

#[test]
fn what_was_written_before_the_runtime_ends_is_sent_to_a_peer_that_takes_its_time() {
    use std::io::Read;
    for driver in DRIVERS {
        let listener = std::net::TcpListener::bind(local()).unwrap();
        let address = listener.local_addr().unwrap();
        let peer = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            std::thread::sleep(Duration::from_millis(200));
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).map(|_| bytes.len())
        });
        let written = one_worker(driver).block_on(async move {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.set_send_buffer_size(4 << 10).unwrap();
            let mut written = 0;
            // Until there is no room, in the kernel and before it.
            while let Ok(length) = runtime::timeout(Duration::from_millis(20), client.write(&[1; 4000])).await
            {
                written += length.unwrap();
            }
            written
        });
        assert_eq!(peer.join().unwrap().unwrap(), written, "on {driver}");
    }
}

#[test]
fn a_peer_that_never_takes_what_was_written_sees_no_clean_end() {
    use std::io::Read;
    for driver in [DriverKind::Uring, DriverKind::Hybrid] {
        let listener = std::net::TcpListener::bind(local()).unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4 << 10).unwrap();
        let address = listener.local_addr().unwrap();
        let (written, mut stream) = one_worker(driver).block_on(async move {
            let mut client = TcpStream::connect(address).await.unwrap();
            let (stream, _) = listener.accept().unwrap();
            client.set_send_buffer_size(4 << 10).unwrap();
            let mut written = 0;
            while let Ok(length) = runtime::timeout(Duration::from_millis(20), client.write(&[1; 4000])).await
            {
                written += length.unwrap();
            }
            (written, stream)
        });
        let mut bytes = Vec::new();
        let end = stream.read_to_end(&mut bytes);
        assert!(end.is_err() && bytes.len() < written, "on {driver}: {end:?}");
    }
}

#[test]
fn a_socket_kept_beyond_its_runtime_gives_an_error_and_does_not_hang() {
    for driver in [DriverKind::Uring, DriverKind::Hybrid] {
        let listener = std::net::TcpListener::bind(local()).unwrap();
        let address = listener.local_addr().unwrap();
        let mut runtime = one_worker(driver);
        let mut client = runtime.block_on(async move { TcpStream::connect(address).await.unwrap() });
        runtime.block_on(async move {
            let limit = Duration::from_secs(2);
            for _ in 0..2 {
                let written = runtime::timeout(limit, client.write(b"x")).await;
                assert!(written.unwrap().unwrap_err().to_string().contains("runtime"), "on {driver}");
                let read = runtime::timeout(limit, client.read(&mut [0; 1])).await;
                assert!(read.unwrap().unwrap_err().to_string().contains("runtime"), "on {driver}");
            }
        });
    }
}

#[runtime::test]
async fn writes_after_the_end_of_writing_are_refused() {
    let (mut client, mut server) = pair().await;
    client.write_all(b"last").await.unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let error = client.write(b"more").await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    let mut bytes = Vec::new();
    server.read_to_end(&mut bytes).await.unwrap();
    assert_eq!(bytes, b"last");
}

fn serve_echo(listener: TcpListener) -> net::Serving {
    listener
        .serve(|mut stream: TcpStream| async move {
            let mut buffer = [0; 256];
            while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                if stream.write_all(&buffer[..length]).await.is_err() {
                    break;
                }
            }
        })
        .unwrap()
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn connections_dropped_at_random_points_leave_no_descriptor() {
    // Other tests open descriptors too.
    if !alone("connections_dropped_at_random_points_leave_no_descriptor") {
        return;
    }
    for driver in DRIVERS {
        let before = open_descriptors();
        let mut runtime = one_worker(driver);
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
                };
                // Dropped while it connects, writes or reads, or not at all.
                let _ = runtime::timeout(limit, exchange).await;
            }
            let give_up = std::time::Instant::now() + Duration::from_secs(5);
            while serving.connections() > 0 && std::time::Instant::now() < give_up {
                runtime::sleep(Duration::from_millis(5)).await;
            }
            let after = open_descriptors();
            serving.shutdown(Duration::from_secs(1)).await;
            (idle, after)
        });
        assert_eq!(idle, after, "on {driver}");
        drop(runtime);
        assert_eq!(before, open_descriptors(), "on {driver}");
    }
}

#[runtime::test]
async fn slow_readers_do_not_keep_the_buffers_from_the_others() {
    let listener = TcpListener::bind(local()).unwrap();
    let address = listener.local_addr().unwrap();
    let mut held = Vec::new();
    for _ in 0..200 {
        let mut client = TcpStream::connect(address).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        client.write_all(&[1; 6000]).await.unwrap();
        // Reads one byte, and leaves the rest.
        server.read_exact(&mut [0; 1]).await.unwrap();
        held.push((client, server));
    }
    let mut client = TcpStream::connect(address).await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    for _ in 0..100 {
        client.write_all(&[2; 5000]).await.unwrap();
        let mut buffer = [0; 5000];
        let read = runtime::timeout(Duration::from_secs(2), server.read_exact(&mut buffer)).await;
        read.expect("the other connections hold all the buffers").unwrap();
        assert_eq!(buffer, [2; 5000]);
    }
    for (_client, mut server) in held {
        let mut rest = vec![0; 5999];
        server.read_exact(&mut rest).await.unwrap();
        assert!(rest.iter().all(|&byte| byte == 1));
    }
}

/// Counts how many buffers there are.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl Counted {
    fn bytes(bytes: Vec<u8>, count: &Arc<AtomicUsize>) -> Bytes {
        count.fetch_add(1, Ordering::Relaxed);
        Bytes::from_owner(Self(bytes, Arc::clone(count)))
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // What reads it later would show.
        self.0.fill(0xdb);
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

#[runtime::test]
async fn owned_writes_arrive_whole_and_in_order_among_others_and_are_freed() {
    let (mut client, mut server) = pair().await;
    client.set_send_buffer_size(64 << 10).unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let theirs = Arc::clone(&count);
    let writing = runtime::spawn(async move {
        let mut random = SmallRng::seed_from_u64(6);
        let mut next = 0u32;
        for _ in 0..60 {
            let length = [3, 5000, 20_000, 50_000][random.random_range(0..4)];
            let bytes: Vec<u8> = (next..next + length).flat_map(u32::to_le_bytes).collect();
            next += length;
            if random.random() {
                client.write_owned(Counted::bytes(bytes, &theirs)).await.unwrap();
            } else {
                client.write_all(&bytes).await.unwrap();
            }
        }
        client.close().await.unwrap();
        next
    });
    let mut all = Vec::new();
    server.read_to_end(&mut all).await.unwrap();
    let sent = writing.await.unwrap();
    let (numbers, rest) = all.as_chunks::<4>();
    assert!(rest.is_empty() && numbers.len() == sent as usize);
    assert!(numbers.iter().map(|number| u32::from_le_bytes(*number)).eq(0..sent));
    runtime::sleep(Duration::from_millis(5)).await;
    assert_eq!(count.load(Ordering::Relaxed), 0);
}

#[runtime::test]
async fn a_stream_that_is_dropped_after_an_owned_write_ends_after_its_last_byte() {
    for length in [10, 100_000, 3_000_000] {
        let (mut client, mut server) = pair().await;
        let writing = runtime::spawn(async move { client.write_owned(Bytes::from(vec![5; length])).await });
        let mut all = Vec::new();
        let reading = runtime::timeout(Duration::from_secs(5), server.read_to_end(&mut all));
        reading.await.expect("no end came").unwrap();
        writing.await.unwrap().unwrap();
        assert_eq!(all.len(), length);
    }
}

#[test]
fn the_memory_of_an_owned_write_that_nobody_reads_is_freed_with_the_runtime() {
    for driver in DRIVERS {
        let count = Arc::new(AtomicUsize::new(0));
        let theirs = Arc::clone(&count);
        let kept = one_worker(driver).block_on(async move {
            let (mut client, server) = pair().await;
            let write = client.write_owned(Counted::bytes(vec![9; 8 << 20], &theirs));
            assert!(runtime::timeout(Duration::from_millis(50), write).await.is_err(), "nobody has read");
            // The peer outlives the runtime, so that nothing makes room.
            (client, server)
        });
        assert_eq!(count.load(Ordering::Relaxed), 0, "on {driver}");
        drop(kept);
    }
}

#[runtime::test]
async fn owned_writes_to_a_unix_socket_arrive() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = net::UnixListener::bind(&path).unwrap();
    let mut client = net::UnixStream::connect(&path).await.unwrap();
    let mut server = listener.accept().await.unwrap();
    let writing = runtime::spawn(async move { client.write_owned(Bytes::from(vec![4; 1 << 20])).await });
    let mut all = Vec::new();
    server.read_to_end(&mut all).await.unwrap();
    writing.await.unwrap().unwrap();
    assert!(all.len() == 1 << 20 && all.iter().all(|&byte| byte == 4));
}

#[runtime::test]
async fn a_listener_that_is_dropped_while_it_accepts_frees_its_address_at_once() {
    let listener = TcpListener::bind(local()).unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = runtime::timeout(Duration::from_millis(5), listener.accept()).await;
    assert!(accepting.is_err());
    drop(listener);
    let again = TcpListener::bind(address).unwrap();
    let serving = serve_echo(again);
    runtime::sleep(Duration::from_millis(5)).await;
    serving.shutdown(Duration::from_secs(1)).await;
    TcpListener::bind(address).unwrap();
}

#[test]
fn connections_that_come_while_a_listener_is_dropped_leave_no_descriptor() {
    if !alone("connections_that_come_while_a_listener_is_dropped_leave_no_descriptor") {
        return;
    }
    for driver in DRIVERS {
        one_worker(driver).block_on(async {
            let before = open_descriptors();
            let mut random = SmallRng::seed_from_u64(5);
            for _ in 0..drops() / 100 {
                let listener = TcpListener::bind(local()).unwrap();
                let address = listener.local_addr().unwrap();
                // More than a listener accepts ahead.
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
            // What is dropped is closed in the next turns.
            runtime::sleep(Duration::from_millis(20)).await;
            assert_eq!(before, open_descriptors(), "on {driver}");
        });
    }
}

#[runtime::test]
async fn all_of_many_connections_that_come_at_once_are_accepted() {
    let listener = TcpListener::bind(local()).unwrap();
    let address = listener.local_addr().unwrap();
    let clients = std::thread::spawn(move || {
        (0..500).map(|_| std::net::TcpStream::connect(address).unwrap()).collect::<Vec<_>>()
    });
    let mut accepted = Vec::new();
    for _ in 0..500 {
        accepted.push(listener.accept().await.unwrap());
        if accepted.len() % 100 == 0 {
            // Longer than the kernel needs to fill what may wait.
            runtime::sleep(Duration::from_millis(5)).await;
        }
    }
    drop(clients.join().unwrap());
}

/// Runs the calling test again in a process of its own; `true` in there.
fn alone(name: &str) -> bool {
    if std::env::var_os("ALONE").is_some() {
        return true;
    }
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    again.args([name, "--exact", "--nocapture", "--test-threads=1"]).env("ALONE", "1");
    assert!(again.status().unwrap().success());
    false
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

const CONNECTIONS: usize = 10_000;

/// Opens all, and uses some.
fn be_clients(address: std::net::SocketAddr) {
    use std::io::{Read, Write};
    let connect = |_| std::net::TcpStream::connect(address).unwrap();
    let mut streams: Vec<_> = (0..CONNECTIONS).map(connect).collect();
    for stream in streams.iter_mut().step_by(97) {
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).unwrap();
    }
}

#[test]
fn ten_thousand_connections_come_idle_and_go_and_leave_nothing() {
    const NAME: &str = "ten_thousand_connections_come_idle_and_go_and_leave_nothing";
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    if !alone(NAME) {
        return;
    }
    let maximum = getrlimit(Resource::Nofile).maximum;
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(CONNECTIONS as u64 + 100), maximum });
    if tests::require("limit of 10,100 descriptors", raised.ok()).is_none() {
        return;
    }
    if let Ok(address) = std::env::var("CLIENTS_OF") {
        return be_clients(address.parse().unwrap());
    }
    for driver in DRIVERS {
        one_worker(driver).block_on(async move {
            let listener = TcpListener::bind(local()).unwrap();
            let address = listener.local_addr().unwrap();
            let serving = serve_echo(listener);
            runtime::sleep(Duration::from_millis(5)).await;
            let descriptors = open_descriptors();
            let mut resident = Vec::new();
            for _ in 0..3 {
                let (done, finished) = std::os::unix::net::UnixStream::pair().unwrap();
                let clients = std::thread::spawn(move || {
                    let mut clients = std::process::Command::new(std::env::current_exe().unwrap());
                    clients
                        .args([NAME, "--exact", "--test-threads=1"])
                        .env("CLIENTS_OF", address.to_string());
                    let status = clients.status().unwrap();
                    drop(done);
                    assert!(status.success());
                });
                finished.set_nonblocking(true).unwrap();
                let finished = runtime::AsyncFd::new(finished, runtime::SourceKind::Other).unwrap();
                finished.ready(runtime::Direction::Read).await;
                clients.join().unwrap();
                drop(finished);
                let give_up = std::time::Instant::now() + Duration::from_secs(20);
                while serving.connections() > 0 && std::time::Instant::now() < give_up {
                    runtime::sleep(Duration::from_millis(10)).await;
                }
                assert_eq!(serving.connections(), 0, "on {driver}");
                resident.push(resident_kib());
            }
            // A turn for what the last one cancelled.
            runtime::sleep(Duration::from_millis(20)).await;
            assert_eq!(open_descriptors(), descriptors, "on {driver}");
            // The allocator keeps what the first wave needed; a second and third must not need more.
            assert!(resident[2] < resident[0] + 1024, "on {driver}: {resident:?} KiB");
            serving.shutdown(Duration::from_secs(1)).await;
        });
    }
}

/// Forbids io_uring to this thread and its children, as a container's default filter does.
fn forbid_io_uring() {
    use seccompiler::{SeccompAction, SeccompFilter};
    let rules = [(libc::SYS_io_uring_setup, Vec::new())].into_iter().collect();
    let forbidden = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        forbidden,
        std::env::consts::ARCH.try_into().unwrap(),
    );
    let program: seccompiler::BpfProgram = filter.unwrap().try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
}

#[test]
fn where_io_uring_is_forbidden_auto_takes_epoll_and_says_why_and_uring_fails() {
    // The filter holds for this thread, which is also the runtime's worker.
    std::thread::spawn(|| {
        forbid_io_uring();
        let mut runtime = Builder::new().ignore_environment().workers(1).build().unwrap();
        runtime.block_on(async {
            let (mut client, mut server) = pair().await;
            client.write_all(b"hello").await.unwrap();
            server.read_exact(&mut [0; 5]).await.unwrap();
            let report = &runtime::reports()[0];
            assert_eq!(report.driver, DriverKind::Epoll);
            assert!(report.to_string().contains("io_uring is forbidden"), "{report}");
        });
        let refused = Builder::new().ignore_environment().workers(1).driver(DriverKind::Uring).build();
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("io_uring is forbidden") && message.contains("take epoll"), "{message}");
    })
    .join()
    .unwrap();
}
