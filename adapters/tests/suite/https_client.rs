//! HTTPS by the pooled client: protocols by ALPN, and what is said of servers that can't be trusted
//! or understood.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use adapters::hyper::{Client, Connector, Server};
use adapters::tls::{Acceptor, AcceptorBuilder, HandshakeError};
use axum::Router;
use axum::body::Body;
use axum::routing::{get, post};
use futures_util::{AsyncReadExt, AsyncWriteExt, stream};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Request, Version};
use hyper_util::client::legacy;
use net::TcpStream;

use crate::authority::{Authority, serve_tls_alerts};
use crate::common::{listener, send_too_large_a_body};

/// A server whose certificate is for `localhost`, and its address.
fn start(
    authority: &Authority,
    set_up: impl FnOnce(AcceptorBuilder) -> AcceptorBuilder,
) -> (Server, SocketAddr) {
    let acceptor = set_up(Acceptor::builder(authority.certificates("server", "localhost"))).open().unwrap();
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let app = Router::new()
        .route("/large", get(async || vec![b'x'; 3 << 20]))
        .route("/length", post(async |body: Bytes| body.len().to_string()))
        .route("/broken", get(async || Body::from_stream(stream::iter([Ok("half"), Err("broken off")]))));
    (adapters::axum::serve(listener, app).tls(acceptor).start().unwrap(), address)
}

fn client(authority: &Authority) -> Client<Full<Bytes>> {
    Client::with_connector(Connector::new().tls(authority.connector()), |_| ())
}

async fn post_length(client: &Client<Full<Bytes>>, address: SocketAddr) -> (Version, Bytes) {
    let uri = format!("https://localhost:{}/length", address.port());
    let request = Request::post(uri).body(Full::from(vec![7; 1 << 20])).unwrap();
    let response = client.get().request(request).await.unwrap();
    (response.version(), response.into_body().collect().await.unwrap().to_bytes())
}

async fn failure(client: &Client<Full<Bytes>>, uri: String) -> legacy::Error {
    client.get().get(uri.parse().unwrap()).await.unwrap_err()
}

fn io_error(error: &legacy::Error) -> &io::Error {
    assert!(error.is_connect(), "{error:?}");
    error.source().unwrap().downcast_ref().unwrap()
}

fn handshake_error(error: &legacy::Error) -> &HandshakeError {
    io_error(error).get_ref().unwrap().downcast_ref().unwrap()
}

#[runtime::test]
async fn what_the_server_chooses_is_spoken_on_one_connection() {
    let authority = Authority::new();
    let offers: [(&[&str], Version); 4] = [
        (&["h2", "http/1.1"], Version::HTTP_2),
        (&["h2"], Version::HTTP_2),
        (&["http/1.1"], Version::HTTP_11),
        (&[], Version::HTTP_11),
    ];
    for (offered, version) in offers {
        let (server, address) = start(&authority, |acceptor| acceptor.alpn(offered));
        let client = client(&authority);
        for _ in 0..3 {
            assert_eq!(post_length(&client, address).await, (version, Bytes::from("1048576")), "{offered:?}");
        }
        let uri = format!("https://localhost:{}/large", address.port()).parse().unwrap();
        let large = client.get().get(uri).await.unwrap().into_body().collect().await.unwrap().to_bytes();
        assert_eq!(large.len(), 3 << 20);
        assert_eq!(server.alignment().accepted, 1, "{offered:?}");
        drop(client);
        assert_eq!(server.shutdown(Duration::from_secs(60)).await.aborted, 0);
    }
}

#[runtime::test]
async fn a_connector_that_offers_one_protocol_keeps_it() {
    let authority = Authority::new();
    let (server, address) = start(&authority, AcceptorBuilder::http);
    let tls = adapters::tls::Connector::builder().authorities(authority.path()).alpn(["http/1.1"]);
    let connector = Connector::new().tls(tls.open().unwrap());
    let client = Client::with_connector(connector, |_| ());
    assert_eq!(post_length(&client, address).await.0, Version::HTTP_11);
    drop(client);
    server.shutdown(Duration::from_secs(60)).await;
}

#[runtime::test]
async fn a_client_of_http2_only_refuses_servers_that_do_not_choose_it() {
    let authority = Authority::new();
    let connector = Connector::new().tls(authority.connector());
    let client = Client::http2_with_connector(connector);
    let (server, address) = start(&authority, AcceptorBuilder::http);
    assert_eq!(post_length(&client, address).await.0, Version::HTTP_2);
    server.shutdown(Duration::from_secs(60)).await;

    let (server, address) = start(&authority, |acceptor| acceptor.alpn(["http/1.1"]));
    let error = failure(&client, format!("https://localhost:{}/", address.port())).await;
    assert!(matches!(handshake_error(&error), HandshakeError::NoCommonProtocol { .. }), "{error:?}");
    server.shutdown(Duration::from_secs(60)).await;

    // Without ALPN a server doesn't refuse it: the client has to.
    let (server, address) = start(&authority, |acceptor| acceptor);
    let error = failure(&client, format!("https://localhost:{}/", address.port())).await;
    let error = io_error(&error);
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    assert!(error.to_string().contains("localhost has not agreed to HTTP/2"), "{error}");
    server.shutdown(Duration::from_secs(60)).await;
}

