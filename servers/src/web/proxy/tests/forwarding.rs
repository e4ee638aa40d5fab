//! What arrives at the upstream, and what comes back.

use std::time::Duration;

use adapters::hyper::Client;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, Version};

use super::{Proxy, Upstream, read_head, script};
use futures_util::AsyncWriteExt;

/// An upstream that answers with the head of the request, as it came.
fn heads() -> std::net::SocketAddr {
    script(|_, mut stream| async move {
        while let Some(head) = read_head(&mut stream).await {
            let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{head}", head.len());
            stream.write_all(response.as_bytes()).await.unwrap();
        }
    })
}

#[runtime::test]
async fn hop_by_hop_headers_stop_at_the_proxy_and_forwarded_headers_are_added() {
    let upstream = heads();
    let proxy = Proxy::start(&[upstream], |_| ());
    let response = proxy
        .raw(
            "GET /a?b=c HTTP/1.1\r\nHost: client:81\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\n\
             Proxy-Authorization: x\r\nProxy-Connection: x\r\nProxy: x\r\nTE: gzip\r\nUpgrade: websocket\r\n\
             X-Forwarded-For: 10.1.1.1\r\nX-Forwarded-Proto: https\r\nForwarded: for=a\r\nX-Own: 2\r\n\r\n",
        )
        .await;
    let (_, head) = response.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("GET /a?b=c HTTP/1.1\r\n"), "{head}");
    for expected in [
        format!("host: {upstream}\r\n"),
        "x-forwarded-for: 10.1.1.1, 127.0.0.1\r\n".into(),
        "x-forwarded-proto: http\r\n".into(),
        "x-forwarded-host: client:81\r\n".into(),
        "via: 1.1 lull\r\n".into(),
        "forwarded: for=a\r\n".into(),
        "x-own: 2\r\n".into(),
    ] {
        assert!(head.contains(&expected), "{expected} is missing: {head}");
    }
    for hop in ["connection", "x-hop", "keep-alive", "proxy", "te:", "upgrade", "transfer", "length"] {
        assert!(!head.contains(hop), "{hop} was forwarded: {head}");
    }
    assert_eq!(proxy.server.shutdown(Duration::from_secs(60)).await.aborted, 0);
}

#[runtime::test]
async fn the_clients_host_is_kept_if_configured() {
    let proxy = Proxy::start(&[heads()], |config| config.preserve_host = true);
    assert!(proxy.get("/").await.contains("host: client\r\n"));
}

#[runtime::test]
async fn the_path_is_stripped_if_configured() {
    let upstream = Upstream::echoing_target();
    let proxy = Proxy::start(&[upstream.address], |config| {
        config.path = "/api".into();
        config.strip_path = true;
    });
    for (path, forwarded) in [
        ("/api/users?a=/api", "/users?a=/api"),
        ("/api", "/"),
        ("/api?a", "/?a"),
        ("/api/", "/"),
        ("/apis", "/apis"),
        ("http://other/api/x", "/x"),
    ] {
        let response = proxy.get(path).await;
        assert!(response.ends_with(&format!("\r\n\r\n{forwarded}")), "{path}: {response}");
    }
}

#[runtime::test]
async fn hop_by_hop_headers_of_a_response_stop_at_the_proxy() {
    let upstream = script(|_, mut stream| async move {
        read_head(&mut stream).await;
        let response = "HTTP/1.1 200 Fine\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\n\
                        Proxy-Authenticate: Basic\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\nX-Own: 2\r\n\r\n\
                        5\r\nhello\r\n0\r\n\r\n";
        stream.write_all(response.as_bytes()).await.unwrap();
    });
    let proxy = Proxy::start(&[upstream], |_| ());
    let response = proxy.get("/").await;
    assert!(response.contains("x-own: 2\r\n") && response.contains("5\r\nhello\r\n0\r\n\r\n"), "{response}");
    for hop in ["x-hop", "keep-alive", "proxy", "content-length"] {
        assert!(!response.contains(hop), "{hop} was forwarded: {response}");
    }
}

#[runtime::test]
async fn an_http2_request_becomes_one_of_http1() {
    let upstream = heads();
    let proxy = Proxy::start(&[upstream], |config| config.preserve_host = true);
    let client = Client::<Empty<Bytes>>::http2();
    let request = Request::get(format!("http://{}/path", proxy.address))
        .version(Version::HTTP_2)
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .body(Empty::new())
        .unwrap();
    let response = client.get().request(request).await.unwrap();
    let head = response.into_body().collect().await.unwrap().to_bytes();
    let head = std::str::from_utf8(&head).unwrap();
    assert!(head.starts_with("GET /path HTTP/1.1\r\n"), "{head}");
    assert!(head.contains(&format!("host: {}\r\n", proxy.address)), "{head}");
    assert!(head.contains("cookie: a=1; b=2\r\n") && head.contains("via: 2.0 lull\r\n"), "{head}");
}

#[runtime::test]
async fn heads_and_responses_without_a_body_leave_the_connection_usable() {
    let upstream = Upstream::start(async |request: Request<Incoming>| {
        let status = request.uri().path()[1..].parse().unwrap();
        let body = if status == 200 { "body" } else { "" };
        Response::builder().status::<u16>(status).body(body.to_owned()).unwrap()
    });
    let proxy = Proxy::start(&[upstream.address], |_| ());
    let mut stream = proxy.connect().await;
    for (request, expected) in [
        ("HEAD /200", "content-length: 4\r\n"),
        ("GET /204", "HTTP/1.1 204"),
        ("GET /304", "HTTP/1.1 304"),
        ("HEAD /404", "HTTP/1.1 404"),
    ] {
        let request = format!("{request} HTTP/1.1\r\nhost: client\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let head = read_head(&mut stream).await.unwrap();
        assert!(head.contains(expected), "{head}");
    }
    assert_eq!(upstream.accepted(), 1);
    assert_eq!((proxy.status(0).requests, proxy.status(0).failures), (4, 0));
}

#[runtime::test]
async fn requests_that_may_not_be_forwarded_are_refused() {
    let upstream = Upstream::echoing_target();
    let proxy = Proxy::start(&[upstream.address], |_| ());
    for (request, status) in [
        ("TRACE / HTTP/1.1\r\nhost: a\r\n", "405"),
        ("CONNECT a:80 HTTP/1.1\r\nhost: a\r\n", "501"),
        ("GET / HTTP/1.1\r\n", "400"),
        ("GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n", "400"),
        ("GET a HTTP/1.1\r\nhost: a\r\n", "400"),
        ("GET * HTTP/1.1\r\nhost: a\r\n", "400"),
        ("OPTIONS / HTTP/1.1\r\nhost: a\r\nmax-forwards: 0\r\n", "204"),
        ("OPTIONS * HTTP/1.1\r\nhost: a\r\nmax-forwards: 1\r\n", "200"),
    ] {
        let response = proxy.raw(&format!("{request}connection: close\r\n\r\n")).await;
        assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {response}");
    }
    assert_eq!(upstream.accepted(), 1);
}
