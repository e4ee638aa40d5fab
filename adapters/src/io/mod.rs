//! One stream, the I/O traits of futures-io, hyper and tokio.

mod hyper_io;
mod loan;
mod stream_io;

pub use self::hyper_io::HyperIo;
pub use self::loan::SendIo;
#[cfg(feature = "hyper")]
pub(crate) use self::loan::lend;
pub use self::stream_io::Io;
#[cfg(feature = "client")]
pub(crate) use self::stream_io::impl_write;
