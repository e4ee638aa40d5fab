//! HTTP servers on hyper: protocols, upgrades, shutdown.

use std::cell::Cell;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use adapters::HyperIo;
use adapters::hyper::{Client, Executor, Peer, serve};
use futures_util::{AsyncReadExt, AsyncWriteExt};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONNECTION, UPGRADE};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::server::conn::auto;
use net::{TcpStream, UnixListener, UnixStream};

use crate::common::{listener, send_too_large_a_body, settle};

/// Answers `/sleep/MILLISECONDS` later, and anything else at once, with the path and how many
/// requests this connection has made. The counter makes the service `!Send`.
fn counting(
    _: &Peer,
) -> impl hyper::service::Service<
    Request<Incoming>,
    Response = Response<String>,
    Error = Infallible,
    Future: 'static,
> + use<> {
    let requests = Rc::new(Cell::new(0));
    service_fn(move |request: Request<Incoming>| {
        let requests = Rc::clone(&requests);
        async move {
            requests.set(requests.get() + 1);
            if let Some(time) = request.uri().path().strip_prefix("/sleep/") {
                runtime::sleep(Duration::from_millis(time.parse().unwrap())).await;
            }
            // Answers once the connection has had this number of requests.
            if let Some(count) = request.uri().path().strip_prefix("/until/") {
                while requests.get() < count.parse().unwrap() {
                    runtime::sleep(Duration::from_millis(1)).await;
                }
            }
            Ok(Response::new(format!("{} {}", request.uri().path(), requests.get())))
        }
    })
}

async fn raw(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

async fn get(client: &Client<Empty<Bytes>>, uri: String) -> Result<String, adapters::hyper::BoxError> {
    let response = client.get().get(uri.parse()?).await?;
    Ok(String::from_utf8(response.into_body().collect().await?.to_bytes().to_vec())?)
}

#[runtime::test]
async fn pipelined_requests_are_answered_in_order() {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let server = serve(listener, counting).start().unwrap();
    let answer = raw(
        address,
        "GET /first HTTP/1.1\r\n\r\nGET /sleep/20 HTTP/1.1\r\n\r\nGET /third HTTP/1.1\r\nconnection: close\r\n\r\n",
    )
    .await;
    let bodies: Vec<_> =
        answer.split("\r\n\r\n").skip(1).map(|part| part.split("HTTP/1.1").next().unwrap()).collect();
    assert_eq!(bodies, ["/first 1", "/sleep/20 2", "/third 3"]);
    assert_eq!(server.shutdown(Duration::from_secs(60)).await.aborted, 0);
}

#[runtime::test]
async fn a_client_reuses_connections_and_http2_has_many_requests_on_one() {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let server = serve(listener, counting).start().unwrap();
    let http1 = Client::new();
    for number in 1..=3 {
        assert_eq!(get(&http1, format!("http://{address}/a")).await.unwrap(), format!("/a {number}"));
    }
    let http2 = Client::http2();
    // On one connection, at the same time.
    let uri = format!("http://{address}/until/20");
    let requests = (0..20).map(|_| get(&http2, uri.clone()));
    for answer in futures_util::future::join_all(requests).await {
        answer.unwrap();
    }
    assert_eq!(get(&http2, format!("http://{address}/b")).await.unwrap(), "/b 21");
    assert_eq!(server.alignment().accepted, 2);
}

#[runtime::test]
async fn a_shutdown_lets_requests_in_progress_finish_and_closes_the_rest() {
    for client in [Client::new(), Client::http2()] {
        let listener = listener();
        let address = listener.local_addr().unwrap();
        let server = serve(listener, counting).start().unwrap();
        let mut idle = TcpStream::connect(address).await.unwrap();
        idle.write_all(b"GET /idle HTTP/1.1\r\n\r\n").await.unwrap();
        let busy = runtime::spawn({
            let client = client.clone();
            async move { get(&client, format!("http://{address}/sleep/200")).await }
        });
        while server.connections() < 2 {
            runtime::sleep(Duration::from_millis(5)).await;
        }
        settle().await;
        let report = server.shutdown(Duration::from_secs(60)).await;
        assert_eq!((report.finished, report.aborted), (2, 0));
        assert_eq!(busy.await.unwrap().unwrap(), "/sleep/200 1");
        let mut answer = String::new();
        idle.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("/idle 1"), "{answer}");
        assert!(TcpStream::connect(address).await.is_err());
    }
}

