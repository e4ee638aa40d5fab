//! Workers: a thread each, with its tasks, its timers, its driver, and the loop over them.
//!
//! - [`event_loop`]: one turn runs tasks, waits in the driver, fires timers;
//! - [`run_queue`]: the tasks to poll;
//! - [`worker_handle`]: what other threads see of a worker;
//! - [`adaptive_spin`]: whether it spins before it sleeps; [`thread_wait`]: the same for threads
//!   that wait for a worker, and [`thread_parker`]: where they sleep;
//! - [`wake_task`]: what a task's waker does;
//! - [`worker_thread`]: pins the thread, and gives it back;
//! - [`runtime_state`]: what all workers of a runtime share;
//! - [`early_logs`]: warnings that come before there is a subscriber;
//! - [`startup`]: opens the driver, finds out which policy is in effect.

mod adaptive_spin;
pub(crate) mod current;
mod early_logs;
pub(crate) mod event_loop;
pub(crate) mod napi_map;
pub(crate) mod queue_control;
pub(crate) mod report;
mod run_queue;
pub(crate) mod runtime_state;
pub(crate) mod startup;
pub(crate) mod thread_parker;
pub(crate) mod thread_wait;
mod wake_task;
pub(crate) mod worker_handle;
pub(crate) mod worker_thread;

pub use self::napi_map::OwnedQueue;
pub use self::report::{Running, WorkerReport};
