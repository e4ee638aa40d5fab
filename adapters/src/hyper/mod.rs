//! hyper: its executor and timer, and servers on [`net`]'s listeners.

mod activity;
#[cfg(feature = "client")]
mod client;
mod connection;
mod connection_limit;
mod file_body;
mod first_bytes;
mod http_socket;
mod idle_limit;
mod inspected_stream;
mod listen;
mod request_window;
mod rt;
mod serve;
mod shared_room;
mod shutdown;
mod stalls;
mod turn;
#[cfg(test)]
mod wake_counter;
mod watched_service;

#[cfg(feature = "tonic")]
pub(crate) use self::client::NEEDS_TLS;
#[cfg(feature = "client")]
pub use self::client::{Client, Connecting, Connector, HttpClient, HttpStream};
pub use self::connection_limit::ConnectionLimit;
#[cfg(feature = "quinn")]
pub use self::connection_limit::Requests;
pub use self::file_body::FileBody;
pub use self::listen::{Listen, MakeService, Peer};
pub use self::request_window::RequestWindow;
pub use self::rt::{Executor, Timer};
pub use self::serve::{Serve, Server, serve};

/// An error of a service, of a body or of a connection.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
