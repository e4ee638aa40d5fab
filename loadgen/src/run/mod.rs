//! One run on this machine: connect, start all workers together, send requests, merge what they
//! record.

pub(crate) mod measured_run;
pub(crate) mod preload;
pub(crate) mod schedule;
mod worker;
