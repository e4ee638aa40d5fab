//! A streaming reverse proxy: each worker accepts, and forwards by its own pool of connections.
//! `cargo run -p lull-adapters --example reverse_proxy [ADDRESS UPSTREAM_ADDRESS]`
//!
//! With two addresses it forwards from the first to the second until SIGINT or SIGTERM. Without
//! arguments it forwards from itself to itself, checks the answers, and ends.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use adapters::HyperIo;
use adapters::hyper::{BoxError, Client, MakeService, Peer, Serve, serve};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::header::{PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE};
use hyper::http::request::Parts;
use hyper::http::uri::{Authority, PathAndQuery};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use net::TcpListener;
use tokio::io::copy_bidirectional;

type Answer = Response<Either<Incoming, Full<Bytes>>>;

/// These concern one connection, and are not forwarded.
const HOP_BY_HOP: [HeaderName; 7] =
    [CONNECTION, KEEP_ALIVE, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE];
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");

/// What forwards requests. Clones share the connections of their worker.
#[derive(Clone)]
struct Proxy {
    upstream: Authority,
    /// How long the upstream may take for a response's head, after the request's last part.
    limit: Duration,
    client: Client<Upload>,
}

/// A proxy from a listener to an upstream's address.
pub fn proxy(from: TcpListener, to: Authority, limit: Duration) -> Serve<TcpListener, impl MakeService> {
    let proxy = Proxy { upstream: to, limit, client: Client::new() };
    let make = move |peer: &Peer| {
        let (proxy, from) = (proxy.clone(), peer.address());
        service_fn(move |request| {
            let proxy = proxy.clone();
            async move { Ok::<_, Infallible>(proxy.forward(request, from).await.unwrap_or_else(refuse)) }
        })
    };
    let patience = Some(Duration::from_secs(60));
    serve(from.limit_connections(10_000), make).idle_timeout(patience).stall_timeout(patience)
}

