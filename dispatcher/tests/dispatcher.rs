//! Threads that block, on connections that a worker receives for. Each test runs on each driver.

#[path = "../../net/tests/suite/common/mod.rs"]
#[allow(dead_code, reason = "the tests of net use the rest")]
mod common;

use std::io::{BufRead, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use dispatcher::{BlockingStream, Builder, Dispatcher, Placement};
use futures_util::{AsyncReadExt, AsyncWriteExt};
use net::{Serving, TcpListener, TcpStream};
use policies::thread_time::this_thread_cpu_time;

use common::{local, pair, with_std_peer};

const LIMIT: Duration = Duration::from_secs(30);

fn echo(mut stream: BlockingStream) -> std::io::Result<u64> {
    let mut sum = 0;
    loop {
        let bytes = stream.fill_buf()?;
        let length = bytes.len();
        if length == 0 {
            return Ok(sum);
        }
        let bytes = bytes.to_vec();
        stream.consume(length);
        stream.write_all(&bytes)?;
        sum += length as u64;
    }
}

fn serve(
    dispatcher: &Dispatcher,
    body: impl Fn(BlockingStream) + Clone + Send + 'static,
) -> (Serving, SocketAddr) {
    let listener = TcpListener::bind(local()).unwrap();
    let address = listener.local_addr().unwrap();
    let dispatcher = dispatcher.clone();
    let serving = listener.serve(move |stream: TcpStream| {
        let running = dispatcher.run(stream, body.clone());
        async move { drop(running.await) }
    });
    (serving.unwrap(), address)
}

async fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < LIMIT, "{what}");
        runtime::sleep(Duration::from_millis(1)).await;
    }
}

#[runtime::test(workers = 2)]
async fn hundreds_of_threads_echo_each_on_its_own_connection() {
    const CONNECTIONS: usize = 200;
    let dispatcher = Builder::new().build();
    let (serving, address) = serve(&dispatcher, |stream| drop(echo(stream)));
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(TcpStream::connect(address).await.unwrap());
    }
    for round in 0..3_u8 {
        for (index, client) in clients.iter_mut().enumerate() {
            client.write_all(&[round, index as u8]).await.unwrap();
        }
        for (index, client) in clients.iter_mut().enumerate() {
            let mut answer = [0; 2];
            client.read_exact(&mut answer).await.unwrap();
            assert_eq!(answer, [round, index as u8]);
        }
    }
    let metrics = dispatcher.metrics();
    assert_eq!((metrics.threads, metrics.started), (CONNECTIONS, CONNECTIONS as u64));
    drop(clients);
    until("the threads end with their connections", || dispatcher.metrics().threads == 0).await;
    let metrics = dispatcher.metrics();
    assert_eq!((metrics.received_bytes, metrics.sent_bytes), (3 * 2 * 200, 3 * 2 * 200));
    assert!(metrics.wakes + metrics.found_running >= 3 * 200, "{metrics:?}");
    serving.shutdown(LIMIT).await;
}

#[runtime::test]
async fn a_slow_reader_stops_its_peer_and_loses_nothing() {
    const LENGTH: usize = 30 << 20;
    let (client, server) = pair().await;
    let dispatcher = Builder::new().buffer_size(32 << 10).build();
    let (go, begin) = mpsc::channel::<()>();
    let reading = dispatcher.spawn_thread(server, move |mut stream| {
        begin.recv().unwrap();
        let (mut sum, mut next) = (0, 0_u8);
        let mut buffer = vec![0; 10_000];
        loop {
            let length = stream.read(&mut buffer).unwrap();
            for &byte in &buffer[..length] {
                assert_eq!(byte, next);
                next = next.wrapping_add(1);
            }
            sum += length;
            if length == 0 {
                return sum;
            }
        }
    });
    let sent = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&sent);
    let writing = runtime::spawn(async move {
        let mut client = client;
        let bytes: Vec<u8> = (0..=255).collect();
        let bytes = bytes.repeat(64);
        while counting.load(Ordering::Relaxed) < LENGTH {
            client.write_all(&bytes).await.unwrap();
            counting.fetch_add(bytes.len(), Ordering::Relaxed);
        }
        client.close().await.unwrap();
    });
    until("the buffer is full", || dispatcher.metrics().full == 1).await;
    runtime::sleep(Duration::from_millis(50)).await;
    let metrics = dispatcher.metrics();
    assert_eq!((metrics.received_bytes, metrics.full), (32 << 10, 1), "{metrics:?}");
    assert!(sent.load(Ordering::Relaxed) < LENGTH, "{metrics:?}");
    go.send(()).unwrap();
    assert_eq!(reading.unwrap().await.unwrap(), LENGTH);
    writing.await.unwrap();
}

