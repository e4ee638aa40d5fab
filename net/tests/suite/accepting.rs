//! Accepting: dead connections, several tasks on one listener, both address families.

use std::net::{Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::{AsyncReadExt, AsyncWriteExt};
use net::{BindOptions, TcpListener, TcpStream, UnixListener, UnixStream};
use socket2::{Domain, Socket, Type};
use tracing_subscriber::util::SubscriberInitExt;

use crate::common::local;

/// Connects, and resets the connection at once. Returns the client's address.
fn connect_and_reset(to: SocketAddr) -> SocketAddr {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).unwrap();
    socket.connect(&to.into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    socket.set_linger(Some(Duration::ZERO)).unwrap();
    address
}

#[runtime::test]
async fn a_client_that_has_reset_is_accepted_with_its_address() {
    for bound in [local(), (Ipv6Addr::LOCALHOST, 0).into()] {
        let listener = TcpListener::bind(bound).unwrap();
        let address = listener.local_addr().unwrap();
        let gone = connect_and_reset(address);
        let (mut dead, peer) = listener.accept().await.expect("a stranger's reset is not an error");
        assert_eq!(peer, gone);
        let ended = runtime::timeout(Duration::from_secs(30), dead.read(&mut [0])).await.unwrap();
        assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
        let client = TcpStream::connect(address).await.unwrap();
        let (_server, peer) = listener.accept().await.unwrap();
        assert_eq!(peer, client.local_addr().unwrap());
    }
}

#[test]
fn an_accepted_socket_is_close_on_exec_and_non_blocking() {
    use rustix::fs::{OFlags, fcntl_getfl};
    use rustix::io::{FdFlags, fcntl_getfd};
    for driver in crate::drivers::drivers() {
        crate::drivers::one_worker(driver).block_on(async {
            let listener = TcpListener::bind(local()).unwrap();
            let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (server, _) = listener.accept().await.unwrap();
            assert!(fcntl_getfd(&server).unwrap().contains(FdFlags::CLOEXEC), "{driver}");
            assert!(fcntl_getfl(&server).unwrap().contains(OFlags::NONBLOCK), "{driver}");
        });
    }
}

#[runtime::test]
async fn two_tasks_that_wait_on_one_listener_both_accept() {
    let listener = Rc::new(TcpListener::bind(local()).unwrap());
    let address = listener.local_addr().unwrap();
    let accepting: Vec<_> = (0..2)
        .map(|_| {
            let listener = Rc::clone(&listener);
            runtime::spawn(async move { listener.accept().await.unwrap().1 })
        })
        .collect();
    runtime::sleep(Duration::from_millis(2)).await;
    let clients = [TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap()];
    let mut peers = Vec::new();
    for task in accepting {
        let accepted = runtime::timeout(Duration::from_secs(30), task).await;
        peers.push(accepted.expect("a waiting task was forgotten").unwrap());
    }
    let mut addresses = clients.map(|client| client.local_addr().unwrap());
    peers.sort();
    addresses.sort();
    assert_eq!(peers, addresses);
}

#[runtime::test]
async fn a_dropped_accept_leaves_the_connection_to_the_other_task() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = Rc::new(UnixListener::bind(&path).unwrap());
    let first = runtime::spawn({
        let listener = Rc::clone(&listener);
        async move { listener.accept().await.is_ok() }
    });
    let second = runtime::spawn({
        let listener = Rc::clone(&listener);
        async move { listener.accept().await.is_ok() }
    });
    runtime::sleep(Duration::from_millis(2)).await;
    second.abort();
    assert!(second.await.unwrap_err().is_cancelled());
    let _client = UnixStream::connect(&path).await.unwrap();
    let accepted = runtime::timeout(Duration::from_secs(30), first).await;
    assert!(accepted.expect("the waiting task was forgotten").unwrap());
}