/// The clients have sent no whole request. That of HTTP/2 takes the GOAWAY, and doesn't answer the
/// PING beside it.
#[runtime::test]
async fn clients_without_a_request_in_progress_dont_hold_a_shutdown() {
    let authority = crate::authority::Authority::new();
    let acceptor = adapters::tls::Acceptor::builder(authority.certificates("a", "localhost")).http().open();
    let acceptor = acceptor.unwrap();
    let half_a_head = "GET / HT";
    let preface_and_settings = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let half_a_client_hello = "\x16\x03\x01\x01";
    for (tls, begun) in
        [(None, vec!["", half_a_head, preface_and_settings]), (Some(acceptor), vec!["", half_a_client_hello])]
    {
        let listener = listener();
        let address = listener.local_addr().unwrap();
        let server = serve(listener, counting);
        let server = match tls {
            Some(acceptor) => server.tls(acceptor),
            None => server,
        };
        let server = server.start().unwrap();
        let mut clients = Vec::new();
        for begun in begun {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(begun.as_bytes()).await.unwrap();
            clients.push(client);
        }
        while server.connections() < clients.len() {
            runtime::sleep(Duration::from_millis(5)).await;
        }
        settle().await;
        assert_eq!(server.shutdown(Duration::from_secs(60)).await.aborted, 0);
    }
}

#[runtime::test]
async fn a_request_that_outlives_the_shutdown_is_dropped() {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let server = serve(listener, counting).start().unwrap();
    let client = Client::http2();
    let hung = runtime::spawn(async move { get(&client, format!("http://{address}/sleep/60000")).await });
    settle().await;
    let report = server.shutdown(Duration::from_millis(100)).await;
    assert_eq!((report.finished, report.aborted), (0, 1));
    assert!(hung.await.unwrap().is_err());
}

#[runtime::test]
async fn the_awaited_server_returns_after_its_signal() {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = futures_channel::oneshot::channel::<()>();
    let running = serve(listener, counting).with_graceful_shutdown(async move {
        let _ = stopped.await;
    });
    let running = runtime::spawn(running.into_future());
    assert!(raw(address, "GET / HTTP/1.0\r\n\r\n").await.ends_with("/ 1"));
    assert!(!running.is_finished());
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
}

#[runtime::test]
async fn the_awaited_server_drops_at_its_limit_what_has_not_ended() {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = futures_channel::oneshot::channel::<()>();
    let stopped = async move {
        let _ = stopped.await;
    };
    let running = serve(listener, counting).with_graceful_shutdown(stopped);
    let running = runtime::spawn(running.shutdown_limit(Duration::from_millis(100)).into_future());
    let client = Client::http2();
    let hung = runtime::spawn(async move { get(&client, format!("http://{address}/sleep/3600000")).await });
    settle().await;
    stop.send(()).unwrap();
    let ended = runtime::timeout(Duration::from_secs(60), running).await;
    ended.expect("it waits for the request").unwrap().unwrap();
    assert!(hung.await.unwrap().is_err());
}

#[runtime::test]
async fn the_awaited_server_returns_the_error_of_a_signal_that_cannot_be_awaited() {
    let failed = async { Err(io::Error::other("no handler")) };
    let error = serve(listener(), counting).with_graceful_shutdown(failed).await.unwrap_err();
    assert_eq!(error.to_string(), "no handler");
}

#[runtime::test]
async fn a_client_that_sends_no_request_is_cut_off() {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let server =
        serve(listener, counting).header_read_timeout(Some(Duration::from_millis(100))).start().unwrap();
    // Also before it has said whether it speaks HTTP/2.
    for begun in ["", "PRI * HTTP/2.0\r\n", "GET / HTTP/1.1\r\nhos"] {
        let answer = runtime::timeout(Duration::from_secs(60), raw(address, begun)).await;
        assert_eq!(answer.as_deref(), Ok(""), "{begun:?}");
    }
    server.shutdown(Duration::ZERO).await;
}

