//! A client's connection, from its acceptance to its end: the connection limit, then TLS, then its
//! requests.

mod replies;
mod serve;
mod time_limits;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use adapters::tls::Acceptor;
use futures_util::AsyncWriteExt;
use futures_util::io::BufReader;
use net::Stream;

use crate::memcached::context::ServerContext;
use crate::memcached::logging;
use crate::memcached::stats::connections::{ConnectionInfo, ListedConnection};
use serve::serve;
use time_limits::record_progress;

/// A client that has ended the connection must take the rest of its replies within this time.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the last replies to a client that is disconnected may take, and then the descriptor of
/// a connection that was reset.
const ABORT_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of the read buffer on a TLS connection: a TLS record carries up to 16 KiB.
const TLS_BUFFER: usize = 16 << 10;

/// Serves an accepted connection until it ends. `peer` and `local` are what `stats conns` shows.
///
/// Not an async function, here and in what it awaits: the future of one holds its arguments twice,
/// which an idle connection would take memory for (rust-lang/rust#62958).
pub fn handle<K: 'static>(
    mut stream: Stream<K>,
    context: Arc<ServerContext>,
    peer: Box<str>,
    local: Arc<str>,
) -> impl Future<Output = ()> {
    let authenticated = (!context.config.requires_authentication()).into();
    let last_request = context.store.clock.now().into();
    let info = ConnectionInfo { peer, local, last_request, authenticated, ..ConnectionInfo::default() };
    record_progress(&context, &info);
    let info = Arc::new(info);
    async move {
        let counters = context.counters.worker(runtime::current_worker());
        let Some(_permit) = context.connection_permits.try_acquire() else {
            counters.rejected_connections.add(1);
            // Fails if the client has disconnected.
            let _ = stream.write_all(b"ERROR Too many open connections\r\n").await;
            return;
        };
        counters.total_connections.add(1);
        match stream.incoming_napi_id() {
            0 => counters.without_napi.add(1),
            napi if napi == runtime::io::own_napi() => counters.aligned.add(1),
            _ => counters.misaligned.add(1),
        }
        let connection = ListedConnection::add(&context.connections, info);
        let result = match &context.tls {
            None => {
                let (reader, writer) = stream.split();
                serve(reader, writer, &context, &connection.info).await
            }
            // Boxed, so that connections without TLS do not reserve memory for its state.
            Some(tls) => Box::pin(serve_tls(&mut stream, tls, &context, &connection.info)).await,
        };
        let is_kick =
            |error: &io::Error| matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::OutOfMemory);
        let is_kicked = result.as_ref().is_err_and(is_kick);
        if is_kicked && connection.info.stalled.load() {
            // It has not taken its replies. What a ring holds of them is freed at once, as it doesn't
            // count against the store's limit any more. Fails if the connection is broken already.
            let _ = stream.abort();
        }
        // Who is disconnected for a time limit or for lack of memory sees the end of the stream, if it
        // has its replies.
        let time = if is_kicked { ABORT_TIMEOUT } else { DRAIN_TIMEOUT };
        // It drops the stream before the permit: a connection that does not count has no
        // descriptor. Boxed, so that open connections reserve no memory for its timers.
        Box::pin(end(stream, time)).await;
        if let Err(error) = result {
            logging::connection_failed(&connection.info.peer, &error);
        }
    }
}

/// Ends a connection, which still counts as open meanwhile. A ring holds the descriptor until it
/// has sent everything. `time` is how long the client may take for that.
async fn end<K>(mut stream: Stream<K>, time: Duration) {
    if runtime::timeout(time, stream.close()).await.is_ok() {
        return;
    }
    // Fails if the connection is broken already.
    let _ = stream.abort();
    // A send in flight ends with an error now.
    let _ = runtime::timeout(ABORT_TIMEOUT, stream.flush()).await;
}

async fn serve_tls<K>(
    stream: &mut Stream<K>,
    tls: &Acceptor,
    context: &ServerContext,
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

#[cfg(test)]
mod tests {
    use std::io::Read;

    use net::{TcpListener, TcpStream, UnixStream};

    use super::*;

    /// A connection whose client takes nothing, with as much written to it as goes.
    async fn stalled<K: 'static>(mut stream: Stream<K>) -> Stream<K> {
        let chunk = vec![b'v'; 1 << 20];
        // What is written after the last time is not sent before the client reads.
        while runtime::timeout(Duration::from_millis(300), stream.write_all(&chunk)).await.is_ok() {}
        stream
    }

    async fn stalled_tcp() -> (Stream<net::Tcp>, std::net::TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream: TcpStream = listener.accept().await.unwrap().0;
        (stalled(stream).await, client)
    }

    async fn stalled_unix() -> (Stream<net::Unix>, std::os::unix::net::UnixStream) {
        let (server, client) = std::os::unix::net::UnixStream::pair().unwrap();
        (stalled(UnixStream::from_std(server).unwrap()).await, client)
    }

    fn holds_what_is_unsent() -> bool {
        runtime::reports().iter().all(|report| report.driver != runtime::DriverKind::Epoll)
    }

    /// How long ending takes on the clock of the timers, which jumps to the next timer when nothing
    /// happens.
    async fn time_to_end<K>(stream: Stream<K>) -> Duration {
        runtime::time::pause();
        let start = runtime::time::now();
        end(stream, DRAIN_TIMEOUT).await;
        let time = runtime::time::now() - start;
        runtime::time::resume();
        time
    }

    fn read_all(mut client: impl Read) -> (u64, Option<io::ErrorKind>) {
        let (mut taken, mut buffer) = (0, vec![0; 1 << 16]);
        loop {
            match client.read(&mut buffer) {
                Ok(0) => return (taken, None),
                Ok(length) => taken += length as u64,
                Err(error) => return (taken, Some(error.kind())),
            }
        }
    }

    #[runtime::test]
    async fn a_client_that_does_not_take_its_last_replies_is_disconnected_after_the_time_for_that() {
        // With epoll the kernel holds what is unsent, and no descriptor of the server.
        let (least, reset) = match holds_what_is_unsent() {
            true => (DRAIN_TIMEOUT, Some(io::ErrorKind::ConnectionReset)),
            false => (Duration::ZERO, None),
        };
        let most = least + ABORT_TIMEOUT;
        let (stream, client) = stalled_tcp().await;
        let time = time_to_end(stream).await;
        assert!(time >= least && time <= most, "TCP: {time:?}");
        let (_, error) = runtime::spawn_blocking(move || read_all(client)).await.unwrap();
        assert_eq!(error, reset);
        let (stream, client) = stalled_unix().await;
        let time = time_to_end(stream).await;
        assert!(time >= least && time <= most, "Unix: {time:?}");
        let (_, error) = runtime::spawn_blocking(move || read_all(client)).await.unwrap();
        assert_eq!(error, None);
    }
}
