//! The binary protocol, as in memcached's `protocol_binary.h`.

mod execute;
mod parse;
pub mod response;

pub use parse::REQUEST_MAGIC;