#[runtime::test]
async fn a_client_that_still_sends_its_body_gets_the_response_that_refuses_it() {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let server = serve(listener, |_: &Peer| {
        service_fn(async |_: Request<Incoming>| {
            let refused = Response::builder().status(StatusCode::PAYLOAD_TOO_LARGE);
            Ok::<_, Infallible>(refused.body(Empty::<Bytes>::new()).unwrap())
        })
    })
    .start()
    .unwrap();
    send_too_large_a_body(TcpStream::connect(address).await.unwrap()).await;
    assert_eq!(server.shutdown(Duration::from_secs(60)).await.aborted, 0);
}

#[runtime::test]
async fn a_client_that_keeps_its_side_open_after_the_last_response_is_left_after_some_seconds() {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let server = serve(listener, counting).start().unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let begin = std::time::Instant::now();
    // Of its body, which the server doesn't wait for, it sends nothing yet.
    let head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\nconnection: close\r\n\r\n";
    stream.write_all(head).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    // Bytes are taken, and begin no other request.
    while stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.is_ok() {
        assert!(begin.elapsed() < Duration::from_secs(60), "it is never closed");
        runtime::sleep(Duration::from_millis(50)).await;
    }
    assert!(begin.elapsed() >= Duration::from_millis(1900), "closed after {:?}", begin.elapsed());
    server.shutdown(Duration::from_secs(60)).await;
}

/// Returns the answer, and whether the server has closed the connection without waiting for its
/// client.
async fn ask_for_the_last_time(address: SocketAddr, request: &[u8]) -> (String, bool) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    settle().await;
    // A write to a connection that the server has closed gets a reset, which the next write reports.
    let is_open = stream.write_all(b"x").await.is_ok() && {
        let _ = stream.flush().await;
        settle().await;
        stream.write_all(b"x").await.is_ok() && stream.flush().await.is_ok()
    };
    (answer, !is_open)
}

#[test]
fn only_a_last_request_without_a_body_ends_the_connection_without_waiting_for_its_client() {
    const CLOSE: &str = "host: x\r\nconnection: Close\r\n";
    let cases = [
        (format!("GET /a HTTP/1.1\r\n{CLOSE}\r\n"), Some(true)),
        ("GET /a HTTP/1.0\r\nhost: x\r\n\r\n".to_owned(), Some(true)),
        // It should not send more, but gets its answer. A ring receives all of it.
        (format!("GET /a HTTP/1.1\r\n{CLOSE}\r\nGET /b HTTP/1.1\r\nhost: x\r\n\r\n"), Some(true)),
        (format!("GET /a HTTP/1.1\r\n{CLOSE}\r\n{}", "x".repeat(100_000)), None),
        (format!("POST /a HTTP/1.1\r\n{CLOSE}content-length: 9\r\n\r\nx"), Some(false)),
        (format!("POST /a HTTP/1.1\r\n{CLOSE}transfer-encoding: chunked\r\n\r\n"), Some(false)),
    ];
    crate::drivers::on_each_driver(1, async || {
        let listener = listener();
        let address = listener.local_addr().unwrap();
        let server = serve(listener, counting).start().unwrap();
        for (request, closes) in &cases {
            let (answer, closed) = ask_for_the_last_time(address, request.as_bytes()).await;
            let request = &request[..request.len().min(100)];
            assert!(answer.starts_with("HTTP/1.") && answer.contains(" 200 OK"), "{request}: {answer}");
            assert_eq!(answer.matches("200 OK").count(), 1, "{request}: {answer}");
            assert!(closes.is_none_or(|closes| closes == closed), "{request}");
        }
        server.shutdown(Duration::ZERO).await;
    });
}

#[runtime::test]
async fn a_client_that_has_closed_its_side_gets_the_answer_to_its_last_request() {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let allow = |builder: &mut auto::Builder<Executor>| {
        builder.http1().half_close(true);
    };
    let server = serve(listener, counting).configure(allow).start().unwrap();
    for path in ["/a", "/sleep/20"] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with(&format!("{path} 1")), "{answer}");
    }
    server.shutdown(Duration::from_secs(60)).await;
}

