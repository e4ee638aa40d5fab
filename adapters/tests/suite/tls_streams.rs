//! TLS: handshakes, names, reloads, ALPN, client certificates.

use std::io;
use std::time::Duration;

use adapters::Io;
use adapters::tls::{Acceptor, ClientCertificates, Connector, Error};
use axum::Router;
use futures_util::{AsyncReadExt, AsyncWriteExt};
use net::TcpStream;

use crate::authority::Authority;
use crate::common::{listener, pair};

/// Shakes hands, and returns both sides' results.
async fn handshake(
    acceptor: &Acceptor,
    connector: &Connector,
    name: &str,
) -> (io::Result<adapters::tls::Stream<TcpStream>>, io::Result<adapters::tls::Stream<TcpStream>>) {
    let (client, server) = pair().await;
    futures_util::join!(acceptor.accept(server), connector.connect(name, client))
}

#[runtime::test]
async fn large_data_passes_both_ways_and_the_end_is_told() {
    let authority = Authority::new();
    let acceptor = Acceptor::builder(authority.certificates("a", "localhost")).open().unwrap();
    let (server, client) = handshake(&acceptor, &authority.connector(), "localhost").await;
    let (server, mut client) = (server.unwrap(), client.unwrap());
    assert_eq!(server.server_name(), Some("localhost"));
    let echo = runtime::spawn(async move {
        let (reader, mut writer) = tokio::io::split(Io::new(server));
        tokio::io::copy(&mut tokio::io::BufReader::new(reader), &mut writer).await.unwrap();
        tokio::io::AsyncWriteExt::shutdown(&mut writer).await.unwrap();
    });
    let data: Vec<u8> = (0..200_000_u32).map(|number| number as u8).collect();
    let mut received = Vec::new();
    // In parts: the echo's way back must not fill up.
    for part in data.chunks(50_000) {
        client.write_all(part).await.unwrap();
        client.flush().await.unwrap();
        let mut answer = vec![0; part.len()];
        client.read_exact(&mut answer).await.unwrap();
        received.extend_from_slice(&answer);
    }
    client.close().await.unwrap();
    client.read_to_end(&mut received).await.unwrap();
    assert!(received == data);
    echo.await.unwrap();
}

#[runtime::test]
async fn certificates_follow_the_name_that_is_asked_for_and_reloads() {
    let authority = Authority::new();
    let builder = Acceptor::builder(authority.certificates("default", "default.test"))
        .server_name("other.test", authority.certificates("other", "other.test"));
    let acceptor = builder.open().unwrap();
    let connector = authority.connector();
    for (name, valid) in [("default.test", true), ("other.test", true), ("third.test", false)] {
        let (_, client) = handshake(&acceptor, &connector, name).await;
        assert_eq!(client.is_ok(), valid, "{name}: {client:?}");
    }
    // The file of the default is replaced by one of another name.
    authority.certificates("default", "third.test");
    assert!(handshake(&acceptor, &connector, "third.test").await.1.is_err());
    acceptor.reload().unwrap();
    assert!(handshake(&acceptor, &connector, "third.test").await.1.is_ok());
    // What can't be read changes nothing, and is named.
    std::fs::write(authority.file("default.pem"), "nothing").unwrap();
    let error = acceptor.reload().unwrap_err();
    assert!(matches!(&error, Error::NoCertificate { .. }), "{error}");
    assert!(error.to_string().contains("default.pem"), "{error}");
    assert!(handshake(&acceptor, &connector, "third.test").await.1.is_ok());
}

#[runtime::test]
async fn a_name_that_the_certificate_is_not_for_can_not_be_set_up() {
    let authority = Authority::new();
    let error = Acceptor::builder(authority.certificates("a", "a.test"))
        .server_name("b.test", authority.certificates("c", "c.test"))
        .open()
        .unwrap_err();
    assert!(error.to_string().contains("c.pem: cannot use the certificate for its server name"), "{error}");
}

#[runtime::test]
async fn a_protocol_is_agreed_on_and_clients_show_certificates() {
    let authority = Authority::new();
    let acceptor = Acceptor::builder(authority.certificates("a", "localhost"))
        .http()
        .require_tls13()
        .client_certificates(authority.path(), ClientCertificates::Required)
        .open()
        .unwrap();
    let (server, client) = handshake(&acceptor, &authority.connector(), "localhost").await;
    assert!(server.is_err(), "a client without a certificate was accepted");
    drop(client);
    let connector = Connector::builder()
        .authorities(authority.path())
        .client_certificate(authority.certificates("client", "client.test"))
        .alpn(["http/1.1"])
        .open()
        .unwrap();
    let (server, client) = handshake(&acceptor, &connector, "localhost").await;
    let (server, client) = (server.unwrap(), client.unwrap());
    assert_eq!(client.alpn_protocol(), Some(&b"http/1.1"[..]));
    assert_eq!(server.peer_certificates().map(<[_]>::len), Some(1));
}

#[runtime::test]
async fn a_client_that_shakes_no_hands_is_cut_off() {
    let authority = Authority::new();
    let acceptor = Acceptor::builder(authority.certificates("a", "localhost"))
        .handshake_timeout(Duration::from_millis(50))
        .open()
        .unwrap();
    let (_client, server) = pair().await;
    assert_eq!(acceptor.accept(server).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
}

#[runtime::test]
async fn a_client_without_tls_ends_its_own_connection_only() {
    let authority = Authority::new();
    let acceptor = Acceptor::builder(authority.certificates("a", "localhost")).http().open().unwrap();
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let server = adapters::axum::serve(listener, Router::new()).tls(acceptor).start().unwrap();
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    let _ = plain.read_to_end(&mut rest).await;
    assert!(!rest.starts_with(b"HTTP"));
    let stream = TcpStream::connect(address).await.unwrap();
    assert!(authority.connector().connect("localhost", stream).await.is_ok());
    assert_eq!(server.shutdown(Duration::from_secs(60)).await.aborted, 0);
}
