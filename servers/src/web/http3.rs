//! HTTP/3: the same requests by QUIC.

use std::future::{pending, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use adapters::hyper::{BoxError, Peer, RequestWindow, Requests};
use adapters::quinn::serve_paused;
use adapters::tls::Acceptor;
use bytes::Bytes;
use h3::error::Code;
use h3::quic::SendStream;
use h3::server::{RequestStream, builder};
use h3_quinn::quinn::{IdleTimeout, Incoming, TransportConfig, VarInt};
use hyper::body::Body;
use hyper::header::{CONTENT_LENGTH, DATE, HeaderValue};
use hyper::{Request, Response};
use net::ShutdownReport;
use runtime::task::JoinSet;
use tokio::sync::watch;

use super::body::ClientBody;
use super::config::Limits;
use super::context::ServerContext;
use super::http3_body::Http3Body;
use super::http3_frames::{Checked, CheckedConnection};
use super::service::Connection;

/// Streams of one direction that a client may have open: HTTP/3 needs three.
const ONE_WAY_STREAMS: u32 = 16;
/// A longer frame of a head, in header sizes, closes its connection. A shorter one is answered by
/// h3, with status 431.
const LONGEST_FRAME: u64 = 2;
/// A connection may have its share of this, by how many are open, of responses that its client has
/// not acknowledged.
const SHARED_SEND_WINDOW: u64 = 256 << 20;
/// At least for a few packets in flight, at most for 80 Mbit/s over 100 ms.
const SEND_WINDOW: RangeInclusive<u64> = 64 << 10..=1 << 20;
/// What a client has to take of a response within its time, as a body may be one part of any
/// length.
const PART: usize = 16 << 10;
/// How long a client may take to close its connection after the last response.
const LINGER: Duration = Duration::from_secs(2);

/// The endpoints of one address.
#[derive(Debug)]
pub struct Http3 {
    server: adapters::quinn::Server,
    stopping: watch::Sender<bool>,
}

impl Http3 {
    /// Binds the endpoints. Clients wait until [`resume`](Self::resume).
    pub fn start_paused(
        context: &Arc<ServerContext>,
        acceptor: &Acceptor,
        address: SocketAddr,
        limits: &Limits,
    ) -> io::Result<Self> {
        let mut config = acceptor.quic(["h3"]).map_err(io::Error::other)?;
        config.transport_config(Arc::new(transport(limits)));
        let (stopping, stopped) = watch::channel(false);
        let (context, limits) = (Arc::clone(context), limits.clone());
        let server = serve_paused(config, address, move |incoming| {
            let peer = Peer::encrypted(incoming.remote_address());
            let client = Client {
                context: Arc::clone(&context),
                limits: limits.clone(),
                stopped: stopped.clone(),
                peer,
            };
            async move {
                let places = client.context.connections.clone();
                // From half of the limit on clients have to show that their addresses are theirs:
                // forged ones would take places.
                if places.open() >= client.limits.connections / 2 && incoming.may_retry() {
                    let _ = incoming.retry();
                    return;
                }
                match places.run(|requests| client.serve(incoming, requests)).await {
                    Some(Ok(())) => {}
                    Some(Err(error)) => tracing::debug!(?peer, error, "a connection of HTTP/3 has failed"),
                    None => tracing::debug!(?peer, "a connection of HTTP/3 is closed: there are too many"),
                }
            }
        })?;
        Ok(Self { server, stopping })
    }

    pub fn resume(&self) {
        self.server.resume();
    }

    pub async fn shutdown(self, limit: Duration) -> ShutdownReport {
        self.stopping.send_replace(true);
        self.server.shutdown(limit).await
    }
}

fn transport(limits: &Limits) -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(limits.streams))
        .max_concurrent_uni_streams(VarInt::from_u32(ONE_WAY_STREAMS))
        .stream_receive_window(VarInt::from_u32(Limits::STREAM_WINDOW))
        // Until the connection has its window.
        .receive_window(VarInt::from_u32(RequestWindow::LEAST))
        .send_window(*SEND_WINDOW.start())
        .datagram_receive_buffer_size(None)
        // A client that has gone is found by its silence. One that waits for a slow response need
        // not send anything.
        .max_idle_timeout(IdleTimeout::try_from(limits.header_timeout).ok())
        .keep_alive_interval(Some(limits.header_timeout / 3));
    transport
}

fn send_window(connections: usize) -> u64 {
    (SHARED_SEND_WINDOW / connections.max(1) as u64).clamp(*SEND_WINDOW.start(), *SEND_WINDOW.end())
}

/// A client that connects.
struct Client {
    context: Arc<ServerContext>,
    limits: Limits,
    stopped: watch::Receiver<bool>,
    peer: Peer,
}

