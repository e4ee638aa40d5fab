//! WebSockets in axum's handlers.
//!
//! This module's [`WebSocketUpgrade`] replaces `axum::extract::ws::WebSocketUpgrade`, whose
//! callbacks run in tokio's runtime. Here they run on the worker of their connection, and need not
//! be `Send`.
//!
//! ```
//! use adapters::axum::ws::{Message, WebSocket, WebSocketUpgrade};
//! use axum::Router;
//! use axum::response::Response;
//! use axum::routing::any;
//! use futures_util::{SinkExt, StreamExt};
//!
//! async fn echo(upgrade: WebSocketUpgrade) -> Response {
//!     upgrade.on_upgrade(|mut socket: WebSocket| async move {
//!         while let Some(Ok(message)) = socket.next().await {
//!             if message.is_text() && socket.send(message).await.is_err() {
//!                 break;
//!             }
//!         }
//!     })
//! }
//!
//! let app: Router = Router::new().route("/echo", any(echo));
//! ```

use ::axum::body::Body;
use ::axum::extract::FromRequestParts;
use ::axum::response::{IntoResponse, Response};
use ::hyper::ext::Protocol;
use ::hyper::upgrade::{OnUpgrade, Upgraded};
use http::header::{
    self, CONNECTION, HeaderMap, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::request::Parts;
use http::{Method, StatusCode, Version};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;
pub use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};
pub use tokio_tungstenite::tungstenite::{Error, Message};

use crate::io::HyperIo;

/// An open WebSocket: a `Stream` and a `Sink` of [`Message`]s. Pings are answered while it is read.
///
/// It is `Send`: on another thread each read and write goes through its connection's worker.
pub type WebSocket = WebSocketStream<HyperIo<Upgraded>>;

/// Extracts a client's request for a WebSocket, by HTTP/1.1 (RFC 6455) or HTTP/2 (RFC 8441).
///
/// Use it with `axum::routing::any`: HTTP/1.1 sends GET, HTTP/2 sends CONNECT.
#[derive(Debug)]
#[must_use = "the WebSocket opens when `on_upgrade` is called and its response is returned"]
pub struct WebSocketUpgrade {
    config: WebSocketConfig,
    protocol: Option<HeaderValue>,
    /// `Sec-WebSocket-Key`; `None` on HTTP/2, which has none (RFC 8441).
    key: Option<HeaderValue>,
    on_upgrade: OnUpgrade,
    offered: Option<HeaderValue>,
}

impl WebSocketUpgrade {
    /// Sets limits and buffer sizes. Defaults: received messages of 64 MiB and frames of 16 MiB, as
    /// tungstenite has them; and 17 MiB that wait to be sent, which a peer that sends pings and
    /// reads nothing fills. A larger message can't be sent; tungstenite's default is no limit. A
    /// connection has a buffer of 8 KiB to read into, instead of tungstenite's 128 KiB: set it
    /// again if the messages are large.
    pub fn config(mut self, config: WebSocketConfig) -> Self {
        self.config = config;
        self
    }

    /// Takes the first of these subprotocols that the client offers.
    pub fn protocols<P: AsRef<str>>(mut self, known: impl IntoIterator<Item = P>) -> Self {
        if let Some(offered) = self.offered.as_ref().and_then(|offered| offered.to_str().ok()) {
            self.protocol = known
                .into_iter()
                .find(|known| offered.split(',').any(|offer| offer.trim() == known.as_ref()))
                .and_then(|protocol| HeaderValue::from_str(protocol.as_ref()).ok());
        }
        self
    }

    /// The subprotocol that [`protocols`](Self::protocols) has taken.
    pub fn selected_protocol(&self) -> Option<&HeaderValue> {
        self.protocol.as_ref()
    }

