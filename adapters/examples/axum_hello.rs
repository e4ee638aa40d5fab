//! An axum application on Lull, with a graceful shutdown: `cargo run -p lull-adapters --example axum_hello`.
//!
//! With an address as its argument it serves until SIGINT or SIGTERM; without one it asks itself and ends.

use std::error::Error;
use std::net::SocketAddr;

use adapters::hyper::Client;
use axum::Router;
use axum::extract::{ConnectInfo, Path};
use axum::routing::get;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use net::TcpListener;

async fn hello(ConnectInfo(peer): ConnectInfo<SocketAddr>, Path(name): Path<String>) -> String {
    format!("hello {name} at {}, from worker {}\n", peer.ip(), runtime::current_worker())
}

#[runtime::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let app = Router::new().route("/", get(async || "hello\n")).route("/{name}", get(hello));
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    let Some(address) = std::env::args().nth(1) else { return ask(app).await };

    let listener = TcpListener::bind(address)?;
    println!("listening on http://{}", listener.local_addr()?);
    let signal = runtime::signal::terminated()?;
    adapters::axum::serve(listener, app)
        .with_graceful_shutdown(async {
            signal.await;
        })
        .await?;
    Ok(())
}

/// Starts the server in the background, and asks it.
async fn ask(app: impl adapters::axum::App) -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = adapters::axum::serve(listener, app).start()?;
    let client = Client::<Empty<Bytes>>::new();
    let response = client.get().get(format!("http://{address}/reader").parse()?).await?;
    let body = response.into_body().collect().await?.to_bytes();
    print!("{}", String::from_utf8_lossy(&body));
    drop(client);
    let report = server.shutdown(std::time::Duration::from_secs(1)).await;
    println!("shut down; {} connections aborted", report.aborted);
    Ok(())
}
