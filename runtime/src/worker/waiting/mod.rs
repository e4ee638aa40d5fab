//! What a worker does until something happens: sleep, or spin first.
//!
//! - [`spin_limit`]: how long `WaitStrategy::Adaptive` spins.
//! - [`adaptive_spin`]: whether a worker without a queue to poll spins for another thread's message.
//! - [`thread_wait`]: the same for threads that are no workers and wait for one; [`thread_parker`]: where they sleep.

pub(crate) mod adaptive_spin;
pub(crate) mod spin_limit;
pub(crate) mod thread_parker;
pub(crate) mod thread_wait;
