//! Tasks: one allocation each, with the future, its result, and what wakers need.
//!
//! A future never leaves its worker and need not be `Send`. Only the header crosses threads.

mod builder;
pub(crate) mod cell;
pub(crate) mod header;
pub(crate) mod identity;
pub(crate) mod join;
mod join_error;
pub(crate) mod join_set;
mod local;
#[cfg_attr(not(feature = "task-spans"), path = "no_span.rs")]
pub(crate) mod span;

pub use self::builder::Builder;
pub use self::identity::{Id, id, try_id};
pub use self::join::{AbortHandle, JoinHandle};
pub use self::join_error::JoinError;
pub use self::join_set::JoinSet;
pub use self::local::{LocalKey, NotInScope};