#[runtime::test]
#[ignore = "timing"]
async fn a_shutdown_does_not_wait_for_clients_that_keep_their_side_open() {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let server = serve(listener, counting).start().unwrap();
    let idle = async || {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut begun = [0; 12];
        stream.read_exact(&mut begun).await.unwrap();
        stream
    };
    let clients = [idle().await, idle().await];
    let begin = std::time::Instant::now();
    assert_eq!(server.shutdown(Duration::from_secs(60)).await.aborted, 0);
    assert!(begin.elapsed() < Duration::from_millis(1500), "{:?}", begin.elapsed());
    drop(clients);
}

#[runtime::test]
async fn a_unix_socket_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("http");
    let server = serve(UnixListener::bind(&path).unwrap(), |peer: &Peer| {
        assert_eq!(peer.address(), None);
        counting(peer)
    })
    .start()
    .unwrap();
    let mut client = UnixStream::connect(&path).await.unwrap();
    client.write_all(b"GET /unix HTTP/1.0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("/unix 1"), "{answer}");
    assert_eq!(server.shutdown(Duration::from_secs(60)).await.aborted, 0);
}

/// Where a test takes an upgraded connection.
type Upgrades = flume::Sender<hyper::upgrade::Upgraded>;

async fn upgrading(
    mut request: Request<Incoming>,
    upgrades: Upgrades,
) -> Result<Response<String>, Infallible> {
    let upgrade = hyper::upgrade::on(&mut request);
    drop(runtime::spawn(async move { upgrades.send(upgrade.await.unwrap()) }));
    let mut response = Response::new(String::new());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(CONNECTION, "upgrade".parse().unwrap());
    response.headers_mut().insert(UPGRADE, "echo".parse().unwrap());
    Ok(response)
}

/// A server, an upgraded connection of it, and its client.
async fn upgraded() -> (adapters::hyper::Server, HyperIo<hyper::upgrade::Upgraded>, TcpStream) {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let (upgrades, upgraded) = flume::unbounded();
    let server = serve(listener, move |_: &_| {
        let upgrades = upgrades.clone();
        service_fn(move |request| upgrading(request, upgrades.clone()))
    })
    .start()
    .unwrap();
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\nearly").await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).await.unwrap();
        answer.push(byte[0]);
    }
    assert!(answer.starts_with(b"HTTP/1.1 101 "));
    (server, HyperIo::new(upgraded.recv_async().await.unwrap()), client)
}

#[runtime::test]
async fn an_upgraded_connection_carries_any_bytes_both_ways() {
    let (server, mut upgraded, mut client) = upgraded().await;
    let mut early = [0; 5];
    AsyncReadExt::read_exact(&mut upgraded, &mut early).await.unwrap();
    assert_eq!(&early, b"early");
    AsyncWriteExt::write_all(&mut upgraded, b"hello").await.unwrap();
    AsyncWriteExt::flush(&mut upgraded).await.unwrap();
    client.read_exact(&mut early).await.unwrap();
    assert_eq!(&early, b"hello");
    assert_eq!(server.connections(), 1);
    drop(upgraded);
    assert_eq!(client.read(&mut early).await.unwrap(), 0);
    assert_eq!(server.shutdown(Duration::from_secs(60)).await.aborted, 0);
}

#[runtime::test]
async fn another_thread_uses_an_upgraded_connection_and_drops_it() {
    let (server, mut upgraded, mut client) = upgraded().await;
    let handle = runtime::Handle::current();
    let using = runtime::spawn_blocking(move || {
        handle.block_on(async {
            let mut received = [0; 10];
            AsyncReadExt::read_exact(&mut upgraded, &mut received).await.unwrap();
            AsyncWriteExt::write_all(&mut upgraded, &received).await.unwrap();
        });
    });
    client.write_all(b" late").await.unwrap();
    using.await.unwrap();
    // Dropped there, it is closed here, after what was written.
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "early late");
    assert_eq!(server.shutdown(Duration::from_secs(60)).await.aborted, 0);
}

