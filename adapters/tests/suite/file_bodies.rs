//! Files as the bodies of responses.

use std::convert::Infallible;
use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;

use adapters::hyper::{BoxError, Client, Connector, FileBody, HttpClient, Peer, Server, serve};
use adapters::tls::Acceptor;
use futures_util::{AsyncReadExt, AsyncWriteExt};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use net::TcpStream;

use crate::authority::Authority;
use crate::common::listener;

/// Bytes that differ from those before and after them.
fn content(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 31 + index / 251) as u8).collect()
}

fn file_of(bytes: &[u8]) -> Arc<File> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    Arc::new(file)
}

/// Answers every request with `length` bytes of the file, from the offset that is the path on.
fn start(file: Arc<File>, length: u64, acceptor: Option<Acceptor>) -> (Server, SocketAddr) {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let served = serve(listener, move |_: &Peer| {
        let file = Arc::clone(&file);
        service_fn(move |request: Request<Incoming>| {
            let offset = request.uri().path()[1..].parse().unwrap();
            let body = FileBody::new(Arc::clone(&file), offset, length).sent_by_kernel();
            async { Ok::<_, Infallible>(Response::new(body)) }
        })
    });
    // What copies bodies in hyper has no effect.
    let served = served.configure(|builder| {
        builder.http1().writev(false).pipeline_flush(true);
    });
    let served = match acceptor {
        Some(acceptor) => served.tls(acceptor),
        None => served,
    };
    (served.start().unwrap(), address)
}

async fn body(client: &HttpClient<Empty<Bytes>>, uri: String) -> (Version, Bytes) {
    let response = client.get(uri.parse().unwrap()).await.unwrap();
    (response.version(), response.into_body().collect().await.unwrap().to_bytes())
}

#[runtime::test]
async fn each_version_gets_the_bytes() {
    let bytes = content(3_000_000);
    let authority = Authority::new();
    let acceptor = Acceptor::builder(authority.certificates("server", "localhost")).http().open().unwrap();
    let (_plain, plain) = start(file_of(&bytes), 2_000_000, None);
    let (_encrypted, encrypted) = start(file_of(&bytes), 2_000_000, Some(acceptor));
    let secure = Client::with_connector(Connector::new().tls(authority.connector()), |_| ());
    let cases = [
        (Client::new(), format!("http://{plain}"), Version::HTTP_11),
        (Client::http2(), format!("http://{plain}"), Version::HTTP_2),
        (secure, format!("https://localhost:{}", encrypted.port()), Version::HTTP_2),
    ];
    for (client, server, version) in cases {
        for offset in [0, 1, 999_999] {
            let (spoken, received) = body(client.get(), format!("{server}/{offset}")).await;
            assert_eq!((spoken, received.len()), (version, 2_000_000));
            assert!(received == bytes[offset..][..2_000_000], "wrong bytes by {version:?} from {offset} on");
        }
    }
}

#[runtime::test]
async fn pipelined_requests_get_their_files_in_order() {
    let bytes = content(900_000);
    let (_server, address) = start(file_of(&bytes), 300_000, None);
    let mut client = TcpStream::connect(address).await.unwrap();
    let requests: String = [600_000, 5, 0, 300_000]
        .iter()
        .map(|offset| format!("GET /{offset} HTTP/1.1\r\nhost: a\r\n\r\n"))
        .collect();
    client.write_all(requests.as_bytes()).await.unwrap();
    for offset in [600_000, 5, 0, 300_000] {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            client.read_exact(&mut byte).await.unwrap();
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"HTTP/1.1 200 OK"), "{}", String::from_utf8_lossy(&head));
        let mut received = vec![0; 300_000];
        client.read_exact(&mut received).await.unwrap();
        assert!(received == bytes[offset..][..300_000], "wrong bytes from {offset} on");
    }
}

#[runtime::test]
async fn a_file_that_ends_too_early_breaks_the_response_off() {
    let file = file_of(&content(500_000));
    let (_server, address) = start(Arc::clone(&file), 400_000, None);
    file.set_len(300_000).unwrap();
    let client = Client::<Empty<Bytes>>::new();
    // The connection may break before the head is sent.
    if let Ok(response) = client.get().get(format!("http://{address}/0").parse().unwrap()).await {
        assert!(response.into_body().collect().await.is_err(), "a part was taken for the whole");
    }
}

#[runtime::test]
async fn a_service_that_reads_a_body_gets_its_bytes_and_a_layer_that_changes_it_breaks_it_off() {
    let bytes = content(300_000);
    let file = file_of(&bytes);
    let body = move || FileBody::new(Arc::clone(&file), 0, 300_000).sent_by_kernel();
    let read_here = body().collect().await.unwrap().to_bytes();
    assert!(read_here == bytes, "wrong bytes are read of a body");
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let _server = serve(listener, move |_: &Peer| {
        let body = body.clone();
        service_fn(move |request: Request<Incoming>| {
            let body = body();
            async move {
                let body = match request.uri().path() {
                    "/read" => {
                        Full::from(body.collect().await?.to_bytes()).map_err(BoxError::from).boxed_unsync()
                    }
                    _ => {
                        let copied = |data: Bytes| Bytes::copy_from_slice(&data);
                        body.map_frame(move |frame| frame.map_data(copied))
                            .map_err(BoxError::from)
                            .boxed_unsync()
                    }
                };
                Ok::<_, BoxError>(Response::new(body))
            }
        })
    })
    .start()
    .unwrap();
    let client = Client::<Empty<Bytes>>::new();
    assert!(self::body(client.get(), format!("http://{address}/read")).await.1 == bytes);
    let changed = client.get().get(format!("http://{address}/copied").parse().unwrap()).await;
    // The connection may break before the head is sent.
    if let Ok(response) = changed {
        assert!(response.into_body().collect().await.is_err(), "zeros were taken for the file");
    }
}