/// A request that is refused may end elsewhere than it seems: the connection is closed after it.
fn refuse(status: StatusCode) -> Answer {
    let mut response = Response::new(Either::Right(Full::from(format!("{status}\n"))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

impl Proxy {
    async fn forward(
        &self,
        mut request: Request<Incoming>,
        from: Option<SocketAddr>,
    ) -> Result<Answer, StatusCode> {
        let on_upgrade = hyper::upgrade::on(&mut request);
        let (mut head, body) = request.into_parts();
        let host = host(&head).filter(|_| is_only_chunked(&head)).ok_or(StatusCode::BAD_REQUEST)?;
        let upgrade = websocket(&head);
        remove_hop_by_hop(&mut head.headers);
        // This proxy asks for the body by reading it, and frames it by what it reads.
        head.headers.remove(EXPECT);
        if let (Some(_), Some(length)) = (head.headers.remove(CONTENT_LENGTH), body.size_hint().exact()) {
            head.headers.insert(CONTENT_LENGTH, length.into());
        }
        head.headers.insert(HOST, host);
        if let Some(from) = from.and_then(|from| from.ip().to_string().parse().ok()) {
            head.headers.append(HeaderName::from_static("x-forwarded-for"), from);
        }
        if let Some(protocol) = &upgrade {
            set_upgrade(&mut head.headers, protocol);
        }
        let path = head.uri.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
        let uri = Uri::builder().scheme("http").authority(self.upstream.clone()).path_and_query(path);
        head.uri = uri.build().map_err(|_| StatusCode::BAD_REQUEST)?;
        head.version = Version::HTTP_11;

        let moves = Arc::new(AtomicBool::new(false));
        let upload = Upload { body, moves: Arc::clone(&moves) };
        let mut answering = self.client.get().request(Request::from_parts(head, upload));
        let mut response = loop {
            match runtime::timeout(self.limit, &mut answering).await {
                Ok(Ok(response)) => break response,
                Ok(Err(error)) if is_timeout(&error) => return Err(StatusCode::GATEWAY_TIMEOUT),
                Ok(Err(_)) => return Err(StatusCode::BAD_GATEWAY),
                // Parts of the request have come since.
                Err(_) if moves.swap(false, Ordering::Relaxed) => {}
                Err(_) => return Err(StatusCode::GATEWAY_TIMEOUT),
            }
        };

        let on_upstreams = hyper::upgrade::on(&mut response);
        if response.headers().contains_key(TRANSFER_ENCODING) {
            response.headers_mut().remove(CONTENT_LENGTH);
        }
        remove_hop_by_hop(response.headers_mut());
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            set_upgrade(response.headers_mut(), &upgrade.ok_or(StatusCode::BAD_GATEWAY)?);
            // In the background, until both sides have ended.
            drop(runtime::spawn(async move {
                let (client, upstream) = futures_util::try_join!(on_upgrade, on_upstreams)?;
                copy_bidirectional(&mut HyperIo::new(client), &mut HyperIo::new(upstream)).await?;
                Ok::<_, BoxError>(())
            }));
        }
        *response.version_mut() = Version::HTTP_11;
        Ok(response.map(Either::Left))
    }
}

/// The host that a request is for: that of its target, else of its only `Host`.
fn host(head: &Parts) -> Option<HeaderValue> {
    let mut hosts = head.headers.get_all(HOST).iter();
    let host = match (head.uri.authority(), hosts.next()) {
        (Some(authority), _) => authority.as_str().parse().ok(),
        (None, Some(host)) => Some(host.clone()),
        (None, None) => (head.version == Version::HTTP_10).then(|| HeaderValue::from_static("")),
    };
    host.filter(|_| hosts.next().is_none() && head.method != Method::CONNECT)
}

/// hyper looks at the last transfer coding, and drops a length beside it.
fn is_only_chunked(head: &Parts) -> bool {
    let mut codings = head.headers.get_all(TRANSFER_ENCODING).iter();
    codings.next().is_none_or(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
        && codings.next().is_none()
}

/// The protocol to upgrade to, if it is WebSocket. Within others requests would pass unseen.
fn websocket(head: &Parts) -> Option<HeaderValue> {
    let protocol = head.headers.get(UPGRADE).filter(|_| head.version == Version::HTTP_11)?;
    protocol.as_bytes().eq_ignore_ascii_case(b"websocket").then(|| protocol.clone())
}

/// RFC 9110, section 7.6.1. `Connection` names others.
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let names = headers.get_all(CONNECTION).iter();
    let names = names.flat_map(|names| names.as_bytes().split(|byte| *byte == b','));
    let named: Vec<_> = names.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok()).collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

fn set_upgrade(headers: &mut HeaderMap, protocol: &HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol.clone());
}

/// Whether an upstream was not reached in time.
fn is_timeout(error: &(dyn Error + 'static)) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::TimedOut)
}

/// A request's body, which notes that it goes on. It is read as fast as the upstream takes it.
pub struct Upload {
    body: Incoming,
    moves: Arc<AtomicBool>,
}

impl Body for Upload {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let Self { body, moves } = self.get_mut();
        let polled = Pin::new(body).poll_frame(cx);
        if polled.is_ready() {
            moves.store(true, Ordering::Relaxed);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[runtime::main]
async fn main() -> Result<(), BoxError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [] => forward_to_itself().await,
        [address, upstream] => {
            let listener = TcpListener::bind(address)?;
            println!("listening on {}", listener.local_addr()?);
            let signal = runtime::signal::terminated();
            let proxy = proxy(listener, upstream.parse()?, Duration::from_secs(60));
            Ok(proxy.with_graceful_shutdown(signal).await?)
        }
        _ => Err("usage: reverse_proxy [ADDRESS UPSTREAM_ADDRESS]".into()),
    }
}

async fn forward_to_itself() -> Result<(), BoxError> {
    // An upstream that echoes, and one that is not there.
    let echo = async |request: Request<Incoming>| {
        if request.uri().path() == "/slow" {
            runtime::sleep(Duration::from_secs(60)).await;
        }
        let from = request.headers()["x-forwarded-for"].clone();
        let response =
            Response::builder().header("from", from).header("x-hop", "a").header("connection", "x-hop");
        Ok::<_, BoxError>(response.body(request.into_body())?)
    };
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let upstream = listener.local_addr()?.to_string().parse()?;
    let upstream_server = serve(listener, move |_: &Peer| service_fn(echo)).start()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let proxy_server = proxy(listener, upstream, Duration::from_millis(200)).start()?;

    let large: Bytes = vec![b'x'; 4 << 20].into();
    for client in [Client::<Full<Bytes>>::new(), Client::http2()] {
        let request = Request::post(format!("http://{address}/echo?a=b")).body(Full::from(large.clone()))?;
        let response = client.get().request(request).await?;
        assert_eq!((response.status(), &response.headers()["from"]), (StatusCode::OK, &"127.0.0.1".parse()?));
        assert!(!response.headers().contains_key("x-hop"));
        assert!(response.into_body().collect().await?.to_bytes() == large);
        println!("a body of {} bytes has passed both ways", large.len());
    }
    let client = Client::<Full<Bytes>>::new();
    let status = async |path: &str| {
        let uri = format!("http://{address}{path}").parse()?;
        Ok::<_, BoxError>(client.get().get(uri).await?.status())
    };
    assert_eq!(status("/slow").await?, StatusCode::GATEWAY_TIMEOUT);
    upstream_server.shutdown(Duration::ZERO).await;
    assert_eq!(status("/gone").await?, StatusCode::BAD_GATEWAY);
    proxy_server.shutdown(Duration::from_secs(1)).await;
    Ok(())
}
