//! The services on tokio's `current_thread` runtime, as their libraries serve them there.

use std::io;
use std::net::SocketAddr;

use axum::serve::ListenerExt;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;
use tokio_tungstenite::accept_async_with_config;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tonic::transport::server::TcpIncoming;

use super::{Result, Service, echo, forwarded, page};

/// `read_buffer`: of a WebSocket; `None` is tungstenite's default, which axum has, too.
/// `TCP_NODELAY` as Lull's adapters have it.
pub(super) fn serve(
    service: Service,
    address: SocketAddr,
    read_buffer: Option<usize>,
    ready: impl FnOnce(SocketAddr),
) -> Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let listener = TcpListener::bind(address).await?;
        ready(listener.local_addr()?);
        match service {
            Service::Axum => {
                // Fails only if the connection has been closed.
                let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
                Ok(axum::serve(listener, page()).await?)
            }
            Service::Grpc => {
                let (_reporter, health) = tonic_health::server::health_reporter();
                let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
                let server = tonic::transport::Server::builder().add_service(health);
                Ok(server.serve_with_incoming(incoming).await?)
            }
            Service::WebSocket => loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                let config = read_buffer.map(|size| WebSocketConfig::default().read_buffer_size(size));
                tokio::spawn(async move {
                    if let Ok(socket) = accept_async_with_config(stream, config).await {
                        echo(socket).await;
                    }
                });
            },
            Service::Proxy(upstream) => proxy(listener, upstream).await,
        }
    })
}

async fn proxy(listener: TcpListener, upstream: SocketAddr) -> Result<()> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Client<_, Incoming> = Client::builder(TokioExecutor::new()).build(connector);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let client = client.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let client = client.clone();
            async move { client.request(forwarded(request, upstream)?).await.map_err(io::Error::other) }
        });
        tokio::spawn(async move {
            let builder = auto::Builder::new(TokioExecutor::new());
            // Fails if the client breaks the connection.
            let _ = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
        });
    }
}
