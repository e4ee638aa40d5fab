//! Connections to servers: TCP, Unix sockets, TLS and UDP.

pub(crate) mod address;
pub(crate) mod connector;
#[cfg(feature = "tls")]
mod tls;

use futures_util::{AsyncBufRead, AsyncWrite};

/// What the transports have in common.
pub(crate) trait Transport: AsyncBufRead + AsyncWrite + Unpin {}

impl<T: AsyncBufRead + AsyncWrite + Unpin> Transport for T {}

pub(crate) type BoxedTransport = Box<dyn Transport>;
