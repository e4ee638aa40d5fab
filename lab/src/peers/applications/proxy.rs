//! A proxy that forwards requests to one server, by hyper's server and hyper-util's pooled client.

use std::io;
use std::net::SocketAddr;

use adapters::hyper::{Client, Peer, Server, serve};
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client as TokioClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;

/// The request, for the server behind the proxy.
fn forwarded(mut request: Request<Incoming>, upstream: SocketAddr) -> io::Result<Request<Incoming>> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = format!("http://{upstream}{path}").parse().map_err(io::Error::other)?;
    Ok(request)
}

pub(super) async fn on_tokio(listener: tokio::net::TcpListener, upstream: SocketAddr) -> io::Result<()> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: TokioClient<_, Incoming> = TokioClient::builder(TokioExecutor::new()).build(connector);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let client = client.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let client = client.clone();
            async move {
                let response = client.request(forwarded(request, upstream)?).await;
                response.map_err(io::Error::other)
            }
        });
        tokio::spawn(async move {
            let builder = auto::Builder::new(TokioExecutor::new());
            let _ = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
        });
    }
}

pub(super) fn on_lull(listener: net::TcpListener, upstream: SocketAddr) -> io::Result<Server> {
    let client = Client::<Incoming>::new();
    let served = serve(listener, move |_: &Peer| {
        let client = client.clone();
        service_fn(move |request: Request<Incoming>| {
            let client = client.clone();
            async move {
                let response = client.get().request(forwarded(request, upstream)?).await;
                response.map_err(io::Error::other)
            }
        })
    });
    served.header_read_timeout(None).start()
}
