//! The timers of a worker: a [`wheel`] of deadlines, and the [`clock`] that they are measured on.

pub(crate) mod clock;
pub(crate) mod wheel;
