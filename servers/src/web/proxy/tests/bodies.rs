//! Bodies of requests and responses.

use std::time::Duration;

use futures_util::{AsyncReadExt, AsyncWriteExt};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{Request, Response};

use super::{BODY_LIMIT, Proxy, Upstream, read_head, script, until};

#[runtime::test]
async fn a_request_body_is_streamed_in_its_framing_without_trailers() {
    let (seen, parts) = shared_bytes();
    let upstream = script(move |_, mut stream| {
        let seen = seen.clone();
        async move {
            let head = read_head(&mut stream).await.unwrap();
            assert!(head.contains("transfer-encoding: chunked\r\n") && !head.contains("content-length"));
            assert!(!head.contains("trailer"), "{head}");
            let mut body = Vec::new();
            while !body.ends_with(b"\r\n0\r\n\r\n") {
                let mut part = [0; 100];
                let length = stream.read(&mut part).await.unwrap();
                assert!(length > 0, "{}", String::from_utf8_lossy(&body));
                body.extend_from_slice(&part[..length]);
                seen.borrow_mut().clone_from(&body);
            }
            assert_eq!(String::from_utf8_lossy(&body), "5\r\nfirst\r\n4\r\nthen\r\n0\r\n\r\n");
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
        }
    });
    let proxy = Proxy::start(&[upstream], |_| ());
    let mut client = proxy.connect().await;
    let head = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntrailer: x-forwarded-for\r\n\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    for part in ["first", "then"] {
        let chunk = format!("{:x}\r\n{part}\r\n", part.len());
        client.write_all(chunk.as_bytes()).await.unwrap();
        until("the part has arrived", || parts.borrow().ends_with(chunk.as_bytes())).await;
    }
    client.write_all(b"0\r\nx-forwarded-for: 127.0.0.1\r\n\r\n").await.unwrap();
    assert!(read_head(&mut client).await.unwrap().starts_with("HTTP/1.1 200 "));
}

type Seen = std::rc::Rc<std::cell::RefCell<Vec<u8>>>;

fn shared_bytes() -> (Seen, Seen) {
    let seen = Seen::default();
    (seen.clone(), seen)
}

#[runtime::test]
async fn large_bodies_go_both_ways_at_once() {
    let upstream = Upstream::start(async |request: Request<Incoming>| Response::new(request.into_body()));
    let proxy = Proxy::start(&[upstream.address], |_| ());
    let body = (0..2 << 20).map(|number| (number % 251) as u8).collect::<Vec<_>>();
    for head in ["content-length: 2097152", "transfer-encoding: chunked"] {
        let (mut read, mut write) = futures_util::AsyncReadExt::split(proxy.connect().await);
        let chunked = head.ends_with("chunked");
        let sent = body.clone();
        let sending = runtime::spawn(async move {
            let head = format!("PUT / HTTP/1.1\r\nhost: a\r\n{head}\r\nconnection: close\r\n\r\n");
            write.write_all(head.as_bytes()).await.unwrap();
            if chunked {
                write.write_all(b"200000\r\n").await.unwrap();
            }
            write.write_all(&sent).await.unwrap();
            if chunked {
                write.write_all(b"\r\n0\r\n\r\n").await.unwrap();
            }
        });
        let mut response = Vec::new();
        read.read_to_end(&mut response).await.unwrap();
        sending.await.unwrap();
        let head = response.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
        let received = if chunked { unchunk(&response[head..]) } else { response[head..].to_vec() };
        assert!(received == body, "{} bytes", received.len());
    }
    assert_eq!(proxy.status(0).failures, 0);
    until("no connection is left over", || proxy.status(0).open == proxy.status(0).idle).await;
}

fn unchunk(mut chunks: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = chunks.windows(2).position(|bytes| bytes == b"\r\n").unwrap();
        let length = usize::from_str_radix(std::str::from_utf8(&chunks[..end]).unwrap(), 16).unwrap();
        if length == 0 {
            return body;
        }
        body.extend_from_slice(&chunks[end + 2..][..length]);
        chunks = &chunks[end + 2 + length + 2..];
    }
}

