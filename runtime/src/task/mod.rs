//! Spawning tasks, and what spawning returns: handles, groups of tasks, their names and their
//! task-local values.

mod builder;
pub(crate) mod join;
pub(crate) mod join_set;
mod local;
pub(crate) mod spawn;

pub use self::builder::Builder;
pub use self::join::{AbortHandle, JoinHandle};
pub use self::join_set::JoinSet;
pub use self::local::{LocalKey, NotInScope};
pub use crate::task_core::identity::{Id, id, try_id};
pub use crate::task_core::join_error::JoinError;
