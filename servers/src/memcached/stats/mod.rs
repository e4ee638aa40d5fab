//! Counters, and the replies to `stats`.

pub mod busy_poll_share;
pub mod counters;
pub mod policy_section;
pub mod stats_reply;
