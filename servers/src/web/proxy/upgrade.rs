//! Upgraded connections: WebSockets and others, and WebSockets over HTTP/2 (RFC 8441): an extended
//! CONNECT becomes an upgrade of HTTP/1.1, its `101` a `200`.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use adapters::HyperIo;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, Bytes};
use futures_util::{AsyncRead, AsyncWrite};
use hyper::ext::Protocol;
use hyper::header::{CONTENT_LENGTH, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY};
use hyper::http::request;
use hyper::upgrade::OnUpgrade;
use hyper::{HeaderMap, Method, Response, StatusCode};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use ring::rand::{SecureRandom, SystemRandom};

use super::connection::Connection;
use super::error::Refusal;

/// Bytes that are copied at a time.
const COPIED: usize = 32 << 10;

thread_local! {
    /// Lent to a copy during a poll. So an idle connection holds no buffer.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; COPIED]);
}

/// An upgraded connection without traffic is closed after between one and two times this long.
#[derive(Debug, Clone, Copy)]
pub(super) struct UpgradeLimits {
    pub(super) silence: Duration,
    /// The limit after the client's side has ended, if it is another.
    pub(super) after_client: Option<Duration>,
}

/// Copies between the two sides of an upgraded connection until both have ended, in a task of this
/// worker. The end of one is passed on to the other, which may still send.
///
/// Beyond `limits` both are closed.
pub(super) fn copy_upgraded(client: OnUpgrade, upstream: Box<Connection>, limits: UpgradeLimits) {
    drop(runtime::spawn(async move {
        let Some((upstream, received, _held)) = upstream.into_upgraded().await else { return };
        let client = match client.await {
            Ok(client) => client,
            Err(error) => return tracing::debug!(%error, "a client has gone before its upgrade"),
        };
        let copied = copy_both(HyperIo::new(client), HyperIo::new(upstream), received, limits).await;
        if let Err(error) = copied {
            tracing::debug!(%error, "an upgraded connection has broken");
        }
    }));
}

/// Copies both ways. `received`: bytes that were read from the upstream.
async fn copy_both<C, U>(
    mut client: C,
    mut upstream: U,
    received: Bytes,
    limits: UpgradeLimits,
) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    let mut to_client = Direction { unsent: received, ..Direction::default() };
    let mut to_upstream = Direction::default();
    let mut limit = limits.silence;
    let mut after_client = limits.after_client;
    let mut sleep = runtime::sleep(limit);
    let mut copied = 0;
    std::future::poll_fn(|context| {
        while Pin::new(&mut sleep).poll(context).is_ready() {
            let now = to_client.transfers + to_upstream.transfers;
            if std::mem::replace(&mut copied, now) == now {
                return Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "nothing came for too long",
                )));
            }
            sleep = runtime::sleep(limit);
        }
        let sent = to_upstream.poll(&mut client, &mut upstream, context)?;
        let received = to_client.poll(&mut upstream, &mut client, context)?;
        if to_upstream.ended
            && let Some(shorter) = after_client.take()
        {
            limit = limit.min(shorter);
            sleep = runtime::sleep(limit);
            // Registers the timer.
            context.waker().wake_by_ref();
        }
        if sent.is_ready() && received.is_ready() { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await
}

/// One way of a copy.
#[derive(Debug, Default)]
struct Direction {
    /// What was read and not yet written.
    unsent: Bytes,
    unflushed: bool,
    /// How often bytes were read or written.
    transfers: u64,
    /// The side that is read has ended.
    ended: bool,
    /// The end was passed on.
    closed: bool,
}

impl Direction {
    fn poll<R, W>(&mut self, from: &mut R, to: &mut W, context: &mut Context<'_>) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        if self.closed {
            return Poll::Ready(Ok(()));
        }
        // Other tasks have their turn between bursts.
        for _ in 0..16 {
            while !self.unsent.is_empty() {
                let written = ready!(Pin::new(&mut *to).poll_write(context, &self.unsent))?;
                if written == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.unsent.advance(written);
                self.transfers += 1;
                self.unflushed = true;
            }
            if self.ended {
                ready!(Pin::new(&mut *to).poll_close(context))?;
                self.closed = true;
                return Poll::Ready(Ok(()));
            }
            if let Poll::Ready(progress) = self.poll_transfer(from, to, context) {
                progress?;
                continue;
            }
            if self.unflushed {
                ready!(Pin::new(&mut *to).poll_flush(context))?;
                self.unflushed = false;
            }
            return Poll::Pending;
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads once, and writes what it can of that.
    fn poll_transfer<R, W>(
        &mut self,
        from: &mut R,
        to: &mut W,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        BUFFER.with_borrow_mut(|buffer| {
            let read = ready!(Pin::new(from).poll_read(context, buffer))?;
            self.transfers += 1;
            if read == 0 {
                self.ended = true;
                return Poll::Ready(Ok(()));
            }
            let written = match Pin::new(to).poll_write(context, &buffer[..read]) {
                Poll::Ready(written) => written?,
                Poll::Pending => 0,
            };
            self.unflushed |= written > 0;
            if written < read {
                self.unsent = Bytes::copy_from_slice(&buffer[written..read]);
            }
            Poll::Ready(Ok(()))
        })
    }
}

const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");

/// The handshake of a WebSocket that a client of HTTP/2 has asked for. A CONNECT has no
/// `Sec-WebSocket-Key`, so the proxy generates one and verifies the upstream's
/// `Sec-WebSocket-Accept`.
#[derive(Debug)]
pub(super) struct ExtendedConnect {
    accept: HeaderValue,
}

impl ExtendedConnect {
    /// Turns a CONNECT for a WebSocket into a GET. Returns also the protocol for its `Upgrade`.
    ///
    /// # Errors
    /// `NotImplemented` for a CONNECT to anything else.
    pub(super) fn convert(head: &mut request::Parts) -> Result<(Self, HeaderValue), Refusal> {
        if head.extensions.get::<Protocol>().map(Protocol::as_str) != Some("websocket") {
            return Err(Refusal::NotImplemented);
        }
        let mut nonce = [0; 16];
        SystemRandom::new().fill(&mut nonce).map_err(|_| Refusal::BadGateway)?;
        let key = STANDARD.encode(nonce);
        let accept = HeaderValue::try_from(accept_of(&key));
        let (Ok(key), Ok(accept)) = (HeaderValue::try_from(key), accept) else {
            return Err(Refusal::BadRequest);
        };
        head.method = Method::GET;
        head.headers.insert(SEC_WEBSOCKET_KEY, key);
        Ok((Self { accept }, WEBSOCKET))
    }

