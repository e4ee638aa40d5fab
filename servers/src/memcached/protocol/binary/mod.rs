//! The binary protocol, as in memcached's `protocol_binary.h`.

mod execute;
mod parse;

pub use parse::{REQUEST_MAGIC, ResponseHeader, Status};
