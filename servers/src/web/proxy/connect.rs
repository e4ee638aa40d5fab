//! Connects to upstreams.

use std::io;
use std::time::Duration;

use adapters::hyper::{Connector, HttpStream};
use adapters::tls;
use tower_service::Service;

use super::upstream::Upstream;

/// Makes a connector for HTTP/1.1. `encrypted`: for `https`, too; then it reads the authorities, which blocks.
pub(super) fn connector(encrypted: bool, limit: Duration) -> Result<Connector, tls::Error> {
    let connector = Connector::new().connect_timeout(limit);
    if !encrypted {
        return Ok(connector);
    }
    let tls = tls::Connector::builder().alpn(["http/1.1"]).handshake_timeout(limit).open()?;
    Ok(connector.tls(tls))
}

/// Connects to an upstream, with the lookup of its name and the TLS handshake, within `limit`. The error's kind is `TimedOut`
/// after that.
pub(super) async fn connect(
    connector: &Connector,
    upstream: &Upstream,
    limit: Duration,
) -> io::Result<HttpStream> {
    runtime::timeout(limit, connector.clone().call(upstream.uri.clone())).await?
}