#[runtime::test]
async fn a_client_that_waits_for_100_gets_it() {
    let upstream = Upstream::start(async |request: Request<Incoming>| {
        assert!(!request.headers().contains_key("expect"));
        Response::new(request.into_body())
    });
    let proxy = Proxy::start(&[upstream.address], |_| ());
    let mut client = proxy.connect().await;
    let head = "POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\nconnection: close\r\n\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    assert!(read_head(&mut client).await.unwrap().starts_with("HTTP/1.1 100 "));
    client.write_all(b"hi").await.unwrap();
    let mut response = String::new();
    client.read_to_string(&mut response).await.unwrap();
    assert!(response.ends_with("\r\n\r\nhi"), "{response}");
}

#[runtime::test]
async fn an_early_response_reaches_a_client_that_still_sends() {
    let upstream =
        Upstream::start(async |_| Response::builder().status(413).body("too much".to_owned()).unwrap());
    let proxy = Proxy::start(&[upstream.address], |_| ());
    let mut client = proxy.connect().await;
    client.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\nbegun").await.unwrap();
    let mut response = String::new();
    client.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 413 ") && response.ends_with("too much"), "{response}");
}

#[runtime::test]
async fn a_response_that_the_upstream_breaks_off_cuts_the_clients_connection() {
    for framing in ["content-length: 10\r\n\r\nbegun", "transfer-encoding: chunked\r\n\r\n5\r\nbegun\r\n"] {
        let upstream = script(move |_, mut stream| async move {
            read_head(&mut stream).await;
            stream.write_all(format!("HTTP/1.1 200 OK\r\n{framing}").as_bytes()).await.unwrap();
        });
        let proxy = Proxy::start(&[upstream], |_| ());
        let mut client = proxy.connect().await;
        client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        let mut response = Vec::new();
        let mut part = [0; 1000];
        while let Ok(length @ 1..) = client.read(&mut part).await {
            response.extend_from_slice(&part[..length]);
        }
        let response = String::from_utf8(response).unwrap();
        // Without the end that chunks have.
        assert!(response.contains("begun") && !response.contains("0\r\n\r\n"), "{response}");
        assert_eq!(proxy.status(0).failures, 1);
        assert!(!proxy.status(0).healthy);
    }
}

#[runtime::test]
async fn a_response_that_stops_cuts_the_clients_connection_after_the_timeout() {
    let upstream = script(|_, mut stream| async move {
        read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nbegun").await.unwrap();
        let _ = stream.read(&mut [0]).await;
    });
    // Long enough for the head, whatever else runs.
    let proxy = Proxy::start(&[upstream], |config| config.response_timeout = Duration::from_secs(1));
    let response = runtime::timeout(Duration::from_secs(60), proxy.get("/")).await.unwrap();
    assert!(response.ends_with("begun"), "{response}");
    assert_eq!((proxy.status(0).failures, proxy.status(0).open), (1, 0));
}

#[runtime::test]
#[ignore = "timing"]
async fn parts_that_each_come_in_time_may_take_long_together() {
    let upstream = script(|_, mut stream| async move {
        read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n").await.unwrap();
        for _ in 0..8 {
            runtime::sleep(Duration::from_millis(60)).await;
            stream.write_all(b"x").await.unwrap();
        }
        let _ = stream.read(&mut [0]).await;
    });
    let proxy = Proxy::start(&[upstream], |config| config.response_timeout = Duration::from_millis(300));
    assert!(proxy.get("/").await.ends_with("xxxxxxxx"));
}

#[runtime::test]
#[ignore = "timing"]
async fn a_slow_upload_does_not_time_out_while_it_goes_on() {
    let upstream = Upstream::start(async |request: Request<Incoming>| {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        Response::new(body.len().to_string())
    });
    let proxy =
        Proxy::start(&[upstream.address], |config| config.response_timeout = Duration::from_millis(300));
    let mut client = proxy.connect().await;
    let head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 8\r\nconnection: close\r\n\r\n";
    client.write_all(head).await.unwrap();
    for _ in 0..8 {
        runtime::sleep(Duration::from_millis(60)).await;
        client.write_all(b"x").await.unwrap();
    }
    assert!(read_head(&mut client).await.unwrap().starts_with("HTTP/1.1 200 "));

    // One that stops is the client's fault.
    let mut client = proxy.connect().await;
    client.write_all(head).await.unwrap();
    assert!(read_head(&mut client).await.unwrap().starts_with("HTTP/1.1 408 "));
    assert_eq!(proxy.status(0).failures, 0);
}

