//! Connected byte streams, whatever their address family.

mod async_io;
mod connect;
mod generic;
mod halves;
mod into_std;
mod send_file;
mod socket_io;

pub(crate) use self::connect::{connect, connect_socket};
pub use self::generic::Stream;
pub use self::halves::{NotSameStream, OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
pub use self::into_std::IntoStdError;
pub use self::send_file::FileSender;
