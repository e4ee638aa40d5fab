//! What libraries keep on the calling worker.

use std::rc::Rc;

pub use crate::worker::worker_states::WorkerState;

use crate::worker::current;

/// The calling worker's state of a type, made by the first call. It lives as long as the worker.
///
/// A thread local is not the same: runtimes that were made on one thread have their worker 0 on it, each with tasks of its own.
#[track_caller]
pub fn worker_state<T: WorkerState + Default>() -> Rc<T> {
    current::with(|worker| worker.states.get())
}