    /// Whether the upstream answered 2xx without switching protocols. The client would take that
    /// for an open WebSocket.
    pub(super) fn is_no_websocket<B>(response: &Response<B>) -> bool {
        response.status().is_success()
    }

    /// Turns the upstream's response into the one to the CONNECT.
    ///
    /// # Errors
    /// If the upstream has switched, but not by this handshake.
    pub(super) fn convert_response<B>(&self, response: &mut Response<B>) -> Result<(), &'static str> {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            if !has_only(response.headers(), &SEC_WEBSOCKET_ACCEPT, &self.accept) {
                return Err("the upstream has not answered the handshake of a WebSocket");
            }
            *response.status_mut() = StatusCode::OK;
            response.headers_mut().remove(CONTENT_LENGTH);
        }
        response.headers_mut().remove(SEC_WEBSOCKET_ACCEPT);
        Ok(())
    }
}

/// The `Sec-WebSocket-Accept` for a `Sec-WebSocket-Key` (RFC 6455, section 4.2.2).
fn accept_of(key: &str) -> String {
    let accepted = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, accepted.as_bytes()))
}

fn has_only(headers: &HeaderMap, name: &HeaderName, expected: &HeaderValue) -> bool {
    let mut values = headers.get_all(name).iter();
    values.next() == Some(expected) && values.next().is_none()
}

#[cfg(test)]
mod tests {
    use futures_util::{AsyncReadExt, AsyncWriteExt};
    use net::{TcpListener, TcpStream};

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, listener.accept().await.unwrap().0)
    }

    fn silence(silence: Duration) -> UpgradeLimits {
        UpgradeLimits { silence, after_client: None }
    }

    #[test]
    fn a_key_is_accepted_as_in_the_rfc() {
        assert_eq!(accept_of("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[runtime::test]
    async fn an_upstream_that_is_silent_after_the_clients_end_is_closed_sooner() {
        let (mut client, near) = pair().await;
        let (far, _upstream) = pair().await;
        let after_client = Some(Duration::from_millis(50));
        let limits = UpgradeLimits { silence: Duration::from_secs(60), after_client };
        let copying = runtime::spawn(copy_both(near, far, Bytes::new(), limits));
        runtime::sleep(Duration::from_millis(300)).await;
        assert!(!copying.is_finished());
        client.close().await.unwrap();
        let ended = runtime::timeout(Duration::from_secs(60), copying).await.unwrap().unwrap();
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[runtime::test]
    async fn a_side_that_has_ended_still_receives_what_the_other_sends() {
        let (mut client, near) = pair().await;
        let (far, mut upstream) = pair().await;
        let copying = runtime::spawn(copy_both(
            near,
            far,
            Bytes::from_static(b"early "),
            silence(Duration::from_secs(60)),
        ));
        let sent = vec![7; 1 << 20];
        let sending = sent.clone();
        let client = runtime::spawn(async move {
            client.write_all(&sending).await.unwrap();
            client.close().await.unwrap();
            let mut received = String::new();
            client.read_to_string(&mut received).await.unwrap();
            received
        });
        let mut received = Vec::new();
        upstream.read_to_end(&mut received).await.unwrap();
        assert!(received == sent);
        upstream.write_all(b"and late").await.unwrap();
        upstream.close().await.unwrap();
        assert_eq!(client.await.unwrap(), "early and late");
        copying.await.unwrap().unwrap();
    }

    #[runtime::test]
    #[ignore = "timing"]
    async fn silence_ends_both_sides_and_traffic_one_way_keeps_them() {
        let (mut client, near) = pair().await;
        let (far, mut upstream) = pair().await;
        let limit = Duration::from_millis(200);
        let copying = runtime::spawn(copy_both(near, far, Bytes::new(), silence(limit)));
        for _ in 0..15 {
            runtime::sleep(Duration::from_millis(50)).await;
            upstream.write_all(b".").await.unwrap();
        }
        assert!(!copying.is_finished());
        assert_eq!(copying.await.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
        let mut received = Vec::new();
        // Both ends are closed, or reset.
        let _ = client.read_to_end(&mut received).await;
        assert_eq!(received.len(), 15);
    }
}
