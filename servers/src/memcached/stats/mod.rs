//! What `stats` reports on: counters, open connections, and how the workers are driven.

pub mod connections;
pub mod counters;
pub mod policy_section;
