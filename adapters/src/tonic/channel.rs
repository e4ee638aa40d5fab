//! Channels of gRPC clients.

use std::pin::Pin;
use std::task::{Context, Poll};

use ::tonic::Status;
use ::tonic::body::Body;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, Uri};
use hyper_util::client::legacy::ResponseFuture;
use tower_service::Service;

use super::broken_connection::with_status;
use super::deadline::{DeadlineBody, Reader, deadline_exceeded, requested_time};
use crate::hyper::{BoxError, Client, Connector, NEEDS_TLS};

/// A connection of HTTP/2 to a server for each worker, made when it is first used and again when it
/// has broken. Clones share the connections; they can be held in axum's handlers.
///
/// Generated clients take it:
/// `GreeterClient::new(Channel::new("http://127.0.0.1:50051".parse()?)?)`, or
/// `GreeterClient::with_interceptor(channel, interceptor)`. A request's deadline
/// (`Request::set_timeout`) ends it here, too, with `DEADLINE_EXCEEDED`. A server that can't be
/// reached or that fails the TLS handshake is `UNAVAILABLE`, and so is a call whose connection
/// breaks or is ended by GOAWAY. A call whose stream the server resets has the status that gRPC
/// defines for the code.
#[derive(Debug, Clone)]
pub struct Channel {
    client: Client<Body>,
    scheme: Scheme,
    authority: Authority,
}

impl Channel {
    /// A channel to a server, whose URI has the scheme `http`, or `https` with the feature `tls`,
    /// and a host. It doesn't connect yet. With `https` the system's authorities are trusted.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for other URIs.
    pub fn new(uri: Uri) -> Result<Self, Status> {
        Self::with_connector(uri, Connector::new())
    }

    /// A channel with a connector: one that trusts other authorities or presents a certificate, for
    /// example. It offers `h2` only (ALPN).
    pub fn with_connector(uri: Uri, connector: Connector) -> Result<Self, Status> {
        let parts = uri.clone().into_parts();
        let (Some(scheme), Some(authority)) = (parts.scheme, parts.authority) else {
            return Err(wrong(&uri));
        };
        if scheme == Scheme::HTTPS && !cfg!(feature = "tls") {
            return Err(Status::invalid_argument(NEEDS_TLS));
        }
        if scheme != Scheme::HTTP && scheme != Scheme::HTTPS {
            return Err(wrong(&uri));
        }
        Ok(Self { client: Client::http2_with_connector(connector), scheme, authority })
    }
}

fn wrong(uri: &Uri) -> Status {
    Status::invalid_argument(format!(
        "a channel's URI is http://HOST:PORT or https://HOST:PORT, and not {uri}"
    ))
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Responding;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Responding {
        let path = request.uri().path_and_query().cloned();
        let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
        let uri = Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(path)
            .build();
        // Never fails: all three parts were parsed before.
        if let Ok(uri) = uri {
            *request.uri_mut() = uri;
        }
        let sleep = requested_time(request.headers()).map(runtime::sleep);
        Responding { response: self.client.get().request(request), sleep }
    }
}

/// The future of a [`Channel`].
#[derive(Debug)]
pub struct Responding {
    response: ResponseFuture,
    sleep: Option<runtime::Sleep>,
}

impl Future for Responding {
    type Output = Result<Response<Body>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(response) = Pin::new(&mut self.response).poll(context) {
            let sleep = self.sleep.take();
            return Poll::Ready(match response {
                Ok(response) => {
                    Ok(response.map(|body| Body::new(DeadlineBody::new(body, sleep, Reader::Here))))
                }
                Err(error) => Err(with_status(error.into())),
            });
        }
        if let Some(sleep) = &mut self.sleep
            && Pin::new(sleep).poll(context).is_ready()
        {
            return Poll::Ready(Err(deadline_exceeded().into()));
        }
        Poll::Pending
    }
}
