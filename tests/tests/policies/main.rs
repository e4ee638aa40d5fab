//! Policies on the two-namespace testbed.

mod adaptation;
mod client;
mod containers;
mod controller;
mod crash_recovery;
mod datagrams;
mod delays;
mod echo;
mod failures;
mod guardian;
mod journals;
mod kernel_threads;
mod lower_interfaces;
mod mode_changes;
mod queue_modes;
mod receiving_core;
mod service_units;
mod spreading;
mod supervision;
mod trial;
