//! An async runtime for Linux that keeps the network card quiet while your code runs.
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
//! NAPI (a receive queue of the network card). Tasks stay on the worker that they were spawned on and
//! need not be `Send`. Which [`Policy`] the workers follow is chosen by code ([`Builder`]), by the
//! environment (`RUNTIME_POLICY`) or by the attribute, in this order of strength.
//!
//! Under `kernel-polling` a worker's wait polls its NAPI, and the kernel keeps the queue's interrupt
//! suspended as long as the worker finds work there (Linux 6.13, `irq-suspend-timeout`;
//! `Documentation/networking/napi.rst`). Where that can't be had, the worker steps down, and its
//! [`WorkerReport`] says to what, and why.
//!
//! A worker's driver ([`DriverKind`]) is epoll, io_uring, or both: under kernel polling epoll is the
//! wait, because it alone suspends interrupts, and io_uring carries a turn's receives and sends. Where
//! io_uring is missing or forbidden, `auto` takes epoll, and the report says why.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "Lull drives the Linux kernel's NAPI polling: it builds for Linux only (6.13 or later for interrupt suspension)"
);

// Lets the attributes' expansion, which names `::runtime`, be used in this crate's own tests.
extern crate self as runtime;

mod builder;
mod driver;
mod inbox;
pub mod io;
mod lifecycle;
mod linger;
mod metrics;
#[cfg(all(test, loom))]
mod models;
mod napi_map;
mod report;
mod shared;
pub mod signal;
mod sync;
mod task;
mod time;
mod timer;
mod wait;
mod worker;

pub use builder::{BuildError, Builder};
pub use driver::{DriverKind, EpollParams, UnknownDriver};
pub use io::AsyncFd;
pub use lifecycle::Runtime;
pub use metrics::Metrics;
pub use policies::Policy;
pub use report::{Running, WorkerReport};
pub use runtime_macros::{main, test};
pub use task::{AbortHandle, JoinError, JoinHandle};
pub use time::{Elapsed, Interval, Sleep, interval, sleep, sleep_until, timeout};
pub use wait::{UnknownWaitStrategy, WaitStrategy};

use std::future::Future;
use std::sync::Arc;
use std::task::Poll;

use inbox::Remote;
use task::Unborn;

/// Spawns a task on the calling worker.
///
/// # Panics
/// Outside of a runtime.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    worker::spawn_local(future)
}

/// Spawns a task on another worker: the closure goes there and makes the future, which need not be
/// `Send`.
///
/// If that worker has stopped, awaiting the handle gives a [`JoinError`] that is cancelled.
///
/// # Panics
/// Outside of a runtime, or if there is no such worker.
pub fn spawn_on<F, Fut>(worker: usize, make: F) -> JoinHandle<Fut::Output>
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future + 'static,
    Fut::Output: Send + 'static,
{
    let target = worker::with(|current| {
        let workers = &current.runtime.workers;
        let count = workers.len();
        assert!(worker < count, "there is no worker {worker}; there are {count}, from 0");
        Arc::clone(&workers[worker])
    });
    let (task, joiner) = Unborn::elsewhere(Arc::clone(&target), make);
    target.send(Remote::Adopt(task));
    // SAFETY: the joiner's reference, of a future with this output.
    unsafe { JoinHandle::new(joiner) }
}

/// Lets the other ready tasks of this worker run before going on.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The number of workers of this runtime.
///
/// # Panics
/// Outside of a runtime.
pub fn workers() -> usize {
    worker::with(|worker| worker.runtime.workers.len())
}

/// Which worker this is, from 0.
///
/// # Panics
/// Outside of a runtime.
pub fn current_worker() -> usize {
    worker::with(|worker| worker.shared.index)
}

/// What each worker of this runtime really runs.
///
/// # Panics
/// Outside of a runtime.
pub fn reports() -> Vec<WorkerReport> {
    worker::with(|worker| lifecycle::reports(&worker.runtime))
}

/// What each worker of this runtime has done so far.
///
/// # Panics
/// Outside of a runtime.
pub fn metrics() -> Vec<Metrics> {
    worker::with(|worker| lifecycle::metrics(&worker.runtime))
}

/// The policy that was asked for.
///
/// # Panics
/// Outside of a runtime.
pub fn policy() -> Policy {
    worker::with(|worker| worker.runtime.config.policy)
}

#[doc(hidden)]
pub mod __private {
    pub use crate::builder::Attribute;
    use crate::{BuildError, Builder, Runtime};

    /// Starts the runtime of `#[runtime::main]`; ends the process with a message where it can't.
    pub fn start(attribute: Attribute) -> Runtime {
        Builder::from_attribute(attribute).build().unwrap_or_else(|error| {
            eprintln!("error: {error}");
            std::process::exit(1)
        })
    }

    /// Runs a `#[runtime::test]` on each driver, or on the one that it names. Its value is that of the
    /// first run that ends in an error, else of the last one.
    pub fn on_each_driver<R: Outcome>(mut attribute: Attribute, mut test: impl FnMut(Runtime) -> R) -> R {
        attribute.workers.get_or_insert(1);
        let drivers = match &attribute.driver {
            Some(driver) => vec![driver.clone()],
            None => ["epoll", "uring", "hybrid"].map(String::from).into(),
        };
        let mut last = None;
        for driver in drivers {
            attribute.driver = Some(driver.clone());
            let runtime = match Builder::from_attribute(attribute.clone()).ignore_environment().build() {
                Ok(runtime) => runtime,
                Err(error @ BuildError::Worker { .. }) => {
                    assert!(std::env::var_os("CI").is_none(), "skipped in CI, which must not be: {error}");
                    eprintln!("skipped on {driver}: {error}");
                    continue;
                }
                Err(error) => panic!("the test's runtime: {error}"),
            };
            eprintln!("on {driver}");
            let result = test(runtime);
            if result.failed() {
                return result;
            }
            last = Some(result);
        }
        last.unwrap_or_else(|| panic!("no driver could be had"))
    }

    /// What a test may end in.
    pub trait Outcome {
        /// Whether it is an error.
        fn failed(&self) -> bool;
    }

    impl Outcome for () {
        fn failed(&self) -> bool {
            false
        }
    }

    impl<E> Outcome for Result<(), E> {
        fn failed(&self) -> bool {
            self.is_err()
        }
    }
}
