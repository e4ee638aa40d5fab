//! Connections to servers: TCP, Unix sockets, TLS and UDP, optionally with kernel timestamps.

pub(crate) mod address;
pub(crate) mod connector;
pub(crate) mod stream;
mod timestamping;
#[cfg(feature = "tls")]
mod tls;
