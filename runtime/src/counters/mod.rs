//! What a worker counts and times, in its own memory. Other threads read it.

pub(crate) mod counter;
pub(crate) mod histogram;
pub(crate) mod waiting;
pub(crate) mod worker_counters;
