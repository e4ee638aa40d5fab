//! Sockets over loopback: halves, buffers, timeouts, serving, shutdown.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use futures_util::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use net::{BindOptions, TcpListener, TcpStream, UnixListener};

use crate::common::{local, pair};

#[runtime::test]
async fn both_halves_work_in_two_tasks_and_dropping_the_writer_ends_the_stream() {
    let (client, server) = pair().await;
    let (mut reader, writer) = server.into_split();
    let (mut client_reader, mut client_writer) = client.into_split();
    let reading = runtime::spawn(async move {
        let mut text = String::new();
        reader.read_to_string(&mut text).await.unwrap();
        text
    });
    client_writer.write_all(&b"x".repeat(1 << 20)).await.unwrap();
    drop(client_writer);
    assert_eq!(reading.await.unwrap().len(), 1 << 20);
    drop(writer);
    let mut rest = Vec::new();
    client_reader.read_to_end(&mut rest).await.unwrap();
    assert!(rest.is_empty());
}

/// What a future's worker has sent by streams, while its bytes arrive at a peer.
async fn sent(peer: &mut TcpStream, bytes: usize, sending: impl Future<Output = ()>) -> u64 {
    let count = || runtime::metrics()[0].sent_bytes;
    let before = count();
    let mut received = vec![0; bytes];
    let (_, read) = futures_util::join!(sending, peer.read_exact(&mut received));
    read.unwrap();
    // A ring's bytes are counted after the wait.
    runtime::sleep(Duration::from_millis(1)).await;
    count() - before
}

#[runtime::test]
async fn what_streams_send_is_counted() {
    const LENGTH: usize = 300_000;
    let bytes = vec![7; LENGTH];
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&bytes).unwrap();
    let (mut stream, mut peer) = pair().await;
    let small = sent(&mut peer, 5, async { assert_eq!(stream.try_write(b"small").unwrap(), 5) }).await;
    let large = sent(&mut peer, LENGTH, async { stream.write_all(&bytes).await.unwrap() }).await;
    let owned =
        sent(&mut peer, LENGTH, async { stream.write_owned(bytes.clone().into()).await.unwrap() }).await;
    let from_file =
        sent(&mut peer, LENGTH, async { stream.send_file(&file, 0, LENGTH as u64).await.unwrap() }).await;
    assert_eq!([small, large, owned, from_file], [5, LENGTH, LENGTH, LENGTH].map(|bytes| bytes as u64));
}

#[runtime::test]
async fn lines_are_read_from_the_lent_buffer_and_the_rest_stays() {
    let (mut client, mut server) = pair().await;
    client.write_all(b"first\nsecond\nrest").await.unwrap();
    let mut line = String::new();
    server.read_line(&mut line).await.unwrap();
    server.read_line(&mut line).await.unwrap();
    assert_eq!(line, "first\nsecond\n");
    let mut rest = [0; 4];
    server.read_exact(&mut rest).await.unwrap();
    assert_eq!(&rest, b"rest");
}

#[runtime::test]
async fn a_vectored_write_arrives_in_order_without_the_empty_slices_at_its_front() {
    let (mut client, mut server) = pair().await;
    // 1500 are more than one `sendmsg(2)` takes: it would send nothing, which `write_all` takes for
    // an error.
    for (empty, length) in [(0, 10), (1500, 10), (1500, 20_000)] {
        let bytes: Vec<u8> = (0..length).map(|index| (index % 251) as u8).collect();
        let mut parts = vec![std::io::IoSlice::new(b""); empty];
        parts.extend(bytes.chunks(length / 2).map(std::io::IoSlice::new));
        assert_eq!(client.write_vectored(&parts).await.unwrap(), length);
        let mut buffer = vec![0; length];
        server.read_exact(&mut buffer).await.unwrap();
        assert_eq!(buffer, bytes);
    }
}

#[runtime::test]
async fn a_refused_connect_fails_and_a_hanging_one_times_out() {
    let gone = TcpListener::bind(local()).unwrap().local_addr().unwrap();
    let refused = TcpStream::connect(gone).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    // With a full backlog the kernel drops the SYN, and the connect hangs.
    let full = TcpListener::bind_with(local(), &BindOptions::new().backlog(0)).unwrap();
    let address = full.local_addr().unwrap();
    let mut held = Vec::new();
    let error = loop {
        match TcpStream::connect_timeout(address, Duration::from_millis(200)).await {
            Ok(stream) => held.push(stream),
            Err(error) => break error,
        }
        assert!(held.len() < 100, "the backlog never filled");
    };
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
}

#[runtime::test]
async fn a_served_address_can_not_be_bound_again() {
    let first = TcpListener::bind(local()).unwrap();
    let address = first.local_addr().unwrap();
    let serving = first.serve(|_| async {}).unwrap();
    assert_eq!(TcpListener::bind(address).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    let limit = Duration::from_millis(30);
    let begun = std::time::Instant::now();
    let waited = TcpListener::bind_within(address, &BindOptions::new(), limit).await;
    assert_eq!(waited.unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    assert!(begun.elapsed() >= limit);
    drop(serving);
}

/// As the socket of a killed process does, which a kernel thread closes.
#[runtime::test]
#[ignore = "timing"]
async fn an_address_that_is_given_up_in_a_moment_is_bound() {
    let first = std::net::TcpListener::bind(local()).unwrap();
    let address = first.local_addr().unwrap();
    let giving_up = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        drop(first);
    });
    TcpListener::bind(address).unwrap();
    giving_up.join().unwrap();
}

