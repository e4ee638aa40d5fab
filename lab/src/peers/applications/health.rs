//! gRPC's health service by tonic.

use std::io;

use adapters::hyper::Server;
use tonic::service::Routes;
use tonic::transport::server::TcpIncoming;
use tonic_health::server::health_reporter;

pub(super) async fn on_tokio(listener: tokio::net::TcpListener) -> io::Result<()> {
    // The state of the server as a whole is "serving" from the start.
    let (_reporter, health) = health_reporter();
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let server = tonic::transport::Server::builder().add_service(health);
    server.serve_with_incoming(incoming).await.map_err(io::Error::other)
}

pub(super) fn on_lull(listener: net::TcpListener) -> io::Result<Server> {
    let (_reporter, health) = health_reporter();
    adapters::tonic::serve(listener, Routes::new(health)).header_read_timeout(None).start()
}
