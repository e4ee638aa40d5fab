//! HTTP/1 and HTTP/2 by hyper: servers on [`net`]'s listeners, pooled clients, and the executor and
//! timer that both run on.
//!
//! [`serve`] is the server of the modules `axum`, `tower` and `tonic`, too: [`Serve`] has its
//! limits and its graceful shutdown. How many connections may be open is the listener's:
//! [`limit_connections`](net::TcpListener#method.limit_connections).

#[cfg(feature = "client")]
mod client;
mod connection;
mod file_body;
mod first_bytes;
mod http_socket;
mod idle;
mod listen;
mod rt;
mod serve;
mod service;
mod shutdown;

#[cfg(feature = "tonic")]
pub(crate) use self::client::NEEDS_TLS;
#[cfg(feature = "client")]
pub use self::client::{Client, Connecting, Connector, HttpClient, HttpStream};
pub use self::file_body::FileBody;
pub use self::listen::{BoxError, Listen, MakeService, Peer};
pub use self::rt::{Executor, Timer};
pub use self::serve::{Serve, Server, Signalled, serve};
