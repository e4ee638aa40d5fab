//! axum's routers: extractors, connection information, errors, large bodies, WebSockets.

use std::net::SocketAddr;
use std::time::Duration;

use adapters::axum::serve;
use adapters::axum::ws::{Message, WebSocket, WebSocketUpgrade};
use adapters::hyper::Client;
use axum::extract::{ConnectInfo, Path, State};
use axum::response::Response;
use axum::routing::{any, get, post};
use axum::{Json, Router};
use futures_util::{SinkExt, StreamExt};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Request, StatusCode};
use serde::{Deserialize, Serialize};
use tokio_tungstenite::tungstenite;

use crate::common::listener;

#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
struct Note {
    id: u32,
    text: String,
}

fn app() -> Router {
    Router::new()
        .route(
            "/notes/{id}",
            get(async |Path(id): Path<u32>, State(text): State<&'static str>| {
                Json(Note { id, text: text.to_owned() })
            }),
        )
        .route("/notes", post(async |Json(note): Json<Note>| (StatusCode::CREATED, note.text)))
        .route("/length", post(async |body: Bytes| body.len().to_string()))
        .route("/peer", get(async |ConnectInfo(peer): ConnectInfo<SocketAddr>| peer.ip().to_string()))
        .route("/panic", get(async || -> String { panic!("a handler panics") }))
        .route("/chat", any(chat))
        .with_state("hello")
}

/// Echoes texts. It holds an `Rc` across awaits, and serves from the worker of its connection.
async fn chat(upgrade: WebSocketUpgrade) -> Response {
    let worker = runtime::current_worker();
    let upgrade = upgrade.protocols(["other", "chat"]);
    let selected = upgrade.selected_protocol().cloned();
    let response = upgrade.on_upgrade(move |mut socket: WebSocket| async move {
        let received = std::rc::Rc::new(std::cell::Cell::new(0));
        assert_eq!(runtime::current_worker(), worker);
        while let Some(Ok(message)) = socket.next().await {
            received.set(received.get() + 1);
            let answer = match message {
                Message::Text(text) => Message::text(format!("{} {text}", received.get())),
                Message::Binary(bytes) => Message::Binary(bytes),
                _ => continue,
            };
            if socket.send(answer).await.is_err() {
                break;
            }
        }
    });
    assert_eq!(response.headers().get("sec-websocket-protocol"), selected.as_ref());
    response
}

async fn send(
    client: &Client<Full<Bytes>>,
    request: hyper::http::request::Builder,
    body: impl Into<Bytes>,
) -> (StatusCode, String) {
    let response = client.get().request(request.body(Full::new(body.into())).unwrap()).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8_lossy(&body).into_owned())
}

