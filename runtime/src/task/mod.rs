//! Tasks: one allocation each, with the future, its result, and what wakers need.
//!
//! A future never leaves its worker and need not be `Send`. Only the header crosses threads.

pub(crate) mod cell;
pub(crate) mod header;
pub(crate) mod join;
mod join_error;

pub use self::join::{AbortHandle, JoinHandle};
pub use self::join_error::JoinError;
