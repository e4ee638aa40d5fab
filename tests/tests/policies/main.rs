//! Policies on the two-namespace testbed.

mod crash_recovery;
mod delays;
mod echo;
mod kernel_polling;
mod kernel_threads;
mod receiving_core;
mod supervision;