    /// Makes the response that opens the WebSocket. Then `callback` gets it, in a task of this
    /// worker.
    pub fn on_upgrade<C, F>(self, callback: C) -> Response
    where
        C: FnOnce(WebSocket) -> F + 'static,
        F: Future<Output = ()> + 'static,
    {
        let Self { config, protocol, key, on_upgrade, .. } = self;
        drop(runtime::spawn(async move {
            match on_upgrade.await {
                Ok(upgraded) => {
                    let io = HyperIo::new(upgraded);
                    callback(WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await).await;
                }
                Err(error) => tracing::debug!(%error, "a WebSocket was not opened"),
            }
        }));
        let mut response = Response::new(Body::empty());
        if let Some(key) = key {
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            let headers = response.headers_mut();
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
            if let Ok(accept) = HeaderValue::from_str(&derive_accept_key(key.as_bytes())) {
                headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
            }
        }
        if let Some(protocol) = protocol {
            response.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, protocol);
        }
        response
    }
}

/// What waits to be sent, in bytes: at least a frame of the largest size that peers accept by
/// default.
const MOST_UNSENT: usize = 17 << 20;

/// Bytes that a WebSocket reads at most at once, of the 16 KiB that a stream of `net` may have.
/// tungstenite allocates them for each connection, and fills them with zeros before each read: its
/// default, 128 KiB, costs more than the echo of a small message.
const READ_BUFFER: usize = 8 << 10;

fn default_config() -> WebSocketConfig {
    WebSocketConfig::default().read_buffer_size(READ_BUFFER).max_write_buffer_size(MOST_UNSENT)
}

/// Whether a comma-separated header has a value, in any case.
fn has(headers: &HeaderMap, name: HeaderName, wanted: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.split(',').any(|element| element.trim().eq_ignore_ascii_case(wanted)))
}

impl<S: Sync> FromRequestParts<S> for WebSocketUpgrade {
    type Rejection = NoWebSocket;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, NoWebSocket> {
        let headers = &parts.headers;
        let key = if parts.version <= Version::HTTP_11 {
            if parts.method != Method::GET {
                return Err(NoWebSocket::Method);
            }
            if !has(headers, CONNECTION, "upgrade") || !has(headers, UPGRADE, "websocket") {
                return Err(NoWebSocket::Upgrade);
            }
            Some(headers.get(SEC_WEBSOCKET_KEY).ok_or(NoWebSocket::Key)?.clone())
        } else {
            if parts.method != Method::CONNECT {
                return Err(NoWebSocket::Method);
            }
            if parts.extensions.get::<Protocol>().is_none_or(|protocol| protocol.as_str() != "websocket") {
                return Err(NoWebSocket::Upgrade);
            }
            None
        };
        if headers.get(SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
            return Err(NoWebSocket::Version);
        }
        let offered = headers.get(header::SEC_WEBSOCKET_PROTOCOL).cloned();
        let on_upgrade = parts.extensions.remove::<OnUpgrade>().ok_or(NoWebSocket::NotUpgradable)?;
        Ok(Self { config: default_config(), protocol: None, key, on_upgrade, offered })
    }
}

/// A request doesn't ask for a WebSocket, or not in a way that can be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoWebSocket {
    /// Another method than GET, or than CONNECT on HTTP/2. Answered with status 405.
    #[error("a WebSocket is requested by GET, or by CONNECT on HTTP/2")]
    Method,
    /// No `Connection: upgrade` with `Upgrade: websocket`. Answered with status 400.
    #[error("the request doesn't ask for an upgrade to websocket")]
    Upgrade,
    /// No `Sec-WebSocket-Key`, which HTTP/1.1 requires. Answered with status 400.
    #[error("the header Sec-WebSocket-Key is missing")]
    Key,
    /// Another `Sec-WebSocket-Version` than 13. Answered with status 400.
    #[error("the header Sec-WebSocket-Version is not 13")]
    Version,
    /// hyper offers no upgrade, for example because another extractor took it. Answered with status 426.
    #[error("the connection can't be upgraded")]
    NotUpgradable,
}

impl IntoResponse for NoWebSocket {
    fn into_response(self) -> Response {
        let status = match self {
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::NotUpgradable => StatusCode::UPGRADE_REQUIRED,
            _ => StatusCode::BAD_REQUEST,
        };
        (status, self.to_string()).into_response()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_waits_to_be_sent_is_bounded_and_takes_a_frame() {
        let config = super::default_config();
        assert!(config.max_write_buffer_size > config.max_frame_size.unwrap());
        assert!(config.max_write_buffer_size < 32 << 20);
    }
}
