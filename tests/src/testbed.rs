//! Tests inside the two-namespace testbed. Each moves its own child process into a namespace, so that they
//! run side by side and nothing of the host is touched.

use std::process::Command;

use lab::namespace::Namespace;
use lab::testbed::{SERVER_INTERFACE, Testbed};
use policies::{Cpus, Policy};
use runtime::{Builder, DriverKind, Runtime};

/// Runs the test `name` again in a process of its own, where `INSIDE` is set; `true` in there. It runs
/// on each driver that can poll with suspension, one after the other.
pub fn in_own_process(name: &str) -> bool {
    in_own_process_on(&[DriverKind::Epoll, DriverKind::Hybrid], name)
}

/// Likewise, on these drivers.
pub fn in_own_process_on(drivers: &[DriverKind], name: &str) -> bool {
    if std::env::var_os("INSIDE").is_some() {
        return true;
    }
    if crate::root().is_none() {
        return false;
    }
    // One at a time: they measure delays, and there may be two cores.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for driver in drivers {
        let output = Command::new(std::env::current_exe().unwrap())
            .args([name, "--nocapture", "--test-threads=1"])
            .env("INSIDE", driver.to_string())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "on {driver}: {}\n{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    false
}

/// The driver that this process is to test.
pub fn driver() -> DriverKind {
    std::env::var("INSIDE").unwrap().parse().unwrap()
}

/// Makes the testbed, and this process a citizen of the server's side.
pub fn enter(queues: u32) -> Testbed {
    let testbed = Testbed::new(queues).unwrap();
    // The test harness has threads, so only this one moves; runtimes are made from it.
    let file = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(testbed.server.file()));
    Namespace::open(&file).unwrap().enter_process().unwrap();
    testbed
}

/// A runtime on the server's side, its workers on core 0.
pub fn server_runtime(policy: Policy, workers: usize) -> Runtime {
    server_builder(policy, workers).build().unwrap()
}

/// What [`server_runtime`] is built by.
pub fn server_builder(policy: Policy, workers: usize) -> Builder {
    Builder::new()
        .ignore_environment()
        .policy(policy)
        .driver(driver())
        .interface(SERVER_INTERFACE)
        .cores(Cpus::one(0))
        .workers(workers)
}
