//! An axum application with tower-http's layers, and a graceful shutdown.
//! `cargo run -p lull-adapters --example axum_hello`
//!
//! With an address as its argument it serves until SIGINT or SIGTERM; without one it asks itself
//! and ends.

use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use adapters::tower::TimeoutLayer;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, Path};
use axum::http::{HeaderValue, StatusCode, header};
use axum::routing::{get, post};
use tokio::sync::oneshot;
use tower::ServiceBuilder;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::cors::CorsLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::set_header::SetResponseHeaderLayer;
use tower_http::trace::TraceLayer;

async fn hello(ConnectInfo(peer): ConnectInfo<SocketAddr>, Path(name): Path<String>) -> String {
    format!("hello {name} at {}\n", peer.ip())
}

async fn slow() {
    runtime::sleep(Duration::from_secs(60)).await;
}

fn app() -> Router {
    let layers = ServiceBuilder::new()
        .layer(TraceLayer::new_for_http())
        .layer(CatchPanicLayer::new())
        .layer(RequestBodyLimitLayer::new(1000))
        .layer(CompressionLayer::new())
        .layer(CorsLayer::permissive())
        .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, Duration::from_millis(100)))
        .layer(SetResponseHeaderLayer::if_not_present(header::SERVER, HeaderValue::from_static("hello")));
    Router::new()
        .route("/", get(async || "hello\n".repeat(100)))
        .route("/{name}", get(hello))
        .route("/slow", get(slow))
        .route("/panic", get(async || -> String { panic!("a handler panics") }))
        .route("/length", post(async |body: Bytes| body.len().to_string()))
        .layer(layers)
}

#[runtime::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let argument = std::env::args().nth(1);
    let listener = net::TcpListener::bind(argument.as_deref().unwrap_or("127.0.0.1:0"))?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}");
    let app = app().into_make_service_with_connect_info::<SocketAddr>();
    if argument.is_some() {
        let signal = runtime::signal::terminated();
        adapters::axum::serve(listener, app).with_graceful_shutdown(signal).await?;
        return Ok(());
    }
    let (stop, stopped) = oneshot::channel::<()>();
    let asked = runtime::spawn_blocking(move || {
        let _stop = stop;
        ask_all(address)
    });
    let stopped = async { drop(stopped.await) };
    adapters::axum::serve(listener, app).with_graceful_shutdown(stopped).await?;
    asked.await??.iter().for_each(|line| println!("{line}"));
    Ok(())
}

fn ask_all(address: SocketAddr) -> io::Result<Vec<String>> {
    let long = format!(
        "POST /length HTTP/1.1\r\ncontent-length: 2000\r\nconnection: close\r\n\r\n{}",
        "x".repeat(2000)
    );
    let requests = [
        "GET /reader HTTP/1.1\r\norigin: http://elsewhere\r\nconnection: close\r\n\r\n",
        "GET / HTTP/1.1\r\naccept-encoding: gzip\r\nconnection: close\r\n\r\n",
        "GET /slow HTTP/1.1\r\nconnection: close\r\n\r\n",
        "GET /panic HTTP/1.1\r\nconnection: close\r\n\r\n",
        &long,
    ];
    requests.into_iter().map(|request| ask(address, request)).collect()
}

/// The status, and what the layers have added to the answer.
fn ask(address: SocketAddr, request: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let shown = ["HTTP/1.1", "server", "content-encoding", "access-control-allow-origin"];
    let lines = answer.lines().filter(|line| shown.iter().any(|name| line.starts_with(name)));
    Ok(lines.collect::<Vec<_>>().join("; "))
}
