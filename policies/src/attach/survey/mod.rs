//! A look at a server that changes nothing.

mod findings;
mod observation;
mod observed;
mod wait_trace;
mod waits;

pub use observation::{Observation, observe};
pub use observed::{Fitness, ObservedInstance, ObservedProcess};
