//! An async runtime for Linux with a thread per NAPI queue and selectable polling policies.
//!
//! ```
//! use std::time::Duration;
//!
//! // With `interface = "eth0", policy = "kernel-polling"` each worker also polls a receive queue.
//! #[runtime::main(workers = 2)]
//! async fn main() {
//!     let here = runtime::spawn(async { 20 + 1 });
//!     let there = runtime::spawn_on(1, || async { runtime::current_worker() });
//!     runtime::sleep(Duration::from_millis(1)).await;
//!     assert_eq!(here.await.unwrap(), 21);
//!     assert_eq!(there.await.unwrap(), 1);
//!     for report in runtime::reports() {
//!         println!("{report}");
//!     }
//! }
//! ```
//!
//! A runtime is a set of workers: one thread each, with a driver, a run queue, and at most one NAPI
//! (a receive queue of the network card). A task stays on the worker that it was spawned on, and
//! need not be `Send`. The workers follow a [policy](policy::Policy), which the code sets
//! ([`Builder`]), else the environment (`RUNTIME_POLICY`), else the attribute.
//!
//! Under `kernel-polling` a worker's wait polls its queue, and the queue's interrupt stays masked
//! while two packets come in a poll interval. Otherwise interrupts drive it. Where the kernel, the
//! device or the process's privileges allow less, the worker does less, and its [`WorkerReport`]
//! says what, and why.
//!
//! A worker's driver ([`DriverKind`]) is io_uring, with epoll for descriptors that are waited for
//! ([`AsyncFd`]), or epoll alone. By default it is io_uring, unless that is missing or forbidden,
//! or a queue's values are fixed: only waits in epoll then keep the queue's interrupt masked.
//!
//! | | |
//! |---|---|
//! | tasks and their values, sets of tasks | [`spawn`], [`spawn_on`], [`task`] |
//! | timers, and a clock that tests can pause | [`time`](mod@time) |
//! | work that blocks, files, standard streams | [`spawn_blocking`], [`fs`], [`stdio`] |
//! | descriptors, pipes, operations of the ring | [`io`], [`pipe`] |
//! | signals, child processes | [`signal`], [`process`] |
//! | counters and histograms, also for Prometheus | [`metrics`](mod@metrics) |
//! | sockets | the crate `lull-net` |
//! | hyper, axum, tonic, rustls, quinn, tokio's traits | the crate `lull-adapters` |
//!
//! # What it is not for
//! - Other systems than Linux.
//! - Work that any thread could take over: nothing moves a task from a busy worker to an idle one.
//! - Computing in tasks: a poll that takes long keeps the worker's sockets and timers waiting
//!   ([`Builder::stall_threshold`]). [`spawn_blocking`] has threads for that.
//! - Crates that need tokio's runtime, unless `lull-adapters` runs it beside this one.
//!
//! What needs a worker (spawning, timers, descriptors) panics outside of a runtime. Where a
//! function documents no error, it is the one of its system call.
//!
//! # Features
//! All are off by default.
//! - `serde`: reports and metrics can be serialized.
//! - `task-spans`: each task is polled in a span of `tracing`, as tokio's tasks are, for
//!   tokio-console and other subscribers.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "Lull drives the Linux kernel's NAPI polling: it builds for Linux only (6.13 or later for interrupt suspension)"
);

/// Shows a type's name, and these values:
/// `opaque_debug!(JoinSet<T>, "JoinSet", [T], |it| "len" = it.len());`.
macro_rules! opaque_debug {
    ($type:ty, $name:literal $(, [$($generics:tt)*])? $(, |$it:ident| $($field:literal = $value:expr),+)?) => {
        impl $(<$($generics)*>)? ::std::fmt::Debug for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                $(let $it = self;)?
                f.debug_struct($name)$($(.field($field, &$value))+)?.finish_non_exhaustive()
            }
        }
    };
}

