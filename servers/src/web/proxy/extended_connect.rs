//! WebSockets over HTTP/2 (RFC 8441): an extended CONNECT becomes an upgrade of HTTP/1.1, its `101` a `200`.

use hyper::ext::Protocol;
use hyper::header::{CONTENT_LENGTH, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY};
use hyper::http::request;
use hyper::{HeaderMap, Method, Response, StatusCode};
use tungstenite::handshake::client::generate_key;
use tungstenite::handshake::derive_accept_key;

use super::error::Refusal;

const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");

/// The handshake of a WebSocket that a client of HTTP/2 has asked for. A CONNECT has no `Sec-WebSocket-Key`, so the proxy
/// generates one and verifies the upstream's `Sec-WebSocket-Accept`.
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
        let key = generate_key();
        let accept = HeaderValue::try_from(derive_accept_key(key.as_bytes()));
        let (Ok(key), Ok(accept)) = (HeaderValue::try_from(key), accept) else {
            return Err(Refusal::BadRequest);
        };
        head.method = Method::GET;
        head.headers.insert(SEC_WEBSOCKET_KEY, key);
        Ok((Self { accept }, WEBSOCKET))
    }

    /// Whether the upstream answered 2xx without switching protocols. The client would take that for an open WebSocket.
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

fn has_only(headers: &HeaderMap, name: &HeaderName, expected: &HeaderValue) -> bool {
    let mut values = headers.get_all(name).iter();
    values.next() == Some(expected) && values.next().is_none()
}
