//! Connections to servers: TCP, Unix sockets, TLS and UDP.

pub(crate) mod address;
pub(crate) mod connector;
pub(crate) mod stream;
#[cfg(feature = "tls")]
mod tls;