#[runtime::test]
async fn a_write_waits_for_its_peer_and_fails_after_its_time_limit() {
    let (stream, mut peer) = with_std_peer().await;
    let dispatcher = Builder::new().build();
    let (told, filled) = mpsc::channel();
    let writing = dispatcher.spawn_thread(stream, move |mut stream| {
        stream.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut written = 0;
        let bytes = vec![7; 64 << 10];
        let error = loop {
            match stream.write(&bytes) {
                Ok(length) => written += length,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        told.send(()).unwrap();
        stream.set_write_timeout(None).unwrap();
        stream.write_all(&bytes).unwrap();
        written + bytes.len()
    });
    // The worker, which closes the connection on a ring, must not be blocked.
    let reading = runtime::spawn_blocking(move || {
        filled.recv().unwrap();
        let mut bytes = Vec::new();
        peer.read_to_end(&mut bytes).unwrap();
        bytes.len()
    });
    let written = writing.unwrap().await.unwrap();
    assert_eq!(reading.await.unwrap(), written);
}

#[runtime::test]
async fn a_read_ends_after_its_time_limit_and_the_next_one_reads() {
    let (stream, mut peer) = with_std_peer().await;
    let (told, timed_out) = mpsc::channel();
    let reading = Builder::new().build().spawn_thread(stream, move |mut stream| {
        assert_eq!(
            stream.set_read_timeout(Some(Duration::ZERO)).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
        stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        let mut buffer = [0; 8];
        assert_eq!(stream.read(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
        told.send(()).unwrap();
        stream.set_read_timeout(None).unwrap();
        let length = stream.read(&mut buffer).unwrap();
        buffer[..length].to_vec()
    });
    let writing = std::thread::spawn(move || {
        timed_out.recv().unwrap();
        peer.write_all(b"late").unwrap();
    });
    assert_eq!(reading.unwrap().await.unwrap(), b"late");
    writing.join().unwrap();
}

#[runtime::test]
async fn a_reset_is_read_once_and_then_the_end() {
    let (stream, peer) = with_std_peer().await;
    socket2::SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
    drop(peer);
    let reading = Builder::new().build().spawn_thread(stream, |mut stream| {
        let error = stream.read(&mut [0]).unwrap_err();
        (error.kind(), stream.read(&mut [0]).unwrap(), stream.write(b"x").is_err())
    });
    assert_eq!(reading.unwrap().await.unwrap(), (ErrorKind::ConnectionReset, 0, true));
}

#[runtime::test]
async fn a_panicking_thread_closes_its_connection_and_no_other() {
    let dispatcher = Builder::new().build();
    let (one, mut peer) = pair().await;
    let (other, mut other_peer) = pair().await;
    let panicking = dispatcher.spawn_thread(one, |_stream| panic!("as tested")).unwrap();
    let echoing = dispatcher.spawn_thread(other, echo).unwrap();
    let error = panicking.await.unwrap_err();
    assert!(error.is_panic());
    assert_eq!(peer.read(&mut [0]).await.unwrap(), 0);
    other_peer.write_all(b"on").await.unwrap();
    let mut answer = [0; 2];
    other_peer.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"on");
    drop(other_peer);
    assert_eq!(echoing.await.unwrap().unwrap(), 2);
}

#[runtime::test]
async fn a_dropped_stream_closes_the_connection_while_its_thread_goes_on() {
    let (stream, mut peer) = pair().await;
    let (end, ended) = mpsc::channel::<()>();
    let running = Builder::new().build().spawn_thread(stream, move |stream| {
        drop(stream);
        ended.recv().unwrap();
        7
    });
    assert_eq!(peer.read(&mut [0]).await.unwrap(), 0);
    end.send(()).unwrap();
    assert_eq!(running.unwrap().await.unwrap(), 7);
}

#[runtime::test]
async fn aborting_ends_a_read_that_waits_and_a_write_that_waits() {
    let (one, _peer) = pair().await;
    let (other, _other_peer) = pair().await;
    let dispatcher = Builder::new().build();
    let (told, results) = mpsc::channel();
    let (reads, writes) = (told.clone(), told);
    let reading = dispatcher.spawn_thread(one, move |mut stream| {
        reads.send(stream.read(&mut [0]).unwrap_err().kind()).unwrap();
    });
    let writing = dispatcher.spawn_thread(other, move |mut stream| {
        let bytes = vec![0; 64 << 10];
        writes.send(stream.write_all(&bytes.repeat(1000)).unwrap_err().kind()).unwrap();
    });
    runtime::sleep(Duration::from_millis(50)).await;
    reading.unwrap().abort();
    writing.unwrap().abort();
    until("the threads end", || dispatcher.metrics().threads == 0).await;
    let mut kinds: Vec<ErrorKind> = results.iter().collect();
    kinds.sort_by_key(|kind| format!("{kind:?}"));
    assert!([ErrorKind::BrokenPipe, ErrorKind::ConnectionReset].contains(&kinds[0]), "{kinds:?}");
    assert_eq!(kinds[1], ErrorKind::ConnectionAborted);
}

#[test]
fn threads_outlive_their_runtime_with_an_error() {
    for driver in common::drivers() {
        let mut runtime = common::one_worker(driver);
        let dispatcher = Builder::new().build();
        let (told, results) = mpsc::channel();
        let starting = dispatcher.clone();
        let _peer = runtime.block_on(async {
            let (stream, peer) = with_std_peer().await;
            let reading = starting.spawn_thread(stream, move |mut stream| {
                told.send(stream.read(&mut [0]).map_err(|error| error.kind())).unwrap();
            });
            drop(reading.unwrap());
            peer
        });
        drop(runtime);
        assert_eq!(results.recv_timeout(LIMIT).unwrap(), Err(ErrorKind::ConnectionAborted), "{driver}");
    }
}

#[runtime::test]
async fn above_the_limit_of_threads_connections_are_refused_and_closed() {
    let dispatcher = Builder::new().max_threads(1).build();
    let (one, mut first_peer) = pair().await;
    let (other, mut peer) = pair().await;
    let running = dispatcher.spawn_thread(one, echo).unwrap();
    let error = dispatcher.spawn_thread(other, echo).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::QuotaExceeded);
    assert!(error.to_string().contains("max_threads"), "{error}");
    assert_eq!(peer.read(&mut [0]).await.unwrap(), 0);
    first_peer.close().await.unwrap();
    assert_eq!(running.await.unwrap().unwrap(), 0);
    let metrics = dispatcher.metrics();
    assert_eq!((metrics.threads, metrics.started, metrics.refused), (0, 1, 1));
}

#[runtime::test]
async fn a_thread_name_with_a_nul_byte_is_an_error_of_each_connection() {
    let (stream, mut peer) = pair().await;
    let dispatcher = Builder::new().thread_name("a\0b").build();
    let error = dispatcher.spawn_thread(stream, echo).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("thread_name"), "{error}");
    assert_eq!(peer.read(&mut [0]).await.unwrap(), 0);
    assert_eq!(dispatcher.metrics().refused, 1);
}

#[runtime::test]
async fn the_end_of_writing_is_sent_and_reading_goes_on() {
    let (stream, mut peer) = pair().await;
    let running = Builder::new().build().spawn_thread(stream, |mut stream| {
        stream.write_all(b"all").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        rest
    });
    let mut all = String::new();
    peer.read_to_string(&mut all).await.unwrap();
    assert_eq!(all, "all");
    peer.write_all(b"rest").await.unwrap();
    drop(peer);
    assert_eq!(running.unwrap().await.unwrap(), "rest");
}

#[runtime::test]
async fn one_thread_reads_while_another_writes() {
    let (stream, mut peer) = pair().await;
    let running = Builder::new().build().spawn_thread(stream, |stream| {
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| {
                let mut bytes = [0; 3];
                (&stream).read_exact(&mut bytes).unwrap();
                bytes
            });
            (&stream).write_all(b"first").unwrap();
            reading.join().unwrap()
        })
    });
    let mut first = [0; 5];
    peer.read_exact(&mut first).await.unwrap();
    peer.write_all(b"abc").await.unwrap();
    assert_eq!(&running.unwrap().await.unwrap(), b"abc");
}

