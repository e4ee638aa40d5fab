//! The same echo server on Lull and on the runtimes that a user would choose instead. Each server
//! is a process on one core.

#[cfg(feature = "adapters")]
mod applications;
mod bare_epoll;
mod compio;
pub(crate) mod descriptor_limit;
mod echo_server_spec;
pub(crate) mod lull;
mod monoio;
mod request_shape;
mod server;
mod service;
mod tokio;

pub use self::echo_server_spec::{EchoServerNetwork, EchoServerSpec};
pub use self::request_shape::RequestShape;
pub use self::server::serve;
pub use self::service::{Peer, PeerService};
