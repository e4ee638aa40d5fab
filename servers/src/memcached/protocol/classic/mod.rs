//! The classic text commands: `get`, `set`, `stats`, ….

mod execute;
mod key_dump;
pub mod parse;
pub mod tuning;