impl Client {
    async fn serve(self, incoming: Incoming, in_progress: Requests) -> Result<(), BoxError> {
        let Self { context, limits, mut stopped, peer } = self;
        let limit = limits.header_timeout;
        let window = RequestWindow::take(Limits::CONNECTION_WINDOW);
        let connected: Result<_, BoxError> = runtime::timeout(limit, async {
            let quic = incoming.await?;
            quic.set_send_window(send_window(context.connections.open()));
            quic.set_receive_window(VarInt::from_u32(window.bytes()));
            // Waits until the client lets the server open its streams.
            let mut http = builder();
            http.max_field_section_size(limits.header_size);
            let longest = limits.header_size * LONGEST_FRAME;
            let most = longest.max(window.bytes().into());
            let http = http.build(CheckedConnection::new(quic.clone(), longest, most)).await?;
            Ok((quic, http))
        })
        .await?;
        let (quic, mut http) = connected?;
        let connection = Rc::new(Connection::new(&context, &peer, None));
        // Streams whose heads are to come, and those of requests. The first don't keep a
        // connection: any client can open them.
        let mut heads = JoinSet::new();
        let mut requests = JoinSet::new();
        let mut idle = runtime::sleep(limit);
        let mut stop = pin!(async {
            if stopped.wait_for(|stopped| *stopped).await.is_err() {
                // The server was dropped, not shut down.
                pending::<()>().await;
            }
        });
        let (mut is_stopping, mut is_told) = (false, false);
        loop {
            if is_stopping && !is_told {
                is_told = true;
                go_away(&mut http).await?;
            }
            let mut accept = pin!(http.accept());
            let accepted = poll_fn(|task| {
                while let Poll::Ready(Some(_)) = requests.poll_join_next(task) {
                    idle.reset(runtime::time::now() + limit);
                }
                while let Poll::Ready(Some(head)) = heads.poll_join_next(task) {
                    let Ok(Ok((request, stream))) = head else { continue };
                    let (connection, limits) = (Rc::clone(&connection), limits.clone());
                    let in_progress = in_progress.begin();
                    requests.spawn(async move {
                        let _in_progress = in_progress;
                        if let Err(error) = answer(request, stream, &connection, limits.stall_timeout).await {
                            tracing::debug!(?peer, error, "a request of HTTP/3 has failed");
                        }
                    });
                }
                if !is_stopping && stop.as_mut().poll(task).is_ready() {
                    is_stopping = true;
                    return Poll::Ready(Ok(None));
                }
                let is_done = is_stopping && heads.is_empty();
                if requests.is_empty() && (is_done || Pin::new(&mut idle).poll(task).is_ready()) {
                    return Poll::Ready(Ok(None));
                }
                accept.as_mut().poll(task)
            });
            // None as well if the client will not send more.
            let Some(mut resolver) = accepted.await? else {
                if is_stopping && !is_told {
                    continue;
                }
                break;
            };
            if is_stopping {
                // The one that h3 lets pass. Dropped, it would end as a response without a head.
                resolver.frame_stream.reset(Code::H3_REQUEST_REJECTED.value());
                continue;
            }
            heads.spawn(async move {
                let head: Result<_, BoxError> =
                    async { Ok(runtime::timeout(limit, resolver.resolve_request()).await??) }.await;
                head.inspect_err(|error| tracing::debug!(?peer, error, "a head of HTTP/3 has not arrived"))
            });
        }
        // What was sent last may be on its way, so the client has to close first.
        go_away(&mut http).await?;
        let _ = runtime::timeout(LINGER, quic.closed()).await;
        Ok(())
    }
}

/// From now on h3 rejects streams, but the next.
async fn go_away(http: &mut h3::server::Connection<CheckedConnection, Bytes>) -> Result<(), BoxError> {
    // Of 0 more h3 makes the last request's id. Clients would take that request for not processed
    // (RFC 9114, section 5.2).
    Ok(runtime::timeout(LINGER, http.shutdown(1)).await??)
}

async fn answer(
    request: Request<()>,
    stream: RequestStream<Checked<h3_quinn::BidiStream<Bytes>>, Bytes>,
    connection: &Connection,
    stall: Duration,
) -> Result<(), BoxError> {
    let (send, receive) = stream.split();
    let mut sending = Sending { stream: send, is_complete: false };
    let length = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let body = ClientBody::Http3(Box::new(Http3Body::new(receive, length).await));
    let (mut head, mut body) = connection.handle(request.map(|()| body)).await.into_parts();
    // As hyper adds them.
    head.headers.entry(DATE).or_insert_with(|| date(SystemTime::now()));
    if let Some(length) = body.size_hint().exact().filter(|length| *length > 0) {
        head.headers.entry(CONTENT_LENGTH).or_insert_with(|| length.into());
    }
    let send = &mut sending.stream;
    runtime::timeout(stall, send.send_response(Response::from_parts(head, ()))).await??;
    while let Some(frame) = poll_fn(|task| Pin::new(&mut body).poll_frame(task)).await {
        // Trailers of an upstream are not sent.
        let Ok(mut data) = frame?.into_data() else { continue };
        while !data.is_empty() {
            let part = data.split_to(data.len().min(PART));
            runtime::timeout(stall, send.send_data(part)).await??;
        }
    }
    runtime::timeout(stall, send.finish()).await??;
    sending.is_complete = true;
    Ok(())
}

/// A response, which must not look complete when it is broken off by an error, by a panic, or as
/// its task is dropped.
struct Sending {
    stream: RequestStream<h3_quinn::SendStream<Bytes>, Bytes>,
    is_complete: bool,
}

impl Drop for Sending {
    fn drop(&mut self) {
        if !self.is_complete {
            self.stream.stop_stream(Code::H3_INTERNAL_ERROR);
        }
    }
}

fn date(now: SystemTime) -> HeaderValue {
    HeaderValue::try_from(httpdate::fmt_http_date(now)).unwrap_or(HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_connections_have_a_smaller_send_window_each() {
        assert_eq!([1, 256, 1024, 10_000].map(send_window), [1 << 20, 1 << 20, 256 << 10, 64 << 10]);
    }
}
