//! A page by axum.

use std::io;

use adapters::hyper::Server;
use axum::Router;
use axum::routing::get;

use super::without_delay;

fn app() -> Router {
    Router::new().route("/", get(async || "Hello, World!"))
}

pub(super) async fn on_tokio(listener: tokio::net::TcpListener) -> io::Result<()> {
    axum::serve(without_delay(listener), app()).await
}

pub(super) fn on_lull(listener: net::TcpListener) -> io::Result<Server> {
    // A fleet stays connected while others are measured; axum's own server on tokio has no limit either.
    adapters::axum::serve(listener, app()).header_read_timeout(None).start()
}
