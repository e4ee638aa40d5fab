//! Keeps an applied policy in effect while links change and other processes move interrupts, sets
//! what the workers' controllers choose for their queues, and publishes what the workers do.

mod change;
mod identity;
mod queue_change;
mod queue_requests;
pub mod status;
mod supervisor;

pub use change::Change;
pub use queue_change::{ChangeStep, QueueChange};
pub use queue_requests::QueueRequests;
pub use supervisor::{Supervisor, SupervisorHooks};
