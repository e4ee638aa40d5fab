//! hyper: its executor and timer, and servers on [`net`]'s listeners.

#[cfg(feature = "client")]
mod client;
mod connection;
mod executor;
mod file_body;
mod first_bytes;
mod http_socket;
mod idle_limit;
mod inspected_stream;
mod lingering_close;
mod listen;
mod make_service;
mod serve;
mod shutdown;
mod timer;

#[cfg(feature = "tonic")]
pub(crate) use self::client::NEEDS_TLS;
#[cfg(feature = "client")]
pub use self::client::{Client, Connecting, Connector, HttpClient, HttpStream};
pub use self::executor::Executor;
pub use self::file_body::FileBody;
pub use self::listen::{Listen, Peer};
pub use self::make_service::MakeService;
pub use self::serve::{Serve, Server, serve};
pub use self::timer::Timer;

/// An error of a service, of a body or of a connection.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