/// Batches of one, batches that are never full, and none.
#[runtime::test]
async fn threads_are_woken_whatever_the_size_of_a_batch() {
    for size in [0, 1, 3, 1000] {
        let dispatcher = Builder::new().wake_batch(size).build();
        let (serving, address) = serve(&dispatcher, |stream| drop(echo(stream)));
        let mut clients = Vec::new();
        for _ in 0..10 {
            clients.push(TcpStream::connect(address).await.unwrap());
        }
        for client in &mut clients {
            client.write_all(b"x").await.unwrap();
        }
        for client in &mut clients {
            runtime::timeout(LIMIT, client.read_exact(&mut [0])).await.unwrap().unwrap();
            // One alone.
            client.write_all(b"y").await.unwrap();
            runtime::timeout(LIMIT, client.read_exact(&mut [0])).await.unwrap().unwrap();
        }
        drop(clients);
        until("the threads end", || dispatcher.metrics().threads == 0).await;
        serving.shutdown(LIMIT).await;
    }
}

#[runtime::test]
async fn threads_are_placed_where_the_builder_says() {
    let worker = rustix::thread::sched_getaffinity(None).unwrap();
    let allowed = |status: &str| -> usize {
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        list.trim()
            .split(',')
            .map(|part| part.split('-').map(|core| core.parse::<usize>().unwrap()).collect::<Vec<_>>())
            .map(|range| range[range.len() - 1] - range[0] + 1)
            .sum()
    };
    for placement in [Placement::SameCore, Placement::AnyCore, Placement::OtherCores] {
        let (stream, _peer) = pair().await;
        let dispatcher = Builder::new().placement(placement).thread_name("placed").build();
        let running = dispatcher.spawn_thread(stream, |_| {
            assert_eq!(std::thread::current().name(), Some("placed"));
            let stat = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            (rustix::thread::sched_getaffinity(None).unwrap(), stat)
        });
        let (thread, status) = running.unwrap().await.unwrap();
        assert_eq!(allowed(&status), thread.count() as usize);
        if placement == Placement::SameCore {
            assert_eq!(thread, worker);
        }
    }
}

