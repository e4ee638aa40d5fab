//! A reverse proxy: each worker accepts, and forwards by its own pool of connections.
//! `cargo run -p lull-adapters --example reverse_proxy`
//!
//! With two addresses as its arguments it listens on the first and forwards to the second until
//! SIGINT or SIGTERM.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use adapters::hyper::{BoxError, Client, Server, serve};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONNECTION, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use net::TcpListener;

type Answer = Response<Either<Incoming, Full<Bytes>>>;

/// These concern one connection, and are not forwarded.
const HOP_BY_HOP: [HeaderName; 4] = [CONNECTION, TE, TRANSFER_ENCODING, UPGRADE];

fn start_proxy(listener: TcpListener, backend: SocketAddr) -> std::io::Result<Server> {
    let client = Client::<Incoming>::new();
    serve(listener, move |peer: &_| {
        let client = client.clone();
        let from = adapters::hyper::Peer::address(peer);
        service_fn(move |request| forward(request, client.clone(), backend, from))
    })
    .start()
}

async fn forward(
    mut request: Request<Incoming>,
    client: Client<Incoming>,
    backend: SocketAddr,
    from: Option<SocketAddr>,
) -> Result<Answer, BoxError> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = format!("http://{backend}{path}").parse()?;
    for name in HOP_BY_HOP {
        request.headers_mut().remove(name);
    }
    if let Some(from) = from {
        let from = HeaderValue::from_str(&from.ip().to_string())?;
        request.headers_mut().append("x-forwarded-for", from);
    }
    // The body is streamed, both ways.
    match client.get().request(request).await {
        Ok(mut response) => {
            for name in HOP_BY_HOP {
                response.headers_mut().remove(name);
            }
            Ok(response.map(Either::Left))
        }
        Err(error) => {
            let mut response = Response::new(Either::Right(Full::from(format!("{error}\n"))));
            *response.status_mut() = StatusCode::BAD_GATEWAY;
            Ok(response)
        }
    }
}

#[runtime::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [listen, backend] = arguments.as_slice() {
        let server = start_proxy(TcpListener::bind(listen)?, backend.parse()?)?;
        runtime::signal::terminated()?.await;
        server.shutdown(Duration::from_secs(10)).await;
        return Ok(());
    }

    // A backend that echoes, the proxy, and a client.
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let backend = listener.local_addr()?;
    let echo = async |request: Request<Incoming>| {
        let from = request.headers().get("x-forwarded-for").cloned();
        println!("the backend has a request of {from:?} to {}", request.uri());
        Ok::<_, BoxError>(Response::new(request.into_body()))
    };
    let backend_server = serve(listener, move |_: &_| service_fn(echo)).start()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let proxy = start_proxy(listener, backend)?;

    let client = Client::<Full<Bytes>>::new();
    let request = Request::post(format!("http://{address}/echo?a=b")).body(Full::from("a body"))?;
    let response = client.get().request(request).await?;
    println!("{}: {:?}", response.status(), response.into_body().collect().await?.to_bytes());

    proxy.shutdown(Duration::from_secs(1)).await;
    backend_server.shutdown(Duration::from_secs(1)).await;
    Ok(())
}
