//! Workers: a thread each, with its tasks, its timers, its driver, and the loop over them.
//!
//! - [`event_loop`]: one turn runs tasks, waits in the driver, fires timers;
//! - [`run_queue`]: the tasks to poll;
//! - [`worker_handle`]: what other threads see of a worker;
//! - [`waiting`]: whether it sleeps or spins when nothing is to run;
//! - [`waking`]: its inbox, and how they wake it;
//! - [`worker_thread`]: pins the thread, and gives it back; [`thread_settings`]: what it gives back;
//! - [`worker_states`]: what libraries keep on it;
//! - [`startup`]: opens the driver, finds out which policy is in effect.

pub(crate) mod current;
pub(crate) mod event_loop;
pub(crate) mod napi_map;
pub(crate) mod queue_control;
pub(crate) mod report;
mod run_queue;
pub(crate) mod stall;
pub(crate) mod startup;
pub(crate) mod thread_settings;
pub(crate) mod waiting;
pub(crate) mod waking;
pub(crate) mod worker_handle;
pub(crate) mod worker_states;
pub(crate) mod worker_thread;

pub use self::napi_map::OwnedQueue;
pub use self::report::{Running, WorkerReport};
pub use self::stall::Stall;
pub use self::waiting::wait_strategy::{UnknownWaitStrategy, WaitStrategy};
