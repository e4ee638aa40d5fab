//! Upgraded connections.

use std::time::Duration;

use adapters::hyper::Executor;
use adapters::{HyperIo, Io};
use bytes::Bytes;
use futures_util::{AsyncReadExt, AsyncWriteExt};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::ext::Protocol;
use hyper::{Request, Response};
use tungstenite::handshake::derive_accept_key;

use super::{Proxy, read_head, script, settle, until};

const REQUEST: &[u8] =
    b"GET /chat HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\n\
    sec-websocket-key: x\r\n\r\n";

#[runtime::test]
async fn bytes_of_an_upgraded_connection_go_both_ways_until_both_sides_end() {
    exchange(Duration::from_secs(60)).await;
}

#[runtime::test]
#[ignore = "timing"]
async fn an_idle_upgraded_connection_outlives_the_response_timeout() {
    exchange(Duration::from_millis(50)).await;
}

async fn exchange(response_timeout: Duration) {
    let upstream = script(|_, mut stream| async move {
        let head = read_head(&mut stream).await.unwrap();
        assert!(
            head.contains("connection: upgrade\r\n") && head.contains("upgrade: websocket\r\n"),
            "{head}"
        );
        assert!(head.contains("sec-websocket-key: x\r\n"), "{head}");
        let switched = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nsec-websocket-accept: y\r\n\r\nhello";
        stream.write_all(switched.as_bytes()).await.unwrap();
        let mut received = Vec::new();
        loop {
            let mut part = [0; 1000];
            let length = stream.read(&mut part).await.unwrap();
            if length == 0 {
                break;
            }
            received.extend_from_slice(&part[..length]);
            stream.write_all(&part[..length]).await.unwrap();
        }
        // The client's side has ended; this one has more to say.
        stream.write_all(format!("; {} bytes", received.len()).as_bytes()).await.unwrap();
        stream.close().await.unwrap();
    });
    let proxy = Proxy::start(&[upstream], |config| config.response_timeout = response_timeout);
    let mut client = proxy.connect().await;
    client.write_all(REQUEST).await.unwrap();
    let head = read_head(&mut client).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 101 ") && head.contains("upgrade: websocket\r\n"), "{head}");
    assert!(head.contains("sec-websocket-accept: y\r\n"), "{head}");
    let mut early = [0; 5];
    client.read_exact(&mut early).await.unwrap();
    assert_eq!(&early, b"hello");
    // An idle one stays.
    runtime::sleep(Duration::from_millis(100)).await;
    client.write_all(b"ping").await.unwrap();
    let mut echo = [0; 4];
    client.read_exact(&mut echo).await.unwrap();
    assert_eq!(&echo, b"ping");
    assert_eq!(proxy.status(0).open, 1);
    client.close().await.unwrap();
    let mut rest = String::new();
    client.read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "; 4 bytes");
    until("the upstream's connection is closed", || proxy.status(0).open == 0).await;
    assert_eq!(proxy.server.shutdown(Duration::from_secs(60)).await.aborted, 0);
}

#[runtime::test]
async fn a_refused_upgrade_is_a_response() {
    let upstream = script(|_, mut stream| async move {
        while read_head(&mut stream).await.is_some() {
            stream.write_all(b"HTTP/1.1 403 No\r\ncontent-length: 2\r\n\r\nno").await.unwrap();
        }
    });
    let proxy = Proxy::start(&[upstream], |_| ());
    let mut client = proxy.connect().await;
    for _ in 0..2 {
        client.write_all(REQUEST).await.unwrap();
        assert!(read_head(&mut client).await.unwrap().starts_with("HTTP/1.1 403 "));
        client.read_exact(&mut [0; 2]).await.unwrap();
    }
    assert_eq!(proxy.status(0).idle, 1);
}

#[runtime::test]
async fn an_upgrade_on_a_connection_that_was_just_closed_goes_to_a_new_one() {
    let upstream = script(|number, mut stream| async move {
        while let Some(head) = read_head(&mut stream).await {
            match (number, head.contains("upgrade: websocket")) {
                (_, false) => {
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap()
                }
                // As if it had been closed before the request came.
                (0, true) => return,
                (_, true) => {
                    let switched = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nhello";
                    stream.write_all(switched.as_bytes()).await.unwrap();
                    stream.close().await.unwrap();
                    return;
                }
            }
        }
    });
    let proxy = Proxy::start(&[upstream], |_| ());
    assert!(proxy.get("/").await.ends_with("ok"));
    let mut client = proxy.connect().await;
    client.write_all(REQUEST).await.unwrap();
    assert!(read_head(&mut client).await.unwrap().starts_with("HTTP/1.1 101 "));
    let mut early = [0; 5];
    client.read_exact(&mut early).await.unwrap();
    assert_eq!(&early, b"hello");
}

