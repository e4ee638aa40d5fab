//! gRPC over TLS: certificates, ALPN, TLS on one side only, deadlines.

use std::net::SocketAddr;
use std::time::Duration;

use adapters::hyper::{Connector, Server};
use adapters::tls::{Acceptor, AcceptorBuilder};
use adapters::tonic::{Channel, serve};
use futures_util::{AsyncReadExt, AsyncWriteExt, StreamExt};
use net::TcpStream;
use tonic::service::Routes;
use tonic::{Code, Request, Status};

use crate::authority::{Authority, serve_tls_alerts};
use crate::common::{listener, status_at_the_end};
use crate::grpc::room;
use crate::grpc_chat::generated::chat_client::ChatClient;
use crate::grpc_chat::generated::chat_server::ChatServer;
use crate::grpc_chat::generated::{Line, Name, Range};

/// A server whose certificate is for `localhost`, and its address.
fn start(
    authority: &Authority,
    set_up: impl FnOnce(AcceptorBuilder) -> AcceptorBuilder,
) -> (Server, SocketAddr) {
    let acceptor = set_up(Acceptor::builder(authority.certificates("server", "localhost"))).open().unwrap();
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let routes = Routes::new(ChatServer::new(room()));
    (serve(listener, routes).tls(acceptor).start().unwrap(), address)
}

fn start_plain() -> (Server, SocketAddr) {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    (serve(listener, Routes::new(ChatServer::new(room()))).start().unwrap(), address)
}

fn client(authority: &Authority, uri: String) -> ChatClient<Channel> {
    let connector = Connector::new().tls(authority.connector());
    ChatClient::new(Channel::with_connector(uri.parse().unwrap(), connector).unwrap())
}

/// Calls a server that fails. A test that hangs says where.
async fn failure(client: &mut ChatClient<Channel>) -> Status {
    let call = client.greet(Name { name: "a".to_owned() });
    runtime::timeout(Duration::from_secs(60), call).await.unwrap().unwrap_err()
}

#[runtime::test]
async fn calls_and_streams_pass_over_tls_on_one_connection() {
    let authority = Authority::new();
    let (server, address) = start(&authority, |acceptor| acceptor.alpn(["h2"]));
    let mut client = client(&authority, format!("https://localhost:{}", address.port()));
    let greeting = client.greet(Name { name: "reader".to_owned() }).await.unwrap().into_inner();
    assert_eq!(greeting.text, "hello reader");
    let counted = client.count(Range { until: 5, milliseconds: 1 }).await.unwrap().into_inner();
    let counted: Vec<_> = counted.map(|line| line.unwrap().text).collect().await;
    assert_eq!(counted, ["0", "1", "2", "3", "4"]);
    let (said, saying) = futures_channel::mpsc::unbounded();
    let mut heard = client.join(saying).await.unwrap().into_inner();
    for length in [1, 100_000, 10] {
        let line = Line { text: "x".repeat(length) };
        said.unbounded_send(line.clone()).unwrap();
        assert_eq!(heard.next().await.unwrap().unwrap(), line);
    }
    drop((said, heard));
    assert_eq!(server.alignment().accepted, 1);
    drop(client);
    assert_eq!(server.shutdown(Duration::from_secs(60)).await.aborted, 0);
}

#[runtime::test]
async fn a_server_that_is_not_trusted_is_unavailable_and_the_message_says_why() {
    let authority = Authority::named("first");
    let (server, address) = start(&authority, AcceptorBuilder::http);
    let uri = format!("https://localhost:{}", address.port());
    let status = failure(&mut client(&Authority::named("second"), uri)).await;
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(status.message().contains("the certificate of localhost is not trusted"), "{status:?}");
    server.shutdown(Duration::from_secs(60)).await;
}

#[runtime::test]
async fn tls_on_one_side_only_is_unavailable() {
    let authority = Authority::new();
    let (server, address) = start(&authority, AcceptorBuilder::http);
    let status = failure(&mut client(&authority, format!("http://{address}"))).await;
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    server.shutdown(Duration::from_secs(60)).await;

    let (server, address) = start_plain();
    let status = failure(&mut client(&authority, format!("https://{address}"))).await;
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(status.message().contains("TLS"), "{status:?}");
    server.shutdown(Duration::from_secs(60)).await;
}

#[runtime::test]
async fn a_tls_alert_is_unavailable_and_the_message_says_what_the_server_expects() {
    let alerting = listener();
    let uri = format!("http://{}", alerting.local_addr().unwrap());
    let _serving = serve_tls_alerts(alerting);
    let status = failure(&mut client(&Authority::new(), uri)).await;
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(status.message().contains("the server expects TLS"), "{status:?}");
}

#[runtime::test]
async fn an_acceptor_without_h2_keeps_a_grpc_server_from_starting() {
    let authority = Authority::new();
    let certificates = authority.certificates("server", "localhost");
    for alpn in [&[][..], &["http/1.1"]] {
        let acceptor = Acceptor::builder(certificates.clone()).alpn(alpn).open().unwrap();
        let routes = Routes::new(ChatServer::new(room()));
        let error = serve(listener(), routes).tls(acceptor).start().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("has to offer h2"), "{error}");
    }
}

#[runtime::test]
async fn a_tls_client_that_has_not_chosen_h2_gets_no_answer() {
    let authority = Authority::new();
    let (server, address) = start(&authority, AcceptorBuilder::http);
    for alpn in [&["http/1.1"][..], &[]] {
        let connector = adapters::tls::Connector::builder().authorities(authority.path()).alpn(alpn);
        let stream = TcpStream::connect(address).await.unwrap();
        let mut stream = connector.open().unwrap().connect("localhost", stream).await.unwrap();
        // It may be closed already.
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n").await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert!(answer.is_empty(), "{:?}", String::from_utf8_lossy(&answer));
    }
    server.shutdown(Duration::from_secs(60)).await;
}

#[runtime::test]
async fn a_stream_over_tls_whose_connection_breaks_ends_with_unavailable() {
    let authority = Authority::new();
    let (server, address) = start(&authority, AcceptorBuilder::http);
    let mut client = client(&authority, format!("https://localhost:{}", address.port()));
    let mut lines = client.count(Range { until: 10_000, milliseconds: 5 }).await.unwrap().into_inner();
    assert_eq!(lines.next().await.unwrap().unwrap().text, "0");
    // Drops the connection.
    server.shutdown(Duration::ZERO).await;
    let status = status_at_the_end(&mut lines).await;
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
}

#[runtime::test]
async fn a_deadline_that_passes_in_the_handshake_is_a_deadline_exceeded() {
    let hanging = listener();
    let uri = format!("https://{}", hanging.local_addr().unwrap());
    let mut client = client(&Authority::new(), uri);
    let mut request = Request::new(Name { name: "a".to_owned() });
    request.set_timeout(Duration::from_millis(50));
    let call = runtime::timeout(Duration::from_secs(60), client.greet(request));
    let (answer, _accepted) = futures_util::join!(call, hanging.accept());
    assert_eq!(answer.unwrap().unwrap_err().code(), Code::DeadlineExceeded);
}
