//! What needs tokio's runtime, in axum's handlers, with nothing but a default `serve`.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use adapters::hyper::{Client, Server};
use adapters::{Io, SendIo};
use axum::Router;
use axum::extract::ws::{Message, WebSocketUpgrade};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::routing::{any, get};
use futures_util::{AsyncBufReadExt, AsyncWriteExt, SinkExt, StreamExt};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::{Response, StatusCode};
use tower_http::services::ServeDir;
use tower_http::timeout::TimeoutLayer;

use crate::common::listener;

const LONG: Duration = Duration::from_secs(60);

fn serve(app: Router) -> (Server, SocketAddr) {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    (adapters::axum::serve(listener, app).start().unwrap(), address)
}

async fn fetch(address: SocketAddr, path: &str) -> Response<Incoming> {
    let client = Client::<Empty<Bytes>>::new();
    client.get().get(format!("http://{address}{path}").parse().unwrap()).await.unwrap()
}

async fn fetch_text(address: SocketAddr, path: &str) -> String {
    let body = fetch(address, path).await.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

#[runtime::test(workers = 2)]
async fn timers_and_tasks_of_tokios_work_in_a_handler() {
    let handler = async || {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let late = tokio::time::timeout(Duration::from_millis(1), std::future::pending::<()>()).await;
        let blocked = tokio::task::spawn_blocking(|| 2).await.unwrap();
        let sum = tokio::spawn(async move { blocked + 3 }).await.unwrap();
        format!("{} {sum}, worker {}", late.unwrap_err(), runtime::current_worker())
    };
    let (server, address) = serve(Router::new().route("/", get(handler)));
    let mut workers = [false; 2];
    // Connections are distributed by the workers' load, or by the kernel.
    for _ in 0..200 {
        let text = fetch_text(address, "/").await;
        let worker = text.strip_prefix("deadline has elapsed 5, worker ").unwrap_or_else(|| panic!("{text}"));
        workers[worker.parse::<usize>().unwrap()] = true;
        if workers == [true; 2] {
            break;
        }
    }
    assert_eq!(workers, [true; 2], "each worker has answered");
    server.shutdown(LONG).await;
}

#[runtime::test]
async fn an_idle_stream_of_events_is_kept_alive() {
    let events = async || {
        let idle = futures_util::stream::pending::<Result<Event, Infallible>>();
        Sse::new(idle).keep_alive(KeepAlive::new().interval(Duration::from_millis(2)).text("alive"))
    };
    let (server, address) = serve(Router::new().route("/", get(events)));
    let mut body = fetch(address, "/").await.into_body();
    let mut received = Vec::new();
    while received.len() < 2 * b": alive\n\n".len() {
        received.extend_from_slice(&body.frame().await.unwrap().unwrap().into_data().unwrap());
    }
    assert!(received.starts_with(b": alive\n\n: alive\n\n"), "{}", received.escape_ascii());
    drop(body);
    server.shutdown(LONG).await;
}

#[runtime::test]
async fn the_timeout_layer_of_tower_http_answers_for_a_slow_handler() {
    let limit = TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, Duration::from_millis(5));
    let app = Router::new()
        .route("/slow", get(std::future::pending::<String>))
        .route("/", get(async || "in time"))
        .layer(limit);
    let (server, address) = serve(app);
    assert_eq!(fetch(address, "/slow").await.status(), StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(fetch_text(address, "/").await, "in time");
    server.shutdown(LONG).await;
}

#[runtime::test]
async fn serve_dir_of_tower_http_sends_files() {
    let folder = tempfile::tempdir().unwrap();
    let text = "0123456789".repeat(30_000);
    std::fs::write(folder.path().join("digits.txt"), &text).unwrap();
    let (server, address) = serve(Router::new().fallback_service(ServeDir::new(folder.path())));
    assert!(fetch_text(address, "/digits.txt").await == text);
    assert_eq!(fetch(address, "/none.txt").await.status(), StatusCode::NOT_FOUND);
    server.shutdown(LONG).await;
}

/// axum's own WebSockets: their tasks are tokio's, and use the connection from its thread.
#[runtime::test(workers = 2)]
async fn axums_websockets_are_answered_from_tokios_thread() {
    let echo = async |upgrade: WebSocketUpgrade| {
        upgrade.on_upgrade(async |mut socket| {
            while let Some(Ok(message)) = socket.recv().await {
                if matches!(message, Message::Text(_) | Message::Binary(_)) {
                    socket.send(message).await.unwrap();
                }
            }
        })
    };
    let (server, address) = serve(Router::new().route("/", any(echo)));
    let stream = Io::new(net::TcpStream::connect(address).await.unwrap());
    let (mut socket, _) = tokio_tungstenite::client_async(format!("ws://{address}/"), stream).await.unwrap();
    let large = vec![b'x'; 300_000];
    for number in 0..20 {
        let message = match number % 5 {
            0 => tokio_tungstenite::tungstenite::Message::binary(large.clone()),
            _ => tokio_tungstenite::tungstenite::Message::text(format!("message {number}")),
        };
        socket.send(message.clone()).await.unwrap();
        assert!(socket.next().await.unwrap().unwrap() == message);
    }
    socket.close(None).await.unwrap();
    while let Some(rest) = socket.next().await {
        assert!(rest.unwrap().is_close());
    }
    assert_eq!(server.shutdown(LONG).await.aborted, 0);
}

/// A server of Redis that answers only `CLIENT`, by which a connection begins.
fn slow_redis() -> SocketAddr {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let answer = async |stream: net::TcpStream| {
        let (reader, mut writer) = stream.into_split();
        let mut lines = reader.lines();
        while let Some(Ok(line)) = lines.next().await {
            if line == "CLIENT" && writer.write_all(b"+OK\r\n").await.is_err() {
                break;
            }
        }
    };
    drop(listener.serve(answer).unwrap());
    address
}

#[runtime::test]
async fn the_response_timeout_of_redis_ends_a_command_that_is_not_answered() {
    let redis = slow_redis();
    let blocked = move || async move {
        let stream = net::TcpStream::connect(redis).await.unwrap();
        let config =
            redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_millis(20)));
        let (settings, stream) = (redis::RedisConnectionInfo::default(), SendIo::new(stream));
        let connected =
            redis::aio::MultiplexedConnection::new_with_config(&settings, stream, config).await.unwrap();
        let (mut connection, driver) = connected;
        drop(runtime::spawn(driver));
        let answer = redis::cmd("BLPOP").arg("nothing").arg(0).query_async::<()>(&mut connection).await;
        answer.unwrap_err().is_timeout()
    };
    // Without a server of this crate's, too.
    assert!(blocked().await);
    let handler = move || async move { runtime::spawn(blocked()).await.unwrap().to_string() };
    let (server, address) = serve(Router::new().route("/", get(handler)));
    assert_eq!(fetch_text(address, "/").await, "true");
    server.shutdown(LONG).await;
}
