//! Policies on the two-namespace testbed.

mod client;
mod crash_recovery;
mod delays;
mod echo;
mod kernel_polling;
mod kernel_threads;
mod polling_threads;
mod receiving_core;
mod supervision;
