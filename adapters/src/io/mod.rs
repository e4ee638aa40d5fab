//! One stream, the I/O traits of futures-io, hyper and tokio.

mod hyper_io;
mod stream_io;

pub use self::hyper_io::HyperIo;
pub use self::stream_io::Io;