#[runtime::test]
async fn extractors_and_bodies_work_by_both_protocols() {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let server = serve(listener, app().into_make_service_with_connect_info::<SocketAddr>()).start().unwrap();
    for client in [Client::new(), Client::http2()] {
        let at = |path: &str| Request::builder().uri(format!("http://{address}{path}"));
        assert_eq!(
            send(&client, at("/notes/7"), "").await,
            (StatusCode::OK, r#"{"id":7,"text":"hello"}"#.to_owned())
        );
        let json = at("/notes").method("POST").header("content-type", "application/json");
        assert_eq!(
            send(&client, json, r#"{"id":1,"text":"new"}"#).await,
            (StatusCode::CREATED, "new".to_owned())
        );
        assert_eq!(send(&client, at("/notes/x"), "").await.0, StatusCode::BAD_REQUEST);
        assert_eq!(send(&client, at("/nothing"), "").await.0, StatusCode::NOT_FOUND);
        assert_eq!(send(&client, at("/peer"), "").await.1, "127.0.0.1");
        let megabyte = vec![1; 1 << 20];
        assert_eq!(send(&client, at("/length").method("POST"), megabyte).await.1, "1048576");
    }
    assert_eq!(server.alignment().accepted, 2);
    server.shutdown(Duration::from_secs(60)).await;
}

#[runtime::test]
async fn a_handler_that_panics_ends_its_connection_only() {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let server = serve(listener, app()).start().unwrap();
    let client = Client::<Full<Bytes>>::new();
    let uri = |path| format!("http://{address}{path}").parse::<hyper::Uri>().unwrap();
    assert!(client.get().get(uri("/panic")).await.is_err());
    assert_eq!(client.get().get(uri("/notes/1")).await.unwrap().status(), StatusCode::OK);
    server.shutdown(Duration::from_secs(60)).await;
}

#[runtime::test]
async fn a_websocket_of_another_implementation_is_answered() {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let server = serve(listener, app()).start().unwrap();
    // tungstenite without async, on a thread.
    let client = std::thread::spawn(move || {
        use tungstenite::client::IntoClientRequest;
        let mut request = format!("ws://{address}/chat").into_client_request().unwrap();
        request.headers_mut().insert("sec-websocket-protocol", "chat".parse().unwrap());
        let stream = std::net::TcpStream::connect(address).unwrap();
        let (mut socket, response) = tungstenite::client(request, stream).unwrap();
        assert_eq!(response.headers()["sec-websocket-protocol"], "chat");
        let mut answers = Vec::new();
        for number in 0..3 {
            socket.send(tungstenite::Message::text(format!("message {number}"))).unwrap();
            answers.push(socket.read().unwrap().into_text().unwrap().to_string());
        }
        let large = vec![9; 300_000];
        socket.send(tungstenite::Message::binary(large.clone())).unwrap();
        assert!(socket.read().unwrap().into_data() == large);
        socket.send(tungstenite::Message::Ping("p".into())).unwrap();
        assert_eq!(socket.read().unwrap(), tungstenite::Message::Pong("p".into()));
        socket.close(None).unwrap();
        assert!(socket.read().unwrap().is_close());
        answers
    });
    let joined = async {
        while !client.is_finished() {
            runtime::sleep(Duration::from_millis(5)).await;
        }
    };
    runtime::timeout(Duration::from_secs(60), joined).await.unwrap();
    assert_eq!(client.join().unwrap(), ["1 message 0", "2 message 1", "3 message 2"]);
    assert_eq!(server.shutdown(Duration::from_secs(60)).await.aborted, 0);
}

#[runtime::test]
async fn requests_that_are_no_websockets_are_refused_with_a_reason() {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let server = serve(listener, app()).start().unwrap();
    let client = Client::new();
    let at = || Request::builder().uri(format!("http://{address}/chat"));
    let upgrade = || at().header("connection", "keep-alive, Upgrade").header("upgrade", "WebSocket");
    let (status, reason) = send(&client, at(), "").await;
    assert_eq!(
        (status, &*reason),
        (StatusCode::BAD_REQUEST, "the request doesn't ask for an upgrade to websocket")
    );
    assert_eq!(send(&client, upgrade().method("POST"), "").await.0, StatusCode::METHOD_NOT_ALLOWED);
    assert!(send(&client, upgrade(), "").await.1.contains("Sec-WebSocket-Key"));
    let (status, reason) = send(&client, upgrade().header("sec-websocket-key", "abc"), "").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(reason.contains("Sec-WebSocket-Version"), "{reason}");
    server.shutdown(Duration::from_secs(60)).await;
}

#[test]
fn a_handler_that_stalls_its_worker_is_reported_with_the_line_that_serves() {
    let (stalls, stalled) = std::sync::mpsc::channel();
    let runtime = runtime::Builder::new()
        .ignore_environment()
        .workers(1)
        .stall_threshold(Duration::from_millis(50))
        .on_stall(move |stall| stalls.send(stall.clone()).unwrap())
        .build()
        .unwrap();
    let line = runtime.block_on(async {
        let blocks = Router::new().route("/", get(async || std::thread::sleep(Duration::from_millis(80))));
        let listener = listener();
        let address = listener.local_addr().unwrap();
        let (line, server) = (line!(), serve(listener, blocks).start().unwrap());
        let client = Client::<Full<Bytes>>::new();
        let request = Request::get(format!("http://{address}/")).body(Full::default()).unwrap();
        assert_eq!(client.get().request(request).await.unwrap().status(), StatusCode::OK);
        server.shutdown(Duration::ZERO).await;
        line
    });
    drop(runtime);
    // Where the machine pauses, others are reported, too.
    let stalls: Vec<_> = stalled.iter().collect();
    let of_handler = |stall: &runtime::Stall| {
        stall.spawned.file().ends_with("axum_app.rs") && stall.spawned.line() == line
    };
    assert!(stalls.iter().any(of_handler), "{stalls:?}");
}

#[runtime::test]
async fn connections_beyond_the_listeners_limit_wait_for_others_to_end() {
    let listener = listener().limit_connections(1);
    let uri: hyper::Uri = format!("http://{}/notes/1", listener.local_addr().unwrap()).parse().unwrap();
    let server = serve(listener, app()).start().unwrap();
    let (first, second) = (Client::<Full<Bytes>>::new(), Client::<Full<Bytes>>::new());
    assert_eq!(first.get().get(uri.clone()).await.unwrap().status(), StatusCode::OK);
    // The first keeps its connection.
    let mut waiting = std::pin::pin!(second.get().get(uri));
    let early = runtime::timeout(Duration::from_millis(20), &mut waiting).await;
    assert!(early.is_err() && server.alignment().accepted == 1, "{early:?}");
    drop(first);
    let answer = runtime::timeout(Duration::from_secs(60), waiting).await.unwrap();
    assert_eq!(answer.unwrap().status(), StatusCode::OK);
    server.shutdown(Duration::from_secs(60)).await;
}
