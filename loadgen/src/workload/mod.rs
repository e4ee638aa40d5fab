//! What is requested: operations, keys, values, popularity and arrival times.

pub(crate) mod arrival;
pub(crate) mod cache_trace;
pub(crate) mod definition;
pub(crate) mod distribution;
pub(crate) mod mix;
pub(crate) mod operation;
pub(crate) mod popularity;
pub(crate) mod recorded_times;
pub(crate) mod serde_display;
pub(crate) mod verify;
