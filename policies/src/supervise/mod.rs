//! Keeps an applied policy in effect while links change and other processes move interrupts, tunes the
//! grace time, and publishes what the workers do.

mod affinity;
mod change;
mod grace_time_search;
mod grace_time_tuner;
pub mod status;
mod supervisor;

pub use affinity::{Affinity, UnknownAffinity};
pub use change::Change;
pub use supervisor::{Supervisor, SupervisorHooks};