/// A connection's share of the wakes does not depend on how much the others receive.
#[runtime::test]
#[ignore = "timing"]
async fn a_quiet_connection_is_woken_in_its_turn_while_others_are_flooded() {
    const BUSY: usize = 16;
    /// The default of `Builder::buffer_size`.
    const SLOT: usize = 64 << 10;
    let dispatcher = Builder::new().build();
    let (serving, address) = serve(&dispatcher, |stream| drop(echo(stream)));
    let stop = Arc::new(AtomicBool::new(false));
    let mut floods = Vec::new();
    for _ in 0..BUSY {
        let client = TcpStream::connect(address).await.unwrap();
        let (mut reader, mut writer) = client.into_split();
        let stopping = Arc::clone(&stop);
        floods.push(runtime::spawn(async move {
            let bytes = [1; 4096];
            while !stopping.load(Ordering::Relaxed) && writer.write_all(&bytes).await.is_ok() {}
        }));
        floods.push(runtime::spawn(async move {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(1..) = reader.read(&mut buffer).await {}
        }));
    }
    let mut quiet = TcpStream::connect(address).await.unwrap();
    let mut shares = Vec::new();
    for _ in 0..15 {
        let before = dispatcher.metrics().received_bytes;
        quiet.write_all(b"q").await.unwrap();
        let mut answer = [0];
        runtime::timeout(LIMIT, quiet.read_exact(&mut answer)).await.unwrap().unwrap();
        shares.push((dispatcher.metrics().received_bytes - before) as f64 / (BUSY * SLOT) as f64);
        runtime::sleep(Duration::from_millis(1)).await;
    }
    stop.store(true, Ordering::Relaxed);
    shares.sort_unstable_by(f64::total_cmp);
    // What the others received while it was answered: in a turn at most a full slot each. It takes some turns until its thread
    // has had the core.
    eprintln!("slots of each of the others while a byte was answered: {shares:.2?}");
    assert!(shares[7] < 4.0, "{shares:?}");
    drop(floods);
    drop(quiet);
    serving.shutdown(Duration::from_millis(10)).await;
}