#[doc(hidden)]
#[path = "for_net.rs"]
pub mod __net;
#[doc(hidden)]
#[path = "macro_support.rs"]
pub mod __private;
mod blocking;
mod builder;
mod config;
mod coop;
mod counters;
mod driver;
mod faults;
pub mod fs;
mod handle;
mod host_policy;
mod inbox;
pub mod io;
#[cfg(all(test, loom))]
mod loom_models;
pub mod metrics;
pub mod pipe;
mod pool_io;
pub mod process;
mod runtime;
pub mod signal;
pub mod stdio;
mod sync;
pub mod task;
/// A task as its worker sees it: one allocation with the future, its result, and what wakers need.
/// The handles that applications hold are in [`task`].
///
/// A future never leaves its worker and need not be `Send`. Only the header crosses threads.
mod task_core {
    pub(crate) mod cell;
    pub(crate) mod header;
    pub(crate) mod identity;
    pub(crate) mod join_error;
    #[cfg_attr(not(feature = "task-spans"), path = "no_span.rs")]
    pub(crate) mod span;
}
mod thread_settings;
pub mod time;
mod timers;
mod wake_handle;
/// Workers: a thread each, with its tasks, its timers, its driver, and the loop over them.
///
/// - `event_loop`: one turn runs tasks, waits in the driver, fires timers;
/// - `worker_handle`: what other threads see of a worker; `current`: what its own thread does;
/// - `adaptive_spin`: whether it spins before it sleeps; `thread_wait`: the same for threads that
///   wait for a worker;
/// - `runtime_state`: what all workers of a runtime share; `napi_map`: which of them has which
///   queue;
/// - `startup`: pins the thread, opens the driver, finds out which policy is in effect (`report`);
/// - `queue_control`: adapts how the queue is driven;
/// - `early_logs`: warnings that come before there is a subscriber.
mod worker {
    mod adaptive_spin;
    pub(crate) mod current;
    mod early_logs;
    pub(crate) mod event_loop;
    pub(crate) mod napi_map;
    pub(crate) mod queue_control;
    pub(crate) mod report;
    pub(crate) mod runtime_state;
    pub(crate) mod startup;
    pub(crate) mod thread_wait;
    pub(crate) mod worker_handle;
}

pub mod policy {
    //! What the runtime's settings and reports are made of: the types of the crate `lull-policies`
    //! that its users name.
    //!
    //! ```
    //! use runtime::policy::{GraceTime, Policy};
    //!
    //! assert_eq!("kernel-polling".parse(), Ok(Policy::KernelPolling));
    //! let builder = runtime::Builder::new().grace_time(GraceTime::Adaptive);
    //! # drop(builder);
    //! ```

    pub use policies::Error as HostError;
    pub use policies::controller::{PollInterval, QueueMode, QueueSettings};
    pub use policies::epoll_params::EpollParams;
    pub use policies::netlink::netdev::Napi;
    pub use policies::status::QueueStatus;
    pub use policies::{
        AdaptedQueue, Affinity, Applied, Change, Cpus, GraceTime, JournalDir, Policy, UnknownName, recover,
    };
}

/// Runs an `async fn main` on a runtime. Prints the error and ends the process with code 1 if the
/// runtime can't be built.
///
/// The arguments are settings, such as `policy = "kernel-polling"` or `workers = 2`, all optional:
/// the [table of `Builder`](struct.Builder.html#configuration) lists them, their values, and the
/// environment variables that override them.
///
/// `crate = "…"` gives the path of the runtime crate if it is not `::runtime`, for example because
/// the dependency is renamed.
///
/// # Examples
/// ```
/// #[runtime::main(policy = "vanilla", workers = 2, wait = "adaptive")]
/// async fn main() {
///     assert_eq!(runtime::workers(), 2);
/// }
/// ```
pub use runtime_macros::main;
/// Runs an `async fn` as a test, on a runtime with one worker unless `workers` is given.
///
/// The test runs once on each driver, or only on the one that `driver` names. A driver that this
/// machine doesn't have is skipped, and the test's output says why. With `LULL_REQUIRE_ALL` set in
/// the environment, a missing driver fails the test.
///
/// The arguments are those of [`main`](macro@main). The variables `RUNTIME_…` don't change a test.
///
/// # Examples
/// ```
/// #[runtime::test(workers = 2)]
/// async fn another_worker_answers() {
///     assert_eq!(runtime::spawn_on(1, || async { runtime::current_worker() }).await.unwrap(), 1);
/// }
/// ```
pub use runtime_macros::test;

pub use crate::blocking::BlockingMetrics;
pub use crate::builder::Builder;
pub use crate::config::{BuildError, Stall, WaitStrategy};
pub use crate::coop::{consume_budget, cooperative, unconstrained};
pub use crate::driver::DriverKind;
pub use crate::handle::{
    EnterGuard, Handle, current_worker, metrics, policy, reports, spawn_blocking, workers,
};
pub use crate::io::AsyncFd;
pub use crate::metrics::Metrics;
pub use crate::runtime::{BackgroundRuntime, Runtime};
pub use crate::task::{AbortHandle, JoinError, JoinHandle, spawn, spawn_on, yield_now};
pub use crate::time::{
    Elapsed, Interval, MissedTickBehavior, Sleep, Timeout, interval, interval_at, sleep, sleep_until,
    timeout, timeout_at,
};
pub use crate::worker::report::{Running, WorkerReport};