#[runtime::test]
async fn a_shutdown_closes_upgraded_connections_at_its_limit() {
    let (server, mut upgraded, mut client) = upgraded().await;
    let waiting = runtime::spawn(async move {
        let mut all = Vec::new();
        AsyncReadExt::read_to_end(&mut upgraded, &mut all).await
    });
    let report = server.shutdown(Duration::from_millis(50)).await;
    assert_eq!((report.finished, report.aborted), (0, 1));
    // Whichever it sees first: that reading is shut down, or that the stream is gone.
    match waiting.await.unwrap() {
        Ok(length) => assert_eq!(length, b"early".len()),
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted),
    }
    assert_eq!(client.read(&mut [0]).await.unwrap_or(0), 0);
}

#[runtime::test(workers = 3)]
async fn connections_are_spread_over_the_workers_and_all_shut_down() {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let server = serve(listener, |_: &Peer| {
        service_fn(async |_: Request<Incoming>| {
            Ok::<_, Infallible>(Response::new(runtime::current_worker().to_string()))
        })
    })
    .start()
    .unwrap();
    let mut workers = std::collections::BTreeSet::new();
    let mut clients = Vec::new();
    for _ in 0..12 {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let mut answer = [0; 200];
        let length = client.read(&mut answer).await.unwrap();
        workers.insert(answer[length - 1]);
        clients.push(client);
    }
    assert_eq!(workers.len(), 3, "{workers:?}");
    let report = server.shutdown(Duration::from_secs(60)).await;
    assert_eq!((report.finished, report.aborted), (12, 0));
    for mut client in clients {
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    }
}

#[runtime::test]
#[ignore = "timing"]
async fn idle_connections_of_http2_end_and_busy_ones_go_on() {
    let limit = Duration::from_millis(150);
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let slow = |_: Request<Incoming>| async {
        runtime::sleep(Duration::from_millis(700)).await;
        Ok::<_, Infallible>(Response::new("late".to_owned()))
    };
    let server = serve(listener, move |_: &Peer| service_fn(slow)).idle_timeout(Some(limit)).start().unwrap();
    let client = Client::<Empty<Bytes>>::http2();
    // It takes longer than the limit, but its client answers.
    let response = client.get().get(format!("http://{address}/").parse().unwrap()).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "late");
    // One that says nothing at all after its preface.
    let mut silent = TcpStream::connect(address).await.unwrap();
    silent.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut received = Vec::new();
    runtime::timeout(Duration::from_secs(60), silent.read_to_end(&mut received)).await.unwrap().unwrap();
    while server.connections() > 0 {
        runtime::sleep(Duration::from_millis(10)).await;
    }
}

#[runtime::test]
async fn a_client_that_takes_nothing_of_a_response_is_cut() {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let large = |_: Request<Incoming>| async {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(vec![0; 32 << 20]))))
    };
    let limit = Duration::from_millis(300);
    let server =
        serve(listener, move |_: &Peer| service_fn(large)).stall_timeout(Some(limit)).start().unwrap();
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    client.flush().await.unwrap();
    // Its kernel takes some; it reads none.
    while server.alignment().accepted == 0 {
        runtime::sleep(Duration::from_millis(5)).await;
    }
    let ended = async {
        while server.connections() > 0 {
            runtime::sleep(Duration::from_millis(10)).await;
        }
    };
    runtime::timeout(Duration::from_secs(60), ended).await.expect("the connection stays open");
}

#[runtime::test]
async fn an_idle_connection_lives_longer_than_a_proxy_keeps_it() {
    use runtime::time::{advance, pause, resume};
    let listener = listener();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let server = serve(listener, counting).start().unwrap();
    let mut answer = [0; 1024];
    for _ in 0..2 {
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        assert!(stream.read(&mut answer).await.unwrap() > 0, "it was closed within 66 s");
        settle().await;
        pause();
        advance(Duration::from_secs(66)).await;
        resume();
        settle().await;
    }
    pause();
    advance(Duration::from_secs(10)).await;
    resume();
    assert_eq!(stream.read(&mut answer).await.unwrap(), 0);
    server.shutdown(Duration::ZERO).await;
}

#[runtime::test]
async fn a_server_of_http1_only_closes_connections_of_http2() {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let server = serve(listener, counting).http1_only().start().unwrap();
    assert!(get(&Client::http2(), format!("http://{address}/")).await.is_err());
    assert!(get(&Client::new(), format!("http://{address}/")).await.is_ok());
    server.shutdown(Duration::ZERO).await;
}
