//! Upstreams that fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{AsyncReadExt, AsyncWriteExt};
use hyper::{Response, StatusCode};

use super::{Proxy, Upstream, read_head, refusing, script, until};
use crate::web::config::HealthCheckConfig;

#[runtime::test]
async fn a_refused_connect_goes_to_another_upstream_which_has_the_next_requests_too() {
    let upstream = Upstream::saying("other");
    let proxy = Proxy::start(&[refusing(), upstream.address], |_| ());
    // Also a request that may not be sent twice: nothing was sent.
    let post = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi";
    for _ in 0..6 {
        let response = proxy.raw(post).await;
        assert!(response.ends_with("other"), "{response}");
    }
    let failed = proxy.status(0);
    assert_eq!((failed.requests, failed.failures, failed.healthy), (1, 1, false));
    assert_eq!(proxy.status(1).requests, 6);
}

#[runtime::test]
async fn requests_take_turns() {
    let upstreams = [Upstream::saying("first"), Upstream::saying("second")];
    let proxy = Proxy::start(&[upstreams[0].address, upstreams[1].address], |_| ());
    for _ in 0..6 {
        proxy.get("/").await;
    }
    assert_eq!((proxy.status(0).requests, proxy.status(1).requests), (3, 3));
}

#[runtime::test]
async fn a_broken_response_is_repeated_elsewhere_only_if_the_request_may_be() {
    let broken = script(|_, mut stream| async move {
        read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 nonsense\r\n\r\n").await.unwrap();
    });
    let upstream = Upstream::saying("whole");
    let proxy = Proxy::start(&[broken, upstream.address], |_| ());
    assert!(proxy.get("/").await.ends_with("whole"));
    assert_eq!((proxy.status(0).failures, proxy.status(1).requests), (1, 1));

    let proxy = Proxy::start(&[broken, upstream.address], |_| ());
    let post = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let response = proxy.raw(post).await;
    assert!(response.starts_with("HTTP/1.1 502 "), "{response}");
    assert_eq!(proxy.status(1).requests, 0);
}

#[runtime::test]
async fn clients_get_502_without_details_if_all_upstreams_refuse() {
    let address = refusing();
    let proxy = Proxy::start(&[address, refusing()], |config| config.retries = 5);
    for _ in 0..2 {
        let response = proxy.get("/").await;
        assert!(response.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{response}");
        assert!(response.ends_with("\r\n\r\n502 Bad Gateway\n"), "{response}");
        assert!(!response.contains(&address.ip().to_string()), "{response}");
    }
    // Even if all are avoided, one is tried.
    assert_eq!(proxy.status(0).requests + proxy.status(1).requests, 4);
}

#[runtime::test]
async fn an_upstream_that_does_not_answer_in_time_gives_504() {
    let upstream = script(|_, mut stream| async move {
        read_head(&mut stream).await;
        let _ = stream.read(&mut [0]).await;
    });
    let proxy = Proxy::start(&[upstream], |config| config.response_timeout = Duration::from_millis(50));
    let response = proxy.get("/").await;
    assert!(response.starts_with("HTTP/1.1 504 Gateway Timeout\r\n"), "{response}");
    assert_eq!((proxy.status(0).failures, proxy.status(0).open), (1, 0));
}

#[runtime::test]
async fn a_connect_that_takes_too_long_gives_504() {
    // The queue of a listener that accepts nothing is full after a few.
    let listener = net::TcpListener::bind_with_backlog("127.0.0.1:0", 1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut queued = Vec::new();
    for _ in 0..4 {
        let limit = Duration::from_millis(100);
        queued.push(net::TcpStream::connect_timeout(address, limit).await.ok());
    }
    let proxy = Proxy::start(&[address], |config| config.connect_timeout = Duration::from_millis(100));
    let response = proxy.get("/").await;
    assert!(response.starts_with("HTTP/1.1 504 "), "{response}");
}

#[runtime::test]
async fn an_unasked_upgrade_is_a_broken_response() {
    let upstream = script(|_, mut stream| async move {
        read_head(&mut stream).await;
        let switched = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n";
        stream.write_all(switched).await.unwrap();
        let _ = stream.read(&mut [0]).await;
    });
    let proxy = Proxy::start(&[upstream], |_| ());
    let response = proxy.get("/").await;
    assert!(response.starts_with("HTTP/1.1 502 "), "{response}");
}

#[runtime::test]
async fn health_checks_take_upstreams_out_and_back() {
    let healthy = Arc::new(AtomicBool::new(true));
    let state = Arc::clone(&healthy);
    let upstream = Upstream::start(move |request: hyper::Request<_>| {
        assert!(request.uri().path() == "/" || request.headers()["user-agent"] == "lull-health-check");
        let mut response = Response::new("ok".to_owned());
        if !state.load(Ordering::Relaxed) {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        async { response }
    });
    let proxy = Proxy::start(&[upstream.address, refusing()], |config| {
        config.health_check = Some(HealthCheckConfig {
            path: "/health".into(),
            interval: Duration::from_millis(20),
            timeout: Duration::from_secs(60),
        });
    });
    proxy.route.start_health_checks();
    until("the refusing one is down", || !proxy.status(1).healthy).await;
    assert!(proxy.status(0).healthy);
    for _ in 0..4 {
        assert!(proxy.get("/").await.ends_with("ok"));
    }
    assert_eq!(proxy.status(1).requests, 0);

    healthy.store(false, Ordering::Relaxed);
    until("the other is down", || !proxy.status(0).healthy).await;
    let response = proxy.get("/").await;
    assert!(response.starts_with("HTTP/1.1 503 "), "{response}");
    assert!(response.ends_with("503 Service Unavailable\n"), "{response}");

    healthy.store(true, Ordering::Relaxed);
    until("it is up", || proxy.status(0).healthy).await;
    assert!(proxy.get("/").await.ends_with("ok"));
}

#[runtime::test]
async fn health_checks_end_with_the_route() {
    let upstream = Upstream::saying("ok");
    let proxy = Proxy::start(&[upstream.address], |config| {
        config.health_check = Some(HealthCheckConfig {
            path: "/".into(),
            interval: Duration::from_millis(10),
            timeout: Duration::from_secs(60),
        });
    });
    proxy.route.start_health_checks();
    until("some checks have come", || upstream.accepted() > 3).await;
    proxy.server.shutdown(Duration::from_secs(60)).await;
    drop(proxy.route);
    runtime::sleep(Duration::from_millis(50)).await;
    let accepted = upstream.accepted();
    runtime::sleep(Duration::from_millis(100)).await;
    assert_eq!(upstream.accepted(), accepted);
}
