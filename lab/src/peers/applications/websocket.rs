//! Echoes messages of WebSockets by axum, on tokio by its own `ws`, on Lull by that of `adapters`. Both are tungstenite.

use std::io;

use adapters::axum::ws as lull_ws;
use adapters::hyper::Server;
use axum::Router;
use axum::extract::ws as tokio_ws;
use axum::response::Response;
use axum::routing::any;
use futures_util::{SinkExt, StreamExt};

use super::without_delay;

async fn open_on_tokio(upgrade: tokio_ws::WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(async |mut socket| {
        while let Some(Ok(message)) = socket.next().await {
            if matches!(message, tokio_ws::Message::Close(_)) || socket.send(message).await.is_err() {
                break;
            }
        }
    })
}

async fn open_on_lull(upgrade: lull_ws::WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(async |mut socket: lull_ws::WebSocket| {
        while let Some(Ok(message)) = socket.next().await {
            if message.is_close() || socket.send(message).await.is_err() {
                break;
            }
        }
    })
}

pub(super) async fn on_tokio(listener: tokio::net::TcpListener) -> io::Result<()> {
    axum::serve(without_delay(listener), Router::new().route("/", any(open_on_tokio))).await
}

pub(super) fn on_lull(listener: net::TcpListener) -> io::Result<Server> {
    let app = Router::new().route("/", any(open_on_lull));
    adapters::axum::serve(listener, app).header_read_timeout(None).start()
}
