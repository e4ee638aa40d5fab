//! How other threads wake a worker: what they leave in its [`inbox`], and whether it sleeps
//! ([`park_state`]), decide whether they need a system call ([`wake_handle`]).

pub(crate) mod inbox;
pub(crate) mod park_state;
pub(crate) mod wake_handle;
