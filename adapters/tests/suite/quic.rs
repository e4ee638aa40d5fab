//! QUIC by quinn: endpoints on all workers, clients whose address changes, handles on other
//! threads, shutdown.

use std::collections::BTreeSet;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use adapters::quinn::{Server, client, serve};
use adapters::tls::Acceptor;
use futures_util::future::join_all;
use quinn::{Connection, Endpoint, Incoming};

use crate::authority::Authority;

const PROTOCOLS: [&str; 1] = ["echo"];

fn local() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

fn acceptor(authority: &Authority) -> Acceptor {
    Acceptor::builder(authority.certificates("server", "localhost")).open().unwrap()
}

/// Echoes what comes on each stream, part by part.
async fn echo(incoming: Incoming) {
    let Ok(connection) = incoming.await else { return };
    while let Ok((mut send, mut receive)) = connection.accept_bi().await {
        drop(runtime::spawn(async move {
            while let Ok(Some(part)) = receive.read_chunk(usize::MAX, true).await {
                send.write_chunk(part.bytes).await.unwrap();
            }
            let _ = send.finish();
        }));
    }
}

fn endpoint(authority: &Authority) -> Endpoint {
    let mut endpoint = client(local()).unwrap();
    endpoint.set_default_client_config(authority.connector().quic(PROTOCOLS).unwrap());
    endpoint
}

async fn connect(endpoint: &Endpoint, server: &Server) -> Connection {
    endpoint.connect(server.local_addr().unwrap(), "localhost").unwrap().await.unwrap()
}

async fn is_echoed(connection: &Connection, message: &[u8]) -> bool {
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    let sending = async {
        send.write_all(message).await.unwrap();
        send.finish().unwrap();
    };
    let (echoed, ()) = futures_util::join!(receive.read_to_end(usize::MAX), sending);
    echoed.unwrap() == message
}

async fn shut_down(server: Server) {
    let report = server.shutdown(Duration::from_secs(60)).await;
    assert_eq!(report.aborted, 0);
}

#[runtime::test(workers = 2)]
async fn connections_are_served_on_every_worker() {
    let authority = Authority::new();
    let workers = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = Arc::clone(&workers);
    let config = acceptor(&authority).quic(PROTOCOLS).unwrap();
    let server = serve(config, local(), move |incoming| {
        seen.lock().unwrap().insert(runtime::current_worker());
        echo(incoming)
    })
    .unwrap();
    // Each from another port: all of them come to one worker once in 2^31 runs.
    let endpoints: Vec<_> = (0..32).map(|_| endpoint(&authority)).collect();
    join_all(endpoints.iter().map(async |endpoint| {
        let connection = connect(endpoint, &server).await;
        assert!(is_echoed(&connection, b"hello").await);
        connection.close(0_u32.into(), b"");
    }))
    .await;
    assert_eq!(*workers.lock().unwrap(), BTreeSet::from([0, 1]));
    shut_down(server).await;
}

#[runtime::test(workers = 2)]
async fn all_addresses_of_ipv6_and_of_ipv4_are_served_on_one_port() {
    let authority = Authority::new();
    let serve_on = |address: SocketAddr| serve(acceptor(&authority).quic(PROTOCOLS).unwrap(), address, echo);
    // The kernel chooses a port that no other test has for IPv4.
    let four = serve_on("0.0.0.0:0".parse().unwrap()).unwrap();
    let port = four.local_addr().unwrap().port();
    let six = serve_on((std::net::Ipv6Addr::UNSPECIFIED, port).into()).unwrap();
    shut_down(six).await;
    shut_down(four).await;
}

#[runtime::test(workers = 2)]
async fn a_stream_goes_on_while_its_clients_address_changes() {
    let authority = Authority::new();
    let server = serve(acceptor(&authority).quic(PROTOCOLS).unwrap(), local(), echo).unwrap();
    let one_client = async || {
        let endpoint = endpoint(&authority);
        let connection = connect(&endpoint, &server).await;
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        for number in 0..8_u8 {
            // As behind a NAT that has forgotten the port. Not before the first answer: until the
            // handshake is confirmed, no address may change (RFC 9000, section 9).
            if number > 0 {
                endpoint.rebind(std::net::UdpSocket::bind(local()).unwrap()).unwrap();
            }
            let message = vec![number; 5_000];
            send.write_all(&message).await.unwrap();
            let mut echoed = vec![0; message.len()];
            receive.read_exact(&mut echoed).await.unwrap();
            assert!(echoed == message);
        }
        connection.close(0_u32.into(), b"");
    };
    // The kernel gives 32 addresses to the same worker once in 2^31 runs.
    futures_util::join!(one_client(), one_client(), one_client(), one_client());
    shut_down(server).await;
}

