//! A page by axum: on tokio's `current_thread` runtime, as axum serves it there, and on Lull.

use std::io;
use std::net::TcpListener as StdListener;

use ::axum::Router;
use ::axum::routing::get;
use ::axum::serve::ListenerExt;
use net::TcpListener;

use super::lull;
use super::spec::EchoServerSpec;

fn app() -> Router {
    Router::new().route("/", get(async || "Hello, World!"))
}

pub(super) fn serve_on_tokio(listener: StdListener) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    listener.set_nonblocking(true)?;
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        // As Lull's adapters have it. Fails only if the connection has been closed.
        let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
        ::axum::serve(listener, app()).await
    })
}

/// As [`lull::serve`].
pub(super) fn serve_on_lull(
    listener: StdListener,
    spec: &EchoServerSpec,
    ready: impl FnOnce(String, Vec<String>) -> io::Result<()>,
) -> io::Result<()> {
    lull::builder(spec).build().map_err(io::Error::other)?.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        // A fleet stays connected while others are measured; axum's own server on tokio has no
        // limit either.
        let server = adapters::axum::serve(listener, app()).header_read_timeout(None).start()?;
        lull::report(ready)?;
        std::future::pending::<()>().await;
        drop(server);
        Ok(())
    })
}