#[runtime::test]
async fn a_certificate_for_another_name_is_refused_with_both_names() {
    let authority = Authority::new();
    let (server, address) = start(&authority, AcceptorBuilder::http);
    let error = failure(&client(&authority), format!("https://{address}/")).await;
    let error = handshake_error(&error);
    assert!(
        matches!(error, HandshakeError::NameMismatch { server, .. } if server == "127.0.0.1"),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(text.starts_with("the certificate of 127.0.0.1 is for another name"), "{text}");
    assert!(text.contains("localhost"), "{text}");
    server.shutdown(Duration::from_secs(60)).await;
}

#[runtime::test]
async fn an_authority_that_is_not_trusted_is_refused_also_if_it_has_the_name_of_one_that_is() {
    let authority = Authority::named("first");
    let (server, address) = start(&authority, AcceptorBuilder::http);
    let uri = || format!("https://localhost:{}/", address.port());
    for name in ["second", "first"] {
        let error = failure(&client(&Authority::named(name)), uri()).await;
        let error = handshake_error(&error);
        assert!(matches!(error, HandshakeError::NotTrusted { .. }), "{error:?}");
        assert!(error.to_string().starts_with("the certificate of localhost is not trusted"), "{error}");
    }
    // The system's authorities, where it has any, don't know this one either.
    let error = failure(&Client::new(), uri()).await;
    match io_error(&error).get_ref().unwrap().downcast_ref::<adapters::tls::Error>() {
        Some(error) => assert!(matches!(error, adapters::tls::Error::NoAuthorities), "{error}"),
        None => assert!(matches!(handshake_error(&error), HandshakeError::NotTrusted { .. }), "{error:?}"),
    }
    server.shutdown(Duration::from_secs(60)).await;
}

#[runtime::test]
async fn a_server_that_hangs_in_the_handshake_is_given_up() {
    let hanging = listener();
    let uri = format!("https://{}/", hanging.local_addr().unwrap());
    let authority = Authority::new();
    let limit = Duration::from_millis(50);
    let tls = adapters::tls::Connector::builder().authorities(authority.path()).handshake_timeout(limit);
    let client = Client::with_connector(Connector::new().tls(tls.open().unwrap()), |_| ());
    let answered = runtime::timeout(Duration::from_secs(60), failure(&client, uri));
    let (error, _accepted) = futures_util::join!(answered, hanging.accept());
    let error = error.unwrap();
    assert_eq!(io_error(&error).kind(), io::ErrorKind::TimedOut);
    assert_eq!(
        handshake_error(&error).to_string(),
        "127.0.0.1 has not completed the TLS handshake within 50ms"
    );
}

#[runtime::test]
async fn a_server_without_tls_is_named_as_such() {
    let plain = listener();
    let uri = format!("https://{}/", plain.local_addr().unwrap());
    let _serving = plain
        .serve(async |mut stream: TcpStream| {
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
            let _ = stream.flush().await;
            // Until the client has read it.
            let _ = stream.read(&mut [0; 1024]).await;
        })
        .unwrap();
    let error = failure(&client(&Authority::new()), uri).await;
    let error = handshake_error(&error);
    assert!(error.to_string().starts_with("127.0.0.1 does not speak TLS on this port"), "{error:?}");
}

#[runtime::test]
async fn a_server_that_expects_tls_is_named_as_such() {
    let alerting = listener();
    let uri = format!("http://{}/", alerting.local_addr().unwrap());
    let _serving = serve_tls_alerts(alerting);
    let error = failure(&Client::new(), uri).await;
    let mut cause = error.source().unwrap();
    while let Some(next) = cause.source() {
        cause = next;
    }
    assert!(cause.to_string().starts_with("the server expects TLS"), "{error:?}");
}

/// A connection of TLS, for requests by hand.
async fn connect(authority: &Authority, address: SocketAddr) -> adapters::tls::Stream<TcpStream> {
    let stream = TcpStream::connect(address).await.unwrap();
    authority.connector().connect("localhost", stream).await.unwrap()
}

#[runtime::test]
async fn a_client_that_still_sends_its_body_gets_the_response_that_refuses_it() {
    let authority = Authority::new();
    let (server, address) = start(&authority, |acceptor| acceptor);
    send_too_large_a_body(connect(&authority, address).await).await;
    server.shutdown(Duration::ZERO).await;
}

#[runtime::test]
async fn a_response_whose_end_is_the_connections_does_not_look_complete_when_it_breaks_off() {
    let authority = Authority::new();
    let (server, address) = start(&authority, |acceptor| acceptor);
    let mut stream = connect(&authority, address).await;
    stream.write_all(b"GET /broken HTTP/1.0\r\n\r\n").await.unwrap();
    stream.flush().await.unwrap();
    let error = stream.read_to_end(&mut Vec::new()).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    server.shutdown(Duration::ZERO).await;
}
