//! Operations that outlive their futures keep what the kernel uses: bytes, buffers, descriptors.

use std::os::fd::AsFd;
use std::time::Duration;

use futures_util::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use net::{TcpListener, TcpStream};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use runtime::{Builder, DriverKind};

use tests_macros::isolated;

use crate::common::{drivers_with_a_ring, local, open_descriptors, pair, serve_echo};
use crate::drivers::{drivers, one_worker};

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

#[test]
fn a_stream_that_is_dropped_in_the_last_turn_is_closed_when_block_on_returns() {
    for driver in drivers() {
        let runtime = one_worker(driver);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let client = std::thread::spawn(move || {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            std::io::Write::write_all(&mut stream, b"x").unwrap();
            let mut answer = String::new();
            std::io::Read::read_to_string(&mut stream, &mut answer).map(|_| answer)
        });
        listener.set_nonblocking(true).unwrap();
        runtime.block_on(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            let mut stream = listener.accept().await.unwrap().0;
            stream.read_exact(&mut [0]).await.unwrap();
            stream.write_all(b"answer").await.unwrap();
        });
        assert_eq!(client.join().unwrap().unwrap(), "answer", "{driver}");
    }
}

#[test]
fn bytes_written_before_the_runtime_ends_arrive_at_a_slow_peer() {
    use std::io::Read;
    for driver in drivers() {
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
            // Until there is no room, neither in the kernel nor in the ring's queue.
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
fn a_peer_that_does_not_get_everything_sees_an_error_and_no_clean_end() {
    use std::io::Read;
    for driver in drivers_with_a_ring() {
        let listener = std::net::TcpListener::bind(local()).unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4 << 10).unwrap();
        let address = listener.local_addr().unwrap();
        let (written, mut stream) = one_worker(driver).block_on(async move {
            let mut client = TcpStream::connect(address).await.unwrap();
            let (stream, _) = listener.accept().unwrap();
            client.set_send_buffer_size(4 << 10).unwrap();
            let mut written = 0;
            while let Ok(length) =
                runtime::timeout(Duration::from_millis(300), client.write(&[1; 4000])).await
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
fn sockets_go_on_in_the_next_block_on() {
    for driver in drivers() {
        let runtime = one_worker(driver);
        let limit = Duration::from_secs(30);
        let (serving, mut client, udp) = runtime.block_on(async {
            let listener = TcpListener::bind(local()).unwrap();
            let address = listener.local_addr().unwrap();
            let serving = serve_echo(listener);
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(b"first").await.unwrap();
            (serving, client, net::UdpSocket::bind(local()).unwrap())
        });
        for _ in 0..2 {
            runtime.block_on(async {
                let echoed = runtime::timeout(limit, client.read_exact(&mut [0; 5])).await;
                echoed.unwrap_or_else(|_| panic!("on {driver} the connection hangs")).unwrap();
                client.write_all(b"later").await.unwrap();
                udp.send_to(b"x", udp.local_addr().unwrap()).await.unwrap();
                let received =
                    runtime::timeout(limit, async { udp.recv_from(&mut [0]).await.unwrap() }).await;
                assert!(received.is_ok(), "on {driver} the UDP socket hangs");
            });
        }
        runtime.block_on(serving.shutdown(Duration::from_secs(30)));
    }
}

#[test]
fn what_was_written_is_sent_when_block_on_returns() {
    use std::io::Read;
    for driver in drivers() {
        let listener = std::net::TcpListener::bind(local()).unwrap();
        let address = listener.local_addr().unwrap();
        let runtime = one_worker(driver);
        let _client = runtime.block_on(async {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(b"hello").await.unwrap();
            client
        });
        let (mut peer, _) = listener.accept().unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        peer.read_exact(&mut [0; 5]).unwrap_or_else(|error| panic!("on {driver}: {error}"));
    }
}

#[test]
fn a_socket_that_outlives_its_runtime_returns_errors_and_does_not_hang() {
    for driver in drivers() {
        let listener = std::net::TcpListener::bind(local()).unwrap();
        let address = listener.local_addr().unwrap();
        let runtime = one_worker(driver);
        let mut client = runtime.block_on(async move { TcpStream::connect(address).await.unwrap() });
        drop(runtime);
        one_worker(driver).block_on(async move {
            let limit = Duration::from_secs(30);
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
async fn slow_readers_do_not_take_the_buffers_of_others() {
    let listener = TcpListener::bind(local()).unwrap();
    let address = listener.local_addr().unwrap();
    let mut held = Vec::new();
    for _ in 0..200 {
        let mut client = TcpStream::connect(address).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        client.write_all(&[1; 6000]).await.unwrap();
        // Reads one byte and leaves the rest unread.
        server.read_exact(&mut [0; 1]).await.unwrap();
        held.push((client, server));
    }
    let mut client = TcpStream::connect(address).await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    for _ in 0..100 {
        client.write_all(&[2; 5000]).await.unwrap();
        let mut buffer = [0; 5000];
        let read = runtime::timeout(Duration::from_secs(30), server.read_exact(&mut buffer)).await;
        read.expect("the other connections hold all the buffers").unwrap();
        assert_eq!(buffer, [2; 5000]);
    }
    for (_client, mut server) in held {
        let mut rest = vec![0; 5999];
        server.read_exact(&mut rest).await.unwrap();
        assert!(rest.iter().all(|&byte| byte == 1));
    }
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
    serving.shutdown(Duration::from_secs(30)).await;
    TcpListener::bind(address).unwrap();
}

#[runtime::test]
async fn a_burst_of_connections_is_accepted_in_full() {
    let listener = TcpListener::bind(local()).unwrap();
    let address = listener.local_addr().unwrap();
    let clients = std::thread::spawn(move || {
        (0..500).map(|_| std::net::TcpStream::connect(address).unwrap()).collect::<Vec<_>>()
    });
    let mut accepted = Vec::new();
    for _ in 0..500 {
        accepted.push(listener.accept().await.unwrap());
        if accepted.len() % 100 == 0 {
            // Long enough for the kernel to fill the backlog.
            runtime::sleep(Duration::from_millis(5)).await;
        }
    }
    drop(clients.join().unwrap());
}

const CONNECTIONS: usize = 10_000;

/// Opens all connections, and sends on some of them.
fn run_clients(address: std::net::SocketAddr) {
    use std::io::{Read, Write};
    let connect = |_| std::net::TcpStream::connect(address).unwrap();
    let mut streams: Vec<_> = (0..CONNECTIONS).map(connect).collect();
    for stream in streams.iter_mut().step_by(97) {
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).unwrap();
    }
}

#[test]
#[isolated]
fn ten_thousand_idle_connections_leak_neither_descriptors_nor_memory() {
    let Some(()) = requirements::descriptors(CONNECTIONS as u64 + 100) else { return };
    if let Ok(address) = std::env::var("CLIENTS_OF") {
        return run_clients(address.parse().unwrap());
    }
    for driver in drivers() {
        one_worker(driver).block_on(async move {
            let listener = TcpListener::bind(local()).unwrap();
            let address = listener.local_addr().unwrap();
            let serving = serve_echo(listener);
            runtime::sleep(Duration::from_millis(5)).await;
            let descriptors = open_descriptors();
            let mut resident = Vec::new();
            for _ in 0..5 {
                let (done, finished) = std::os::unix::net::UnixStream::pair().unwrap();
                let clients = std::thread::spawn(move || {
                    let status =
                        requirements::once_more().env("CLIENTS_OF", address.to_string()).status().unwrap();
                    drop(done);
                    assert!(status.success());
                });
                finished.set_nonblocking(true).unwrap();
                let finished = runtime::io::AsyncFd::new(finished, runtime::io::SourceKind::Other).unwrap();
                finished.ready(runtime::io::Direction::Read).await;
                clients.join().unwrap();
                drop(finished);
                let give_up = std::time::Instant::now() + Duration::from_secs(30);
                while serving.connections() > 0 && std::time::Instant::now() < give_up {
                    runtime::sleep(Duration::from_millis(10)).await;
                }
                assert_eq!(serving.connections(), 0, "on {driver}");
                resident.push(requirements::resident_kib(std::process::id()));
            }
            // Turns for the last operations that were cancelled.
            let give_up = std::time::Instant::now() + Duration::from_secs(30);
            while open_descriptors() > descriptors && std::time::Instant::now() < give_up {
                runtime::sleep(Duration::from_millis(10)).await;
            }
            assert_eq!(open_descriptors(), descriptors, "on {driver}");
            // The allocator may keep what a wave needed, or return it. Later waves must not need
            // more.
            let (first, last) = (resident[0].max(resident[1]), resident[3].min(resident[4]));
            assert!(last < first + 1024, "on {driver}: {resident:?} KiB");
            serving.shutdown(Duration::from_secs(30)).await;
        });
    }
}

/// Forbids io_uring to this thread and its children, as the default seccomp filter of containers
/// does.
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
fn without_io_uring_auto_takes_epoll_and_reports_why_and_uring_fails() {
    // The filter applies to this thread, which is also the runtime's worker.
    std::thread::spawn(|| {
        forbid_io_uring();
        let runtime = Builder::new().ignore_environment().workers(1).build().unwrap();
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
        assert!(message.contains("io_uring is forbidden") && message.contains("use epoll"), "{message}");
    })
    .join()
    .unwrap();
}

/// Otherwise one turn of many tasks gathers more than the caches hold, and hands it to the network
/// in one burst. Writes of 16 KiB and more leave at once, and count as well: a task that makes them
/// does not keep others from the wait.
#[test]
fn a_turn_ends_when_its_tasks_have_written_much() {
    const TASKS: usize = 64;
    for (driver, size) in
        drivers_with_a_ring().into_iter().flat_map(|driver| [(driver, 12_000), (driver, 16 << 10)])
    {
        let turns = one_worker(driver).block_on(async {
            let turns = || runtime::metrics()[0].turns;
            // All are ready at once, so that one turn could run them all.
            let tasks = (0..TASKS).map(|_| {
                let (stream, peer) = std::os::unix::net::UnixStream::pair().unwrap();
                let mut stream = net::UnixStream::from_std(stream).unwrap();
                runtime::spawn(async move {
                    stream.write_all(&vec![7; size]).await.unwrap();
                    (turns(), stream, peer)
                })
            });
            let tasks: Vec<_> = tasks.collect();
            let begun = turns();
            let mut last = begun;
            for task in tasks {
                last = task.await.unwrap().0;
            }
            last - begun
        });
        // 128 KiB each.
        assert!(turns as usize >= TASKS * size / (128 << 10) - 1, "{driver}, {size} bytes: {turns} turns");
    }
}

/// The time limit that a connection has some turns after its stream has written and was dropped.
/// `full`: the kernel has no room for what was written.
async fn user_timeout_after_a_drop(full: bool) -> Option<Duration> {
    let (mut stream, _peer) = crate::common::with_std_peer().await;
    let socket = socket2::Socket::from(stream.as_fd().try_clone_to_owned().unwrap());
    while full && std::io::Write::write(&mut &socket, &[7; 1 << 16]).is_ok() {}
    stream.write_all(b"the last bytes").await.unwrap();
    drop(stream);
    for _ in 0..5 {
        runtime::sleep(Duration::from_millis(1)).await;
    }
    socket.tcp_user_timeout().unwrap()
}

#[test]
fn the_peer_of_a_dropped_stream_has_a_time_limit_if_it_has_to_make_room() {
    for driver in drivers_with_a_ring() {
        one_worker(driver).block_on(async {
            assert_eq!(user_timeout_after_a_drop(false).await, None);
            assert_eq!(user_timeout_after_a_drop(true).await, Some(Duration::from_secs(30)));
        });
    }
}

#[test]
fn what_a_connection_may_hold_is_limited_as_the_builder_says() {
    const LIMIT: usize = 8 << 10;
    if !drivers_with_a_ring().contains(&DriverKind::Uring) {
        return;
    }
    let builder = Builder::new().ignore_environment().workers(1).driver(DriverKind::Uring).ring_size(64);
    let runtime = builder.ring_unread_limit(LIMIT).ring_unsent_limit(LIMIT).build().unwrap();
    runtime.block_on(async {
        let (stream, peer) = crate::common::with_std_peer().await;
        let mut written = 0;
        while let Ok(length) = stream.try_write(&[7; 1000]) {
            written += length;
        }
        assert_eq!(written, LIMIT);
        // Begins to receive.
        assert!(runtime::timeout(Duration::from_millis(1), stream.readable()).await.is_err());
        peer.set_nonblocking(true).unwrap();
        let before = runtime::metrics()[0].received_bytes;
        // In small steps: the cancel goes out with an enter that may bring some more.
        for _ in 0..200 {
            let _ = std::io::Write::write(&mut &peer, &[7; 1000]);
            runtime::sleep(Duration::from_micros(200)).await;
        }
        let ahead = runtime::metrics()[0].received_bytes - before;
        assert!((LIMIT as u64..64 << 10).contains(&ahead), "{ahead} bytes were received ahead");
    });
}
