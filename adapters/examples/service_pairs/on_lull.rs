//! The services on Lull.

use std::io;
use std::net::SocketAddr;

use adapters::axum::ws::WebSocketUpgrade;
use adapters::hyper::{Client, Peer};
use axum::Router;
use axum::routing::any;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use runtime::policy::Cpus;
use tonic::service::Routes;

use super::{Result, Service, echo, forwarded, page};

pub(super) fn serve(
    service: Service,
    address: SocketAddr,
    core: Option<Cpus>,
    ready: impl FnOnce(SocketAddr),
) -> Result<()> {
    let mut builder = runtime::Builder::new().workers(1);
    if let Some(core) = core {
        builder = builder.cores(core);
    }
    builder.build()?.block_on(async {
        let listener = net::TcpListener::bind(address)?;
        ready(listener.local_addr()?);
        // No limit, as the servers on tokio have none.
        let _server = match service {
            Service::Axum => adapters::axum::serve(listener, page()).header_read_timeout(None).start()?,
            Service::Grpc => {
                let (_reporter, health) = tonic_health::server::health_reporter();
                adapters::tonic::serve(listener, Routes::new(health)).header_read_timeout(None).start()?
            }
            Service::WebSocket => {
                let open = async |upgrade: WebSocketUpgrade| upgrade.on_upgrade(echo);
                let app = Router::new().route("/", any(open));
                adapters::axum::serve(listener, app).header_read_timeout(None).start()?
            }
            Service::Proxy(upstream) => {
                let client = Client::<Incoming>::new();
                let forward = move |_: &Peer| {
                    let client = client.clone();
                    service_fn(move |request: Request<Incoming>| {
                        let client = client.clone();
                        async move {
                            client
                                .get()
                                .request(forwarded(request, upstream)?)
                                .await
                                .map_err(io::Error::other)
                        }
                    })
                };
                adapters::hyper::serve(listener, forward).header_read_timeout(None).start()?
            }
        };
        // Then the policy's settings are restored.
        runtime::signal::terminated()?.await;
        Ok(())
    })
}