#[runtime::test(workers = 3)]
async fn connections_without_a_napi_are_spread_over_the_workers() {
    let listener = TcpListener::bind(local()).unwrap();
    let address = listener.local_addr().unwrap();
    let serving = listener
        .serve(|mut stream: TcpStream| async move {
            let here = [runtime::current_worker() as u8];
            stream.write_all(&here).await.unwrap();
            let _ = stream.read(&mut [0]).await;
        })
        .unwrap();
    let (mut seen, mut held) = ([0; 3], Vec::new());
    for _ in 0..12 {
        let mut client = TcpStream::connect(address).await.unwrap();
        let mut worker = [0];
        client.read_exact(&mut worker).await.unwrap();
        seen[worker[0] as usize] += 1;
        held.push(client);
    }
    assert_eq!(seen, [4, 4, 4]);
    assert_eq!(serving.alignment().without_napi, 12);
    assert_eq!(serving.connections(), 12);
}

#[runtime::test(workers = 2)]
async fn a_shutdown_lets_handlers_finish_and_aborts_those_that_do_not() {
    for (hangs, limit) in [(false, Duration::from_secs(60)), (true, Duration::from_millis(50))] {
        let listener = TcpListener::bind(local()).unwrap();
        let address = listener.local_addr().unwrap();
        let serving = listener
            .serve(move |mut stream: TcpStream| async move {
                let _ = stream.write_all(b"+").await;
                if hangs {
                    std::future::pending::<()>().await;
                }
                let _ = stream.read(&mut [0]).await;
                let _ = stream.write_all(b"bye").await;
            })
            .unwrap();
        let mut client = TcpStream::connect(address).await.unwrap();
        client.read_exact(&mut [0]).await.unwrap();
        let report = serving.shutdown(limit).await;
        assert_eq!((report.finished, report.aborted), if hangs { (0, 1) } else { (1, 0) });
        let mut answer = Vec::new();
        let read = client.read_to_end(&mut answer).await;
        assert!(hangs || read.is_ok() && answer == b"bye", "{answer:?}");
        assert!(TcpStream::connect(address).await.is_err());
    }
}

#[runtime::test]
async fn nobody_connects_to_a_path_before_it_has_its_mode() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..200 {
        let path = folder.path().join(round.to_string());
        let client = std::thread::spawn({
            let path = path.clone();
            move || {
                while std::os::unix::net::UnixStream::connect(&path).is_err() {}
                std::fs::metadata(&path).unwrap().permissions().mode() & 0o777
            }
        });
        let _listener = UnixListener::bind_with(&path, &BindOptions::new().mode(0o606)).unwrap();
        assert_eq!(client.join().unwrap(), 0o606);
    }
}

#[runtime::test(workers = 2)]
async fn a_shutdown_returns_when_the_aborted_handlers_are_dropped() {
    struct Held(std::sync::Arc<()>);
    impl Drop for Held {
        fn drop(&mut self) {
            std::thread::sleep(Duration::from_millis(100));
            let _ = &self.0;
        }
    }
    let listener = TcpListener::bind(local()).unwrap();
    let address = listener.local_addr().unwrap();
    let held = std::sync::Arc::new(());
    let inside = std::sync::Arc::clone(&held);
    let serving = listener
        .serve(move |_stream: TcpStream| {
            let held = Held(std::sync::Arc::clone(&inside));
            async move {
                let _held = held;
                std::future::pending::<()>().await;
            }
        })
        .unwrap();
    let _clients = [TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap()];
    while serving.connections() < 2 {
        runtime::sleep(Duration::from_millis(1)).await;
    }
    runtime::sleep(Duration::from_millis(20)).await;
    let report = serving.shutdown(Duration::from_millis(1)).await;
    assert_eq!(report.aborted, 2);
    assert_eq!(std::sync::Arc::strong_count(&held), 1, "an aborted handler was not dropped yet");
}

#[test]
fn a_socket_on_a_thread_without_a_worker_panics_with_the_line_that_has_entered_the_runtime() {
    let runtime = runtime::Builder::new().ignore_environment().workers(2).build().unwrap();
    let handle = runtime.handle();
    let refused = |action: &dyn Fn()| -> String {
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(action)).unwrap_err();
        *panic.downcast().unwrap()
    };
    let of_listener = refused(&|| handle.block_on(async { drop(TcpListener::bind("127.0.0.1:0")) }));
    let of_stream = refused(&|| handle.block_on(async { drop(TcpStream::connect("127.0.0.1:9").await) }));
    for (message, line) in [(of_listener, line!() - 2), (of_stream, line!() - 1)] {
        let place = format!("entered the runtime at net/tests/suite/sockets.rs:{line}:");
        assert!(message.contains(&place) && message.contains("spawn_on"), "{message}");
    }
}
