//! A look at a server that changes nothing.

mod findings;
mod observation;
mod wait_trace;
mod waits;

pub use observation::{Fitness, Observation, ObservedInstance, ObservedProcess, observe};
