//! A task as its worker sees it: one allocation with the future, its result, and what wakers need.
//! The handles that applications hold are in [`task`](crate::task).
//!
//! A future never leaves its worker and need not be `Send`. Only the header crosses threads.

pub(crate) mod cell;
pub(crate) mod header;
pub(crate) mod identity;
pub(crate) mod join_error;
#[cfg_attr(not(feature = "task-spans"), path = "no_span.rs")]
pub(crate) mod span;
