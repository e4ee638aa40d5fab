//! An async runtime for Linux with a thread per NAPI queue and selectable polling policies.
//!
//! ```
//! use std::time::Duration;
//!
//! #[runtime::main(policy = "vanilla", workers = 2)]
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
//! A runtime is a set of workers: one thread each, with one driver, one run queue, and at most one
//! NAPI (a receive queue of the network card). Tasks stay on the worker that they were spawned on
//! and need not be `Send`. The workers follow a [`Policy`], which the code sets ([`Builder`]), else
//! the environment (`RUNTIME_POLICY`), else the attribute.
//!
//! Under `kernel-polling` a worker's wait polls its NAPI, and the queue's interrupt stays masked as
//! long as the worker finds work there (`irq-suspend-timeout` of Linux 6.13,
//! `Documentation/networking/napi.rst`; at saturation the worker polls by its own timer). Where the
//! kernel or the device can't do that, the worker falls back to less, and its [`WorkerReport`] says
//! to what, and why.
//!
//! A worker's driver ([`DriverKind`]) is epoll, io_uring, or both: under kernel polling epoll is
//! the wait, because only epoll suspends interrupts, and io_uring carries a turn's receives and
//! sends. Where io_uring is missing or forbidden, `auto` takes epoll, and the report says why.
//!
//! The crate knows no protocols. [`io`] has what networking libraries build sockets from, and
//! [`AsyncFd`] for other descriptors. [`signal`] waits for signals, [`time`](mod@time) has timers
//! and a clock that tests can pause, and [`spawn_blocking`] runs what would block a worker. [`fs`]
//! has files and [`stdio`] the standard streams on its threads, [`process`] runs programs, and
//! [`metrics`](mod@metrics) has the workers' counters and histograms, also for Prometheus.
//!
//! What needs a worker (spawning, timers, descriptors) panics outside of a runtime. Where a
//! function documents no error, it is the one of its system call.
//!
//! # Features
//! - `task-spans` (off by default): each task is polled in a span of `tracing`, as tokio's tasks
//!   are, for tokio-console and other subscribers.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "Lull drives the Linux kernel's NAPI polling: it builds for Linux only (6.13 or later for interrupt suspension)"
);

#[macro_use]
mod opaque_debug;

#[doc(hidden)]
#[path = "macro_support.rs"]
pub mod __private;
mod background;
mod blocking;
mod builder;
mod config;
mod context;
mod coop;
mod counters;
mod driver;
mod error;
pub mod fs;
mod handle;
mod host_policy;
pub mod io;
#[cfg(all(test, loom))]
mod loom_models;
pub mod metrics;
mod not_send;
pub mod pipe;
mod pool_call;
pub mod process;
mod runtime;

pub mod signal;
mod skipped_tests;
pub mod stdio;
mod sync;
pub mod task;
mod task_core;
mod thread_settings;
pub mod time;
mod timers;
mod waking;
mod worker;

pub use policies::Error as HostError;
pub use policies::controller::{CpuBudget, LatencyBudget, QueueMode, QueueSettings};
pub use policies::epoll_params::EpollParams;
pub use policies::netlink::netdev::Napi;
pub use policies::status::QueueStatus;
pub use policies::{Affinity, Applied, Change, Cpus, GraceTime, JournalDir, Policy, UnknownName};
pub use runtime_macros::{main, test};

pub use crate::background::BackgroundRuntime;
pub use crate::blocking::BlockingMetrics;
pub use crate::builder::Builder;
pub use crate::config::hooks::Stall;
pub use crate::config::wait_strategy::WaitStrategy;
pub use crate::context::{current_worker, metrics, policy, reports, workers};
pub use crate::coop::{consume_budget, cooperative, unconstrained};
pub use crate::driver::DriverKind;
pub use crate::error::BuildError;
pub use crate::handle::{EnterGuard, Handle, spawn_blocking};
pub use crate::io::AsyncFd;
pub use crate::metrics::Metrics;
pub use crate::runtime::Runtime;
pub use crate::task::spawn::{spawn, spawn_on, yield_now};
pub use crate::task::{AbortHandle, JoinError, JoinHandle};
pub use crate::time::{
    Elapsed, Interval, MissedTickBehavior, Sleep, interval, interval_at, sleep, sleep_until, timeout,
    timeout_at,
};
pub use crate::worker::{Running, WorkerReport};