#[runtime::test(workers = 2)]
async fn an_unspecified_ipv6_address_takes_connections_of_both_families() {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut by_v4 = TcpStream::connect(([127, 0, 0, 1], port)).await.expect("over IPv4");
    let (mut server, peer) = listener.accept().await.unwrap();
    assert_eq!(peer.ip().to_canonical(), std::net::IpAddr::from([127, 0, 0, 1]));
    by_v4.write_all(b"4").await.unwrap();
    server.read_exact(&mut [0]).await.unwrap();
    // Also as a group with a listener for each worker.
    let serving = crate::common::serve_echo(listener);
    for address in [SocketAddr::from(([127, 0, 0, 1], port)), (Ipv6Addr::LOCALHOST, port).into()] {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"x").await.unwrap();
        client.read_exact(&mut [0]).await.unwrap();
    }
    serving.shutdown(Duration::from_secs(30)).await;
}

#[runtime::test]
async fn a_paused_listener_accepts_nothing_until_it_is_resumed() {
    for is_resumed in [true, false] {
        let listener = TcpListener::bind(local()).unwrap();
        let address = listener.local_addr().unwrap();
        let mut serving = listener.serve_paused(async |_stream| ()).unwrap();
        let mut client = TcpStream::connect(address).await.unwrap();
        settle().await;
        assert_eq!(serving.alignment().accepted, 0);
        if !is_resumed {
            serving.stop_accepting().await;
            assert_eq!(serving.alignment().accepted, 0);
            continue;
        }
        serving.resume();
        // The handler drops the connection.
        let ended = runtime::timeout(Duration::from_secs(30), client.read(&mut [0])).await.unwrap();
        assert_eq!((ended.unwrap(), serving.alignment().accepted), (0, 1));
    }
}

/// A connection on which a byte was sent, and whose reads end after half a minute.
fn client_that_has_asked(address: std::net::SocketAddr) -> std::net::TcpStream {
    let mut client = std::net::TcpStream::connect(address).unwrap();
    std::io::Write::write_all(&mut client, b"x").unwrap();
    client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    client
}

#[test]
fn a_graceful_stop_serves_the_connections_that_wait_in_the_backlog() {
    for driver in crate::drivers::drivers() {
        // A stop may also come before the first accept.
        for turns in [0, 2] {
            crate::drivers::one_worker(driver).block_on(async {
                let listener = TcpListener::bind(local()).unwrap();
                let address = listener.local_addr().unwrap();
                let serving = crate::common::serve_echo(listener);
                for _ in 0..turns {
                    runtime::yield_now().await;
                }
                let mut clients: Vec<_> = (0..8).map(|_| client_that_has_asked(address)).collect();
                serving.shutdown(Duration::from_secs(30)).await;
                // A ring sends what was written when the turn ends.
                runtime::sleep(Duration::from_millis(1)).await;
                let read = |client: &mut std::net::TcpStream| std::io::Read::read(client, &mut [0]);
                let served = clients.iter_mut().map(read).filter(|read| matches!(read, Ok(1))).count();
                assert_eq!(served, clients.len(), "{driver:?}, stopped after {turns} turns");
            });
        }
    }
}

#[runtime::test]
async fn a_graceful_stop_serves_no_more_than_the_backlog_holds() {
    const ENDLESS: usize = 20;
    let listener = TcpListener::bind_with(local(), &BindOptions::new().backlog(0)).unwrap();
    let address = listener.local_addr().unwrap();
    let clients = Arc::new(Mutex::new(vec![std::net::TcpStream::connect(address).unwrap()]));
    // A flood: each connection that is accepted brings the next.
    let flood = Arc::clone(&clients);
    let serving = listener.serve(move |_stream| {
        let mut clients = flood.lock().unwrap();
        if clients.len() < ENDLESS {
            clients.push(std::net::TcpStream::connect(address).unwrap());
        }
        async {}
    });
    serving.unwrap().shutdown(Duration::from_secs(30)).await;
    // The kernel holds one connection more than the backlog.
    assert_eq!(clients.lock().unwrap().len(), 2);
}

