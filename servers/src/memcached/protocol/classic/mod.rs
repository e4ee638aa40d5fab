//! The classic text commands: `get`, `set`, `stats`, ….

mod admin;
mod authenticate;
mod execute;
mod key_dump;
pub mod parse;
mod stats_command;
