//! Serving connections on the workers that own their NAPIs.

mod accept;
mod aligned;
mod alignment;
mod connections;
mod serving;
mod steering;

pub use self::alignment::Alignment;
pub use self::serving::{Serving, ShutdownReport};