#[runtime::test]
async fn a_client_that_goes_cancels_its_request() {
    let upstream = Upstream::start(async |_| {
        runtime::sleep(Duration::from_secs(60)).await;
        Response::new(String::new())
    });
    let proxy = Proxy::start(&[upstream.address], |_| ());
    let mut client = proxy.connect().await;
    client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    until("the request has arrived", || upstream.server.connections() == 1).await;
    drop(client);
    until("the request is cancelled", || upstream.server.connections() == 0).await;
    assert_eq!((proxy.status(0).open, proxy.status(0).failures), (0, 0));
}

#[runtime::test]
async fn a_client_that_breaks_its_body_off_does_not_make_the_upstream_unhealthy() {
    let upstream = Upstream::start(async |request: Request<Incoming>| {
        let _ = request.into_body().collect().await;
        Response::new(String::new())
    });
    let proxy = Proxy::start(&[upstream.address], |_| ());
    let mut client = proxy.connect().await;
    client.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nbegun").await.unwrap();
    until("the request has arrived", || upstream.server.connections() == 1).await;
    drop(client);
    until("the request is cancelled", || upstream.server.connections() == 0).await;
    assert!(proxy.status(0).healthy && proxy.status(0).failures == 0);
}

#[runtime::test]
async fn an_upload_goes_on_after_the_response_has_ended_and_its_connection_is_closed_then() {
    let (seen, received) = shared_bytes();
    let upstream = script(move |_, mut stream| {
        let seen = seen.clone();
        async move {
            read_head(&mut stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
            let mut part = [0; 100];
            while let Ok(length @ 1..) = stream.read(&mut part).await {
                seen.borrow_mut().extend_from_slice(&part[..length]);
            }
        }
    });
    let proxy = Proxy::start(&[upstream], |_| ());
    let mut client = proxy.connect().await;
    client.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nbeg").await.unwrap();
    assert!(read_head(&mut client).await.unwrap().starts_with("HTTP/1.1 200 "));
    client.read_exact(&mut [0; 2]).await.unwrap();
    until("the beginning has arrived", || &received.borrow()[..] == b"beg").await;
    client.write_all(b"un end").await.unwrap();
    until("the rest has arrived", || &received.borrow()[..] == b"begun end").await;
    until("the connection is closed", || proxy.status(0).open == 0).await;
}

#[runtime::test]
async fn a_body_beyond_the_limit_is_413_whether_it_is_announced_or_not() {
    let upstream = Upstream::start(async |request: Request<Incoming>| {
        let length = request.into_body().collect().await.map_or(0, |body| body.to_bytes().len());
        Response::new(http_body_util::Full::new(hyper::body::Bytes::from(length.to_string())))
    });
    let proxy = Proxy::start(&[upstream.address], |_| ());
    let announced = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", BODY_LIMIT + 1);
    assert!(proxy.raw(&announced).await.starts_with("HTTP/1.1 413 "));
    let mut client = proxy.connect().await;
    client.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
    let chunk = vec![b'x'; 1 << 20];
    let (mut reader, mut writer) = client.split();
    let sending = async {
        // The proxy stops reading beyond the limit.
        for _ in 0..BODY_LIMIT / (1 << 20) + 4 {
            if writer.write_all(b"100000\r\n").await.is_err() {
                break;
            }
            let _ = writer.write_all(&chunk).await;
            let _ = writer.write_all(b"\r\n").await;
        }
        std::future::pending::<()>().await;
    };
    let head = read_head(&mut reader);
    match futures_util::future::select(std::pin::pin!(sending), std::pin::pin!(head)).await {
        futures_util::future::Either::Right((head, _)) => {
            assert!(head.unwrap().starts_with("HTTP/1.1 413 "));
        }
        futures_util::future::Either::Left(_) => unreachable!("it never ends"),
    }
}
