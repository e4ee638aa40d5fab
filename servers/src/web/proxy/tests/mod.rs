//! The proxy between clients and upstreams over loopback.

mod bodies;
mod failures;
mod forwarding;
mod pooling;
mod upgrades;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use adapters::hyper::{Peer, Server, serve};
use futures_util::{AsyncReadExt, AsyncWriteExt};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use net::{TcpListener, TcpStream};

use super::{ClientInfo, ProxyRoute, UpstreamStatus};
use crate::web::body::ClientBody;
use crate::web::config::ProxyConfig;

/// The longest body that the proxy takes, in bytes.
const BODY_LIMIT: u64 = 8 << 20;

/// A server with one route.
struct Proxy {
    address: SocketAddr,
    route: Arc<ProxyRoute>,
    server: Server,
}

impl Proxy {
    fn start(upstreams: &[SocketAddr], change: impl FnOnce(&mut ProxyConfig)) -> Self {
        let mut config = ProxyConfig::new("/", "");
        config.upstreams = upstreams.iter().map(|address| format!("http://{address}")).collect();
        change(&mut config);
        let route = Arc::new(ProxyRoute::new(&config).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let served = Arc::clone(&route);
        let server = serve(listener, move |peer: &Peer| {
            let client = ClientInfo { address: peer.address(), encrypted: false };
            let route = Arc::clone(&served);
            service_fn(move |request: Request<Incoming>| {
                let route = Arc::clone(&route);
                let request = request.map(ClientBody::Hyper);
                async move { Ok::<_, Infallible>(route.forward(request, client, BODY_LIMIT, None).await) }
            })
        })
        .start()
        .unwrap();
        Self { address, route, server }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends bytes on a connection of their own, and returns all that comes back.
    async fn raw(&self, request: &str) -> String {
        let mut stream = self.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        response
    }

    /// Gets a path on a new connection, and returns the whole response.
    async fn get(&self, path: &str) -> String {
        self.raw(&format!("GET {path} HTTP/1.1\r\nhost: client\r\nconnection: close\r\n\r\n")).await
    }

    fn status(&self, upstream: usize) -> UpstreamStatus {
        self.route.statuses().swap_remove(upstream)
    }
}

/// An upstream of hyper.
struct Upstream {
    address: SocketAddr,
    server: Server,
}

impl Upstream {
    fn start<F, B>(answer: impl Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Response<B>> + 'static,
        B: Body<Data: Send, Error: Into<adapters::hyper::BoxError>> + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = serve(listener, move |_: &Peer| {
            let answer = answer.clone();
            service_fn(move |request| {
                let response = answer(request);
                async { Ok::<_, Infallible>(response.await) }
            })
        })
        .start()
        .unwrap();
        Self { address, server }
    }

    /// Answers with the request's target.
    fn echoing_target() -> Self {
        Self::start(async |request: Request<Incoming>| Response::new(request.uri().to_string()))
    }

    /// Answers with a text.
    fn saying(text: &'static str) -> Self {
        Self::start(async move |_| Response::new(text.to_owned()))
    }

    fn accepted(&self) -> u64 {
        self.server.alignment().accepted
    }
}

/// An upstream of a script: accepts one connection after the other and hands them over.
fn script<F>(run: impl Fn(usize, TcpStream) -> F + 'static) -> SocketAddr
where
    F: Future<Output = ()> + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(runtime::spawn(async move {
        for number in 0.. {
            let (stream, _) = listener.accept().await.unwrap();
            drop(runtime::spawn(run(number, stream)));
        }
    }));
    address
}

/// Reads up to the end of a head. Returns None if the stream ends before.
async fn read_head(stream: &mut (impl futures_util::AsyncRead + Unpin)) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte).await.ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    Some(String::from_utf8(head).unwrap())
}

/// Another address each time, on a port that nobody listens on.
fn refusing() -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    SocketAddr::from(([127, 0, 1, NEXT.fetch_add(1, Ordering::Relaxed)], 1))
}

/// Turns of the worker, in each of which it looks at its sockets: more than any exchange here
/// takes.
async fn settle() {
    for _ in 0..50 {
        runtime::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until something holds.
async fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..6000 {
        if holds() {
            return;
        }
        runtime::sleep(Duration::from_millis(10)).await;
    }
    panic!("it does not come true: {what}");
}
