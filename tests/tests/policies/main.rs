//! Policies on the two-namespace testbed.

mod crash_recovery;
mod kernel_polling;
mod kernel_threads;
mod supervision;
