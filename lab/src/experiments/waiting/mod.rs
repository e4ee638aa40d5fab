//! Which wait strategy answers messages soonest, and at what cost in CPU time.
//!
//! The question is the one of Damianakis, Chen and Felten, "Reducing Waiting Costs in User-Level Communication" (1997):
//! is a thread that adapts how long it spins as fast as the better of spinning and blocking, and how much more does it
//! cost than blocking? It is asked for messages between two workers, between a worker and a plain thread, and for a
//! memcached server at low load.

mod config;
mod exchange;
mod gap;
mod measurement;
mod message_turn;
mod messages;
mod server_turn;
mod targets;

pub use config::WaitingConfig;
pub use gap::Gap;
pub use measurement::{measure, steps};
pub use message_turn::Pair;
pub use targets::{CLAIMS, Claim, Outcome, Target, targets};
