//! Unix domain sockets (`unix(7)`).

mod datagram;
mod descriptors;
mod stream;

pub use self::datagram::UnixDatagram;
pub use self::descriptors::ReceivedDescriptors;
pub use self::stream::{PeerCredentials, Unix, UnixListener, UnixStream};