#[runtime::test(workers = 2)]
async fn many_connections_of_one_socket_carry_much_at_the_same_time() {
    let authority = Authority::new();
    let server = serve(acceptor(&authority).quic(PROTOCOLS).unwrap(), local(), echo).unwrap();
    let endpoint = endpoint(&authority);
    let data: Vec<u8> = (0..500_000_u32).map(|number| number as u8).collect();
    join_all((0..8).map(async |_| {
        let connection = connect(&endpoint, &server).await;
        assert!(is_echoed(&connection, &data).await);
        connection.close(0_u32.into(), b"");
    }))
    .await;
    shut_down(server).await;
}

async fn use_twice(endpoint: Endpoint, server: SocketAddr) {
    let connection = endpoint.connect(server, "localhost").unwrap().await.unwrap();
    assert!(is_echoed(&connection, &[7; 100_000]).await);
    endpoint.rebind(std::net::UdpSocket::bind(local()).unwrap()).unwrap();
    assert!(is_echoed(&connection, &[8; 100_000]).await);
}

#[runtime::test(workers = 2)]
async fn handles_are_used_and_dropped_on_other_threads() {
    let authority = Authority::new();
    let server = serve(acceptor(&authority).quic(PROTOCOLS).unwrap(), local(), echo).unwrap();
    let address = server.local_addr().unwrap();
    let endpoints: [_; 3] = std::array::from_fn(|_| endpoint(&authority));
    let [here, there, outside] = endpoints;
    use_twice(here, address).await;
    runtime::spawn_on(1, move || use_twice(there, address)).await.unwrap();
    let handle = runtime::Handle::current();
    runtime::spawn_blocking(move || {
        // On a non-worker thread.
        std::thread::spawn(move || handle.block_on(use_twice(outside, address))).join().unwrap();
    })
    .await
    .unwrap();
    shut_down(server).await;
}

#[runtime::test(workers = 2)]
async fn a_shutdown_lets_handlers_finish_and_drops_those_that_do_not() {
    let authority = Authority::new();
    let config = acceptor(&authority).quic(PROTOCOLS).unwrap();
    let server = serve(config.clone(), local(), echo).unwrap();
    let endpoint = endpoint(&authority);
    let connection = connect(&endpoint, &server).await;
    assert!(is_echoed(&connection, b"one").await);
    assert_eq!(server.connections(), 1);
    let address = server.local_addr().unwrap();
    let shutdown = runtime::spawn(server.shutdown(Duration::from_secs(60)));
    // It is begun: others are refused.
    runtime::yield_now().await;
    assert!(endpoint.connect(address, "localhost").unwrap().await.is_err());
    assert!(is_echoed(&connection, b"two").await);
    connection.close(0_u32.into(), b"");
    let report = shutdown.await.unwrap();
    assert_eq!((report.finished, report.aborted), (1, 0));

    let server = serve(config, local(), async |incoming: Incoming| {
        let _connection = incoming.await;
        pending().await
    })
    .unwrap();
    let connection = connect(&endpoint, &server).await;
    let report = server.shutdown(Duration::ZERO).await;
    assert_eq!((report.finished, report.aborted), (0, 1));
    connection.closed().await;
}

#[runtime::test]
async fn certificates_are_renewed_without_a_restart() {
    let authority = Authority::new();
    let acceptor = acceptor(&authority);
    let server = serve(acceptor.quic(PROTOCOLS).unwrap(), local(), echo).unwrap();
    let address = server.local_addr().unwrap();
    let endpoint = endpoint(&authority);
    let valid = async |name: &str| endpoint.connect(address, name).unwrap().await.is_ok();
    assert!(valid("localhost").await);
    authority.certificates("server", "renewed.test");
    assert!(!valid("renewed.test").await);
    acceptor.reload().unwrap();
    assert!(valid("renewed.test").await);
    shut_down(server).await;
}

#[runtime::test]
async fn an_address_in_use_is_an_error() {
    let authority = Authority::new();
    let taken = std::net::UdpSocket::bind(local()).unwrap();
    let config = acceptor(&authority).quic(PROTOCOLS).unwrap();
    let error = serve(config, taken.local_addr().unwrap(), echo).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
}
