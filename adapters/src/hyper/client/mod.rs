//! HTTP clients, by hyper-util's pooled client.

mod connector;
#[cfg(feature = "tls")]
mod https;
mod per_worker;
mod resolve;
mod stream;

#[cfg(feature = "tonic")]
pub(crate) use self::connector::NEEDS_TLS;
pub use self::connector::{Connecting, Connector};
pub use self::per_worker::{Client, HttpClient};
pub use self::stream::HttpStream;
