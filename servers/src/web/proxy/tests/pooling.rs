//! Connections to upstreams: reuse, limits, closes.

use std::time::Duration;

use futures_util::{AsyncReadExt, AsyncWriteExt};

use super::{Proxy, Upstream, read_head, script, settle, until};

const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

#[runtime::test]
async fn requests_of_many_clients_reuse_one_connection() {
    let upstream = Upstream::echoing_target();
    let proxy = Proxy::start(&[upstream.address], |_| ());
    for number in 0..20 {
        let response = proxy.get(&format!("/{number}")).await;
        assert!(response.ends_with(&format!("\r\n\r\n/{number}")), "{response}");
    }
    assert_eq!(upstream.accepted(), 1);
    let status = proxy.status(0);
    assert_eq!((status.requests, status.failures, status.open, status.idle), (20, 0, 1, 1));
}

#[runtime::test]
async fn concurrent_requests_have_connections_of_their_own_and_few_are_kept() {
    // Answers when all have come.
    let requests = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let upstream = Upstream::start(move |_| {
        let requests = std::sync::Arc::clone(&requests);
        requests.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        async move {
            while requests.load(std::sync::atomic::Ordering::Relaxed) < 8 {
                runtime::sleep(Duration::from_millis(1)).await;
            }
            hyper::Response::new("slow".to_owned())
        }
    });
    let proxy = Proxy::start(&[upstream.address], |config| config.idle_connections = 2);
    let responses = futures_util::future::join_all((0..8).map(|_| proxy.get("/"))).await;
    assert!(responses.iter().all(|response| response.ends_with("slow")));
    assert_eq!(upstream.accepted(), 8);
    assert_eq!((proxy.status(0).open, proxy.status(0).idle), (2, 2));
}

#[runtime::test]
async fn idle_connections_are_closed_after_their_time_or_with_the_route() {
    let upstream = Upstream::echoing_target();
    let proxy = Proxy::start(&[upstream.address], |config| config.idle_timeout = Duration::from_millis(80));
    proxy.get("/").await;
    assert_eq!(proxy.status(0).idle, 1);
    until("the idle connection is closed", || proxy.status(0).open == 0 && proxy.status(0).idle == 0).await;

    let proxy = Proxy::start(&[upstream.address], |_| ());
    proxy.get("/").await;
    until("only one connection is open", || upstream.server.connections() == 1).await;
    proxy.server.shutdown(Duration::from_secs(60)).await;
    drop(proxy.route);
    until("the route's connection is closed", || upstream.server.connections() == 0).await;
}

#[runtime::test]
async fn a_connection_that_the_upstream_closes_while_idle_is_closed_at_once() {
    let upstream = script(|_, mut stream| async move {
        read_head(&mut stream).await;
        stream.write_all(RESPONSE).await.unwrap();
        runtime::sleep(Duration::from_millis(20)).await;
    });
    let proxy = Proxy::start(&[upstream], |_| ());
    for _ in 0..3 {
        assert!(proxy.get("/").await.ends_with("ok"));
        until("the closed connection is dropped", || proxy.status(0).open == 0).await;
    }
    assert_eq!(proxy.status(0).failures, 0);
}

#[runtime::test]
async fn a_request_on_a_connection_that_was_just_closed_goes_to_a_new_one() {
    // Closes each connection when its second request comes.
    let upstream = script(|_, mut stream| async move {
        read_head(&mut stream).await;
        stream.write_all(RESPONSE).await.unwrap();
        read_head(&mut stream).await;
    });
    let proxy = Proxy::start(&[upstream], |config| config.retries = 0);
    for _ in 0..4 {
        let response = proxy.get("/").await;
        assert!(response.ends_with("ok"), "{response}");
    }
    assert_eq!(proxy.status(0).failures, 0);
    assert!(proxy.status(0).healthy);
    // One that may not be sent twice is not.
    let post = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi";
    let response = proxy.raw(post).await;
    assert!(response.starts_with("HTTP/1.1 502 "), "{response}");
    assert!(proxy.status(0).healthy && proxy.status(0).failures == 1);
}

#[runtime::test]
async fn a_connection_with_unasked_bytes_is_not_used_again() {
    let upstream = script(|number, mut stream| async move {
        read_head(&mut stream).await;
        stream.write_all(RESPONSE).await.unwrap();
        if number == 0 {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison").await.unwrap();
        }
        // Keeps the connection open.
        let _ = stream.read(&mut [0]).await;
    });
    let proxy = Proxy::start(&[upstream], |_| ());
    for _ in 0..2 {
        let response = proxy.get("/").await;
        assert!(response.ends_with("ok"), "{response}");
        settle().await;
    }
}

#[runtime::test]
async fn connections_are_reused_after_large_responses_and_requests_with_bodies() {
    let upstream = Upstream::start(async |request: hyper::Request<hyper::body::Incoming>| {
        let received = http_body_util::BodyExt::collect(request.into_body()).await.unwrap().to_bytes();
        hyper::Response::new(if received.is_empty() { "x".repeat(1 << 20) } else { "short".to_owned() })
    });
    let proxy = Proxy::start(&[upstream.address], |_| ());
    for _ in 0..3 {
        assert_eq!(proxy.get("/").await.matches('x').count(), 1 << 20);
        for body in ["content-length: 2\r\n\r\nhi", "transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"]
        {
            let request = format!("POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{body}");
            assert!(proxy.raw(&request).await.ends_with("short"));
        }
    }
    assert_eq!(upstream.accepted(), 1);
}
