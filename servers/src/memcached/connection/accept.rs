//! Admits an accepted connection: the connection limit, then TLS, then its requests.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::AsyncWriteExt;
use futures_util::io::BufReader;
use net::Stream;

use super::list::{ConnectionInfo, ListedConnection};
use super::serve::serve;
use crate::connection_limit::ConnectionPermit;
use crate::memcached::context::ServerContext;
use crate::memcached::logging;
use crate::memcached::tls::Tls;

/// A client that has ended the connection must take the rest of its replies within this time.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the descriptor of a connection that was reset is waited for.
const ABORT_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of the read buffer on a TLS connection: a TLS record carries up to 16 KiB.
const TLS_BUFFER: usize = 16 << 10;

/// Serves an accepted connection until it ends. `peer` and `local` are what `stats conns` shows.
pub async fn handle<K: 'static>(
    mut stream: Stream<K>,
    context: Arc<ServerContext>,
    peer: String,
    local: String,
) {
    let counters = context.counters.worker(runtime::current_worker());
    let _permit = match ConnectionPermit::try_acquire(&context.connection_limit) {
        Some(permit) => permit,
        None => {
            context.connection_limit.count_reached();
            let permit = match context.config.refuse_when_full {
                true => None,
                false => ConnectionPermit::acquire(&context.connection_limit).await,
            };
            let Some(permit) = permit else {
                counters.rejected_connections.add(1);
                // Fails if the client has disconnected.
                let _ = stream.write_all(b"ERROR Too many open connections\r\n").await;
                return;
            };
            permit
        }
    };
    counters.total_connections.add(1);
    match stream.incoming_napi_id() {
        0 => counters.without_napi.add(1),
        napi if napi == runtime::io::own_napi() => counters.aligned.add(1),
        _ => counters.misaligned.add(1),
    }
    let authenticated = !context.config.requires_authentication();
    let now = context.store.clock().now();
    let info = ConnectionInfo::new(peer, local, now, context.uptime(), authenticated);
    let connection = ListedConnection::add(&context.connections, info);
    let result = match context.tls() {
        None => {
            let (reader, writer) = stream.split();
            serve(reader, writer, &context, &connection).await
        }
        // Boxed, so that connections without TLS do not reserve memory for its state.
        Some(tls) => Box::pin(serve_tls(&mut stream, tls, &context, &connection)).await,
    };
    let is_kick =
        |error: &io::Error| matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::OutOfMemory);
    let kicked = result.as_ref().is_err_and(is_kick);
    // It drops the stream before the permit: a connection that does not count has no descriptor. Boxed, so that open
    // connections reserve no memory for its timers.
    Box::pin(end(stream, kicked)).await;
    if let Err(error) = result {
        logging::connection_failed(&connection.peer, &error);
    }
}

/// Ends a connection, which still counts as open meanwhile: a client may take some time for the rest of its replies,
/// unless it is disconnected for a time limit or for lack of memory. A ring holds the descriptor until it has sent everything.
async fn end<K>(mut stream: Stream<K>, kicked: bool) {
    if !kicked && runtime::timeout(DRAIN_TIMEOUT, stream.close()).await.is_ok() {
        return;
    }
    // Fails if the connection is broken already.
    let _ = stream.abort();
    // A send in flight ends with an error now.
    let _ = runtime::timeout(ABORT_TIMEOUT, stream.flush()).await;
}

async fn serve_tls<K>(
    stream: &mut Stream<K>,
    tls: &Tls,
    context: &Arc<ServerContext>,
    connection: &ConnectionInfo,
) -> io::Result<()> {
    let stream = match tls.accept(stream).await {
        Ok(stream) => stream,
        Err(error) => {
            context.counters.worker(runtime::current_worker()).handshake_errors.add(1);
            return Err(error);
        }
    };
    let (reader, writer) = futures_util::AsyncReadExt::split(stream);
    let reader = BufReader::with_capacity(TLS_BUFFER, reader);
    serve(reader, writer, context, connection).await
}
