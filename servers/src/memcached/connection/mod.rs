//! A client's connection, from its acceptance to its end.

pub mod accept;
pub mod list;
mod replies;
mod serve;
mod time_limits;
