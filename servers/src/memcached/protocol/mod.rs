//! memcached's protocols. In each folder, `parse` turns input into a command and `execute` runs it.

pub mod binary;
pub mod classic;
pub mod meta;
pub mod numbers;
pub mod store_reply;
pub mod tokens;
