//! Single settings of the host: what they are called, who may set them, how they are read and written.

pub(crate) mod coalescing_limits;
mod definition;
mod permission;
mod read;
mod write;

pub use definition::{Knob, Value};
pub(crate) use permission::may_set_on;
pub use permission::{NotPermitted, may_set};