#[runtime::test(workers = 2)]
async fn a_graceful_stop_serves_the_connections_that_wait_for_the_other_worker() {
    const CLIENTS: usize = 32;
    let bound = std::net::TcpListener::bind(local()).unwrap();
    // Worker 0's socket lives on, as one that systemd passes: its backlog is the successor's.
    let successor = bound.try_clone().unwrap();
    let address = bound.local_addr().unwrap();
    let serving = crate::common::serve_echo(TcpListener::from_std(bound).unwrap());
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let (begin, begun) = std::sync::mpsc::channel();
    let blocking = runtime::spawn_on(1, move || async move {
        begin.send(()).unwrap();
        let _ = blocked.recv();
    });
    begun.recv().unwrap();
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| client_that_has_asked(address)).collect();
    let stopped = runtime::spawn(serving.shutdown(Duration::from_secs(30)));
    // It has asked worker 1, which after its task takes in what has come, and then stops its
    // listener.
    runtime::yield_now().await;
    drop(unblock);
    blocking.await.unwrap();
    stopped.await.unwrap();
    // A ring sends what was written when the turn ends.
    runtime::sleep(Duration::from_millis(1)).await;
    let mut left = 0;
    while successor.accept().is_ok() {
        left += 1;
    }
    let read = |client: &mut std::net::TcpStream| std::io::Read::read(client, &mut [0]);
    let served = clients.iter_mut().map(read).filter(|read| matches!(read, Ok(1))).count();
    assert!(left < CLIENTS, "worker 1 got none");
    assert_eq!(served + left, CLIENTS, "{left} are left to the successor");
}

#[runtime::test]
async fn a_listener_goes_to_the_standard_library_with_what_was_accepted_ahead() {
    let listener = TcpListener::bind(local()).unwrap();
    let address = listener.local_addr().unwrap();
    let mut clients = vec![TcpStream::connect(address).await.unwrap()];
    let first = std::future::poll_fn(|context| listener.poll_accept(context)).await.unwrap();
    assert_eq!(first.1, clients[0].local_addr().unwrap());
    for _ in 0..3 {
        clients.push(TcpStream::connect(address).await.unwrap());
    }
    runtime::sleep(Duration::from_millis(2)).await;
    let (listener, ahead) = listener.into_std().unwrap();
    let mut peers: Vec<_> = ahead.iter().map(|stream| stream.peer_addr().unwrap()).collect();
    peers.extend((ahead.len()..3).map(|_| listener.accept().unwrap().1));
    let mut addresses: Vec<_> = clients[1..].iter().map(|client| client.local_addr().unwrap()).collect();
    peers.sort();
    addresses.sort();
    assert_eq!(peers, addresses);
}

#[runtime::test]
async fn of_a_full_backlog_one_accept_takes_16_connections_at_most() {
    const CLIENTS: usize = 300;
    let listener = TcpListener::bind(local()).unwrap();
    let address = listener.local_addr().unwrap();
    let connect = |_| std::net::TcpStream::connect(address).unwrap();
    let clients: Vec<_> = (0..CLIENTS).map(connect).collect();
    let _first = listener.accept().await.unwrap();
    runtime::sleep(Duration::from_millis(2)).await;
    let (listener, ahead) = listener.into_std().unwrap();
    assert!(ahead.len() < 16, "{} connections were accepted that nobody asked for", ahead.len());
    for _ in 1 + ahead.len()..CLIENTS {
        listener.accept().expect("the others wait in the backlog");
    }
    drop(clients);
}

#[runtime::test]
async fn a_stream_with_zero_linger_is_reset_by_its_close() {
    let (client, mut server) = crate::common::pair().await;
    client.set_keepalive(Some(net::TcpKeepalive::new().with_interval(Duration::from_secs(7)))).unwrap();
    let interval = socket2::SockRef::from(&client).tcp_keepalive_interval().unwrap();
    assert_eq!(interval, Duration::from_secs(7));
    client.set_zero_linger().unwrap();
    drop(client);
    let read = runtime::timeout(Duration::from_secs(30), server.read(&mut [0])).await.unwrap();
    assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
}

/// What is logged while an accept loop on worker 0 of two has taken 100 connections. `busy`: worker
/// 1 runs a task, too.
fn logged_of_an_accept_loop(busy: bool) -> String {
    let file = tempfile::tempfile().unwrap();
    let writer = std::sync::Mutex::new(file.try_clone().unwrap());
    let _logs = tracing_subscriber::fmt().with_writer(writer).set_default();
    let runtime = runtime::Builder::new().ignore_environment().workers(2).build().unwrap();
    runtime.block_on(async {
        if busy {
            runtime::spawn_on(1, || async {}).await.unwrap();
        }
        let listener = TcpListener::bind(local()).unwrap();
        for _ in 0..100 {
            let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            runtime::spawn(async move { drop(stream) });
        }
    });
    let mut text = String::new();
    let mut file = file;
    std::io::Seek::rewind(&mut file).unwrap();
    std::io::Read::read_to_string(&mut file, &mut text).unwrap();
    text
}

