//! Counters, and the replies to `stats`.

pub mod busy_poll_share;
pub mod counters;
mod general;
pub mod prefixes;
mod settings;
mod stat_writer;
pub mod stats_reply;
