//! The binary protocol, according to memcached's `protocol_binary.h` and the page "BinaryProtocolRevamped" of
//! its wiki.

mod header;
pub(crate) mod requests;
pub(crate) mod responses;
