//! The same services on Lull and on tokio, and a client that loads them: what
//! `lab/services/compare.py` compares.
//!
//! ```sh
//! service_pairs axum|grpc|websocket|proxy lull|tokio|tokio-8k ADDRESS [UPSTREAM]    # serves, on one thread, on core 0
//! service_pairs axum|grpc|websocket|proxy load ADDRESS CONNECTIONS RATE WARM_UP SECONDS    # on core 1; rate 0: a closed loop
//! ```
//!
//! Lull's policy, interface and driver come from the environment (`RUNTIME_POLICY`,
//! `RUNTIME_INTERFACE`, `RUNTIME_DRIVER`). The proxy forwards to UPSTREAM. Without arguments each
//! pair answers for a moment.

#[path = "service_pairs/load.rs"]
mod load;
#[path = "service_pairs/on_lull.rs"]
mod on_lull;
#[path = "service_pairs/on_tokio.rs"]
mod on_tokio;

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use futures_util::{Sink, SinkExt, Stream, StreamExt};
use hyper::Request;
use hyper::body::Incoming;
use runtime::policy::Cpus;
use tokio_tungstenite::tungstenite::{self, Message};

use crate::load::Load;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Service {
    /// A page.
    Axum,
    /// tonic's health service, without TLS.
    Grpc,
    /// Echoes messages of 64 bytes.
    WebSocket,
    /// HTTP/1.1 to one upstream.
    Proxy(SocketAddr),
}

impl Service {
    fn named(name: &str, upstream: Option<&str>) -> Result<Self> {
        match name {
            "axum" => Ok(Self::Axum),
            "grpc" => Ok(Self::Grpc),
            "websocket" => Ok(Self::WebSocket),
            "proxy" => Ok(Self::Proxy(upstream.ok_or("a proxy needs an upstream's address")?.parse()?)),
            other => Err(format!("{other} is neither axum, grpc, websocket nor proxy").into()),
        }
    }
}

fn page() -> Router {
    Router::new().route("/", get(async || "Hello, World!"))
}

/// Echoes until the client closes.
async fn echo<S>(mut socket: S)
where
    S: Stream<Item = tungstenite::Result<Message>> + Sink<Message, Error = tungstenite::Error> + Unpin,
{
    while let Some(Ok(message)) = socket.next().await {
        if message.is_close() || socket.send(message).await.is_err() {
            break;
        }
    }
}

/// A request, for the server behind the proxy.
fn forwarded(mut request: Request<Incoming>, upstream: SocketAddr) -> io::Result<Request<Incoming>> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = format!("http://{upstream}{path}").parse().map_err(io::Error::other)?;
    Ok(request)
}

/// Serves until the process ends; calls `ready` with its address.
fn serve(
    on: &str,
    service: Service,
    address: SocketAddr,
    core: Option<Cpus>,
    ready: impl FnOnce(SocketAddr),
) -> Result<()> {
    match on {
        "lull" => on_lull::serve(service, address, core, ready),
        "tokio" | "tokio-8k" => {
            if let Some(core) = core {
                core.pin(None)?;
            }
            on_tokio::serve(service, address, (on == "tokio-8k").then_some(8 << 10), ready)
        }
        other => Err(format!("{other} is neither lull, tokio, tokio-8k nor load").into()),
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *arguments {
        [service, "load", address, connections, rate, warm_up, seconds] => {
            let load = Load {
                // A client needs no upstream.
                service: Service::named(service, Some(address))?,
                address: address.parse()?,
                connections: connections.parse()?,
                warm_up: Duration::from_secs_f64(warm_up.parse()?),
                time: Duration::from_secs_f64(seconds.parse()?),
                rate: rate.parse()?,
            };
            println!("{}", load::run(load, Some(Cpus::one(1)))?);
            Ok(())
        }
        [service, on, address, ref upstream @ ..] => {
            let service = Service::named(service, upstream.first().copied())?;
            serve(on, service, address.parse()?, Some(Cpus::one(0)), |_| {})
        }
        [] => answer_for_a_moment(),
        _ => Err("expected SERVICE lull|tokio|tokio-8k ADDRESS [UPSTREAM], SERVICE load ADDRESS CONNECTIONS RATE WARM_UP SECONDS, or nothing".into()),
    }
}

/// The servers never end: their threads end with the process.
fn answer_for_a_moment() -> Result<()> {
    let start = |on: &'static str, service| {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let any = SocketAddr::from(([127, 0, 0, 1], 0));
            // Fails only if nobody waits for it.
            let ready = |address| _ = sender.send(address);
            if let Err(error) = serve(on, service, any, None, ready) {
                eprintln!("{service:?} on {on}: {error}");
            }
        });
        receiver.recv()
    };
    let upstream = start("tokio", Service::Axum)?;
    for service in [Service::Axum, Service::Grpc, Service::WebSocket, Service::Proxy(upstream)] {
        for on in ["lull", "tokio"] {
            let address = start(on, service)?;
            for rate in [0.0, 500.0] {
                let time = Duration::from_millis(100);
                let load = Load { service, address, connections: 4, warm_up: Duration::ZERO, time, rate };
                println!("{service:?} on {on}: {}", load::run(load, None)?);
            }
        }
    }
    Ok(())
}
