//! Unix domain sockets (`unix(7)`).

mod datagram;
mod stream;

pub use self::datagram::UnixDatagram;
pub use self::stream::{PeerCredentials, Unix, UnixListener, UnixStream};