/// The scheduler shares the core between the worker and threads that compute without pause.
#[runtime::test]
#[ignore = "timing"]
async fn a_worker_is_not_starved_by_threads_that_compute() {
    const COMPUTING: usize = 3;
    const ANSWERS: u32 = 20;
    // The worker and all threads on one core, whose time is then shared by them and whatever else runs on this machine.
    let before = rustix::thread::sched_getaffinity(None).unwrap();
    let mut one = rustix::thread::CpuSet::new();
    one.set((0..rustix::thread::CpuSet::MAX_CPU).rfind(|core| before.is_set(*core)).unwrap());
    rustix::thread::sched_setaffinity(None, &one).unwrap();
    let dispatcher = Builder::new().build();
    let stop = Arc::new(AtomicBool::new(false));
    // The CPU time of each thread so far, in ns. It doesn't pass while other programs have the core.
    let computed: Arc<[AtomicU64; COMPUTING]> = Arc::default();
    let mut computing = Vec::new();
    for index in 0..COMPUTING {
        let (stream, peer) = pair().await;
        let (stopping, computed) = (Arc::clone(&stop), Arc::clone(&computed));
        let thread = dispatcher.spawn_thread(stream, move |_stream| {
            while !stopping.load(Ordering::Relaxed) {
                computed[index].store(this_thread_cpu_time().as_nanos() as u64, Ordering::Relaxed);
            }
        });
        computing.push((thread.unwrap(), peer));
    }
    let total = || Duration::from_nanos(computed.iter().map(|time| time.load(Ordering::Relaxed)).sum());
    let (stream, mut peer) = pair().await;
    let echoing = dispatcher.spawn_thread(stream, echo).unwrap();
    let begun = total();
    for _ in 0..ANSWERS {
        peer.write_all(b"x").await.unwrap();
        runtime::timeout(LIMIT, peer.read_exact(&mut [0])).await.unwrap().unwrap();
    }
    let each = (total() - begun) / ANSWERS;
    // Worker, thread and worker wait for the core one after the other, each behind three threads with a slice of some
    // milliseconds. Without a share of the core it would be a second.
    eprintln!("the others computed for {each:?} while a byte was answered");
    assert!(each < Duration::from_millis(60), "{each:?}");
    stop.store(true, Ordering::Relaxed);
    for (thread, _) in computing {
        thread.await.unwrap();
    }
    drop(peer);
    assert_eq!(echoing.await.unwrap().unwrap(), u64::from(ANSWERS));
    rustix::thread::sched_setaffinity(None, &before).unwrap();
}
