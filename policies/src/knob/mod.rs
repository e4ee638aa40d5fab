//! Single settings of the host: what they are called, who may set them, how they are read and written.

mod definition;
mod permission;
mod read;
pub(crate) mod write;

pub use definition::{Knob, Value};
pub(crate) use permission::may_set_on;
pub use permission::{NotPermitted, may_set};