#[test]
fn an_accept_loop_that_leaves_the_other_workers_idle_is_warned_of_once() {
    let alone = logged_of_an_accept_loop(false);
    assert_eq!(alone.matches("TcpListener::serve").count(), 1, "{alone}");
    assert!(!logged_of_an_accept_loop(true).contains("TcpListener::serve"));
}

/// A served listener of which at most two connections are handled at a time, each until its first
/// byte; and its address. Handlers count how many of them there are.
fn serve_two_at_a_time(listener: TcpListener) -> (net::Serving, SocketAddr, Arc<Mutex<(usize, usize)>>) {
    let address = listener.local_addr().unwrap();
    let running = Arc::new(Mutex::new((0, 0)));
    let counted = Arc::clone(&running);
    let serving = listener.limit_connections(2).serve(move |mut stream: TcpStream| {
        let running = Arc::clone(&counted);
        async move {
            {
                let mut running = running.lock().unwrap();
                running.0 += 1;
                running.1 = running.1.max(running.0);
            }
            let _ = stream.read(&mut [0]).await;
            running.lock().unwrap().0 -= 1;
            let _ = stream.write_all(b"x").await;
        }
    });
    (serving.unwrap(), address, running)
}

#[runtime::test(workers = 2)]
async fn connections_beyond_the_limit_wait_and_are_all_served() {
    let (serving, address, running) = serve_two_at_a_time(TcpListener::bind(local()).unwrap());
    let mut clients: Vec<_> = (0..60).map(|_| client_that_waits(address)).collect();
    // The other worker may begin late.
    let begun = Instant::now();
    while running.lock().unwrap().0 < 2 && begun.elapsed() < Duration::from_secs(30) {
        runtime::sleep(Duration::from_millis(1)).await;
    }
    settle().await;
    assert_eq!((*running.lock().unwrap(), serving.connections()), ((2, 2), 2));
    let all = runtime::spawn_blocking(move || {
        clients.iter_mut().for_each(|client| std::io::Write::write_all(client, b"x").unwrap());
        // In any order: those that wait are served as others end.
        clients.iter_mut().all(|client| matches!(std::io::Read::read(client, &mut [0]), Ok(1)))
    });
    assert!(all.await.unwrap(), "a connection that waits was forgotten");
    assert_eq!(running.lock().unwrap().1, 2);
    assert_eq!(serving.shutdown(Duration::from_secs(30)).await.aborted, 0);
}

#[runtime::test]
async fn a_connection_that_waits_is_served_once_another_has_ended() {
    let (serving, address, running) = serve_two_at_a_time(TcpListener::bind(local()).unwrap());
    let mut clients: Vec<_> = (0..4).map(|_| client_that_waits(address)).collect();
    settle().await;
    assert_eq!((running.lock().unwrap().0, serving.connections()), (2, 2));
    // Without a byte: the client goes.
    drop(clients.remove(0));
    settle().await;
    assert_eq!((running.lock().unwrap().0, serving.alignment().accepted), (2, 3));
    // The last has no place at the stop, and is closed.
    assert_eq!(serving.shutdown(Duration::from_secs(30)).await.finished, 2);
    // A ring sends what was written when the turn ends.
    settle().await;
    let ends = clients.iter_mut().map(|client| std::io::Read::read(client, &mut [0]));
    let ends: Vec<_> = ends.map(|end| matches!(end, Ok(1))).collect();
    assert_eq!(ends, [true, true, false]);
}

fn client_that_waits(address: SocketAddr) -> std::net::TcpStream {
    let client = std::net::TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    client
}

/// More turns of the worker than a connection takes to be accepted and handled.
async fn settle() {
    for _ in 0..20 {
        runtime::sleep(Duration::from_millis(1)).await;
    }
}