#[runtime::test]
async fn a_client_that_drops_an_upgraded_connection_ends_the_upstreams() {
    let upstream = script(|_, mut stream| async move {
        read_head(&mut stream).await;
        let switched =
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
        stream.write_all(switched.as_bytes()).await.unwrap();
        assert_eq!(stream.read(&mut [0]).await.unwrap_or(0), 0);
    });
    let proxy = Proxy::start(&[upstream], |_| ());
    let mut client = proxy.connect().await;
    client.write_all(REQUEST).await.unwrap();
    read_head(&mut client).await.unwrap();
    drop(client);
    until("the upstream's connection is closed", || proxy.status(0).open == 0).await;
}

/// Asks for a protocol by a CONNECT of HTTP/2.
async fn connect_by_http2(proxy: &Proxy, protocol: &'static str) -> Response<Incoming> {
    let stream = proxy.connect().await;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(Executor::new(), Io::new(stream)).await.unwrap();
    drop(runtime::spawn(connection));
    // The server's settings tell whether it knows such a CONNECT.
    settle().await;
    let request = Request::connect("http://client/chat?room=1").header("sec-websocket-version", "13");
    let request = request.extension(Protocol::from_static(protocol)).body(Empty::<Bytes>::new());
    sender.send_request(request.unwrap()).await.unwrap()
}

fn key_of(head: &str) -> &str {
    let key = head.lines().find_map(|line| line.strip_prefix("sec-websocket-key: "));
    key.unwrap_or_else(|| panic!("no key in {head}"))
}

#[runtime::test]
async fn a_websocket_over_http2_is_one_over_http1_to_the_upstream() {
    let upstream = script(|_, mut stream| async move {
        let head = read_head(&mut stream).await.unwrap();
        assert!(head.starts_with("GET /chat?room=1 HTTP/1.1\r\n"), "{head}");
        for line in ["connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13"] {
            assert!(head.contains(&format!("\r\n{line}\r\n")), "{head}");
        }
        let switched = format!(
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\ncontent-length: 5\r\n\
             sec-websocket-accept: {}\r\nsec-websocket-protocol: chat\r\n\r\nhello",
            derive_accept_key(key_of(&head).as_bytes()),
        );
        stream.write_all(switched.as_bytes()).await.unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await.unwrap();
        // The client's side has ended; this one has more to say.
        stream.write_all(format!("; {} bytes", received.len()).as_bytes()).await.unwrap();
        stream.close().await.unwrap();
    });
    let proxy = Proxy::start(&[upstream], |_| ());
    let response = connect_by_http2(&proxy, "websocket").await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["sec-websocket-protocol"], "chat");
    for name in ["upgrade", "connection", "sec-websocket-accept", "sec-websocket-key", "content-length"] {
        assert!(!response.headers().contains_key(name), "{name}");
    }
    let mut client = HyperIo::new(hyper::upgrade::on(response).await.unwrap());
    let mut early = [0; 5];
    client.read_exact(&mut early).await.unwrap();
    assert_eq!(&early, b"hello");
    client.write_all(&vec![7; 1 << 20]).await.unwrap();
    client.close().await.unwrap();
    let mut rest = String::new();
    client.read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "; 1048576 bytes");
    until("the upstream's connection is closed", || proxy.status(0).open == 0).await;
}

#[runtime::test]
async fn a_response_that_opens_no_websocket_is_no_success_over_http2() {
    for (answer, status) in [
        ("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n", 502),
        (
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-accept: x\r\n\r\n",
            502,
        ),
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno", 502),
        ("HTTP/1.1 403 No\r\ncontent-length: 2\r\n\r\nno", 403),
    ] {
        let upstream = script(move |_, mut stream| async move {
            read_head(&mut stream).await;
            stream.write_all(answer.as_bytes()).await.unwrap();
            let _ = stream.read(&mut [0]).await;
        });
        let proxy = Proxy::start(&[upstream], |_| ());
        assert_eq!(connect_by_http2(&proxy, "websocket").await.status(), status, "{answer}");
        // Asking for a WebSocket where there is none is the client's mistake.
        let failures = u64::from(answer.contains(" 101 "));
        assert_eq!(proxy.status(0).failures, failures, "{answer}");
    }
}

#[runtime::test]
async fn a_connect_to_another_protocol_is_not_implemented() {
    let proxy = Proxy::start(&[super::refusing()], |_| ());
    assert_eq!(connect_by_http2(&proxy, "connect-udp").await.status(), 501);
}
