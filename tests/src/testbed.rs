//! Tests inside the two-namespace testbed. Each one's process enters a namespace, so that nothing of the host
//! is touched.

use lab::testbed::{Namespace, SERVER_INTERFACE, Testbed};
use policies::host::scheduler;
use policies::{Cpus, Policy};
use runtime::{Builder, Runtime};

use crate::isolated::driver;

/// Makes the testbed, and moves the calling thread to the server's side.
///
/// # Panics
/// If the testbed can't be made.
pub fn enter(queues: u32) -> Testbed {
    let testbed = Testbed::new(queues).unwrap();
    // The test harness has threads, so only this one moves; runtimes are made from it.
    let file = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(testbed.server.file()));
    Namespace::open(&file).unwrap().enter_process().unwrap();
    testbed
}

/// A runtime on the server's side, its workers on core 0.
///
/// # Panics
/// If it can't be built.
pub fn server_runtime(policy: Policy, workers: usize) -> Runtime {
    server_builder(policy, workers).build().unwrap()
}

/// The builder of [`server_runtime`].
///
/// # Panics
/// Outside of an isolated test with drivers.
pub fn server_builder(policy: Policy, workers: usize) -> Builder {
    Builder::new()
        .ignore_environment()
        .policy(policy)
        .driver(driver())
        .interface(SERVER_INTERFACE)
        .cores(Cpus::one(0))
        .workers(workers)
}

/// Makes the calling thread real-time, below the NAPI's thread. Other programs on its core would make it pause for
/// longer than the grace time, or the suspend timeout, and then the NAPI's thread polls instead of the worker.
///
/// # Panics
/// Without `CAP_SYS_NICE`.
pub fn preempt_other_programs() {
    scheduler::set_fifo_priority(rustix::thread::gettid(), 1).unwrap();
}
