//! The same applications on tokio's `current_thread` runtime, as their libraries serve them there, and on Lull.

mod health;
mod hello;
mod hello_upstream;
mod proxy;
mod websocket;

use std::io;
use std::net::TcpListener as StdListener;

use adapters::hyper::Server;
use axum::serve::ListenerExt;
use net::TcpListener;
use runtime::DriverKind;

use super::echo_server_spec::EchoServerSpec;
use super::lull;
use super::service::PeerService;

pub(super) fn serve_on_tokio(listener: StdListener, spec: &EchoServerSpec) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    listener.set_nonblocking(true)?;
    let (service, core) = (spec.service, spec.core);
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        match service {
            PeerService::Echo | PeerService::Threads => Err(not_an_application()),
            PeerService::Axum => hello::on_tokio(listener).await,
            PeerService::Grpc => health::on_tokio(listener).await,
            PeerService::WebSocket => websocket::on_tokio(listener).await,
            PeerService::Proxy => proxy::on_tokio(listener, hello_upstream::start(core)?).await,
        }
    })
}

/// As [`lull::serve`].
pub(super) fn serve_on_lull(
    listener: StdListener,
    spec: &EchoServerSpec,
    driver: DriverKind,
    ready: impl FnOnce(String, Vec<String>) -> io::Result<()>,
) -> io::Result<()> {
    lull::builder(spec, driver).build().map_err(io::Error::other)?.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        let server: Server = match spec.service {
            PeerService::Echo | PeerService::Threads => return Err(not_an_application()),
            PeerService::Axum => hello::on_lull(listener)?,
            PeerService::Grpc => health::on_lull(listener)?,
            PeerService::WebSocket => websocket::on_lull(listener)?,
            PeerService::Proxy => proxy::on_lull(listener, hello_upstream::start(spec.core)?)?,
        };
        lull::report(ready)?;
        std::future::pending::<()>().await;
        drop(server);
        Ok(())
    })
}

/// As Lull's adapters have it: `TCP_NODELAY` on each connection.
fn without_delay(
    listener: tokio::net::TcpListener,
) -> impl axum::serve::Listener<Addr = std::net::SocketAddr> {
    listener.tap_io(|stream| {
        // Fails only if the connection has been closed.
        let _ = stream.set_nodelay(true);
    })
}

fn not_an_application() -> io::Error {
    io::Error::other("the echo server is no application")
}
