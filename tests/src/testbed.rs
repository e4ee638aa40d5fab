//! Tests inside the two-namespace testbed. Each one's process enters a namespace, so that nothing
//! of the host is touched.

use std::process::Command;
use std::sync::OnceLock;

use lab::cores::AwakeCores;
use lab::testbed::{
    CLIENT_INTERFACE, INTERRUPT_THREAD_PRIORITY, Namespace, SERVER_INTERFACE, Testbed, poll_by_threads,
};
use policies::host::{self, scheduler};
use policies::netlink::netdev::Napi;
use policies::{Cpus, Guard, JournalDir, Lifetime, Plan, Policy, Settings};
use runtime::{Builder, Runtime};

use crate::isolated::driver;

/// Until the process ends. A virtual machine's idle core may take half a millisecond to wake up,
/// several times what the tests measure. Without the permission they measure that.
static AWAKE: OnceLock<Option<AwakeCores>> = OnceLock::new();

/// As [`enter_plain`], with real-time kernel threads on core 0 in the place of interrupts, which a
/// veth has not.
pub fn enter(queues: u32) -> Testbed {
    let testbed = enter_plain(queues);
    poll_by_threads(&testbed.server, SERVER_INTERFACE, &[0], INTERRUPT_THREAD_PRIORITY).unwrap();
    testbed
}

/// Makes the testbed, keeps idle cores awake, and moves the calling thread to the server's side.
pub fn enter_plain(queues: u32) -> Testbed {
    let testbed = Testbed::new(queues).unwrap();
    AWAKE.get_or_init(|| AwakeCores::request().ok());
    // The test harness has threads, so only this one moves; runtimes are made from it.
    let file = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(testbed.server.file()));
    Namespace::open(&file).unwrap().enter_process().unwrap();
    testbed
}

/// Applies a policy to the server's interface.
pub fn apply(policy: Policy, settings: &Settings) -> Guard {
    let plan = Plan::new(policy, &host::interface(SERVER_INTERFACE).unwrap(), settings);
    policies::apply(&plan, Lifetime::Process, &JournalDir::default()).unwrap()
}

/// The NAPI of the server's first queue, without the id of its thread, which is another one each
/// time it is started.
pub fn napi() -> Napi {
    let mut napi = host::interface(SERVER_INTERFACE).unwrap().queues.remove(0).napi.unwrap();
    napi.pid = None;
    napi
}

/// Steers the packets of the server's first queue to a core. Each policy stops that where a thread
/// polls the queue, so that it has something to restore.
pub fn steer_to(core: u32) {
    let file = format!("/sys/class/net/{SERVER_INTERFACE}/queues/rx-0/rps_cpus");
    std::fs::write(file, Cpus::one(core).to_mask()).unwrap();
}

/// Whether the interrupts of the server's first queue are deferred.
pub fn is_deferred() -> bool {
    napi().defer_hard_irqs != Some(0)
}

/// Changes links and addresses by the command `ip`.
pub fn ip(arguments: &[&str]) {
    assert!(Command::new("ip").args(arguments).status().unwrap().success(), "{arguments:?}");
}

/// Gives the client's queues kernel threads on core 1. Without them the softirqs of the server's
/// core receive what the server sends, and a real-time server that never sleeps would keep them
/// from running.
pub fn receive_on_client_core(testbed: &Testbed) {
    poll_by_threads(&testbed.client, CLIENT_INTERFACE, &[1], INTERRUPT_THREAD_PRIORITY).unwrap();
}

/// A runtime on the server's side, its workers on core 0.
pub fn server_runtime(policy: Policy, workers: usize) -> Runtime {
    server_builder(policy, workers).build().unwrap()
}

/// The builder of [`server_runtime`]. Only the load decides how a queue is driven, not what polling
/// costs, which differs from moment to moment on a shared machine.
pub fn server_builder(policy: Policy, workers: usize) -> Builder {
    Builder::new()
        .ignore_environment()
        .poll_always()
        .policy(policy)
        .driver(driver())
        .interface(SERVER_INTERFACE)
        .cores(Cpus::one(0))
        .workers(workers)
}

/// Makes the calling thread real-time, below the NAPI's thread. Other programs on its core would
/// make it pause for longer than the grace time, or the suspend timeout, and then the NAPI's thread
/// polls instead of the worker.
pub fn preempt_other_programs() {
    scheduler::set_fifo_priority(rustix::thread::gettid(), 1).unwrap();
}

/// Moves the calling thread to the client's core, and makes it real-time. Threads that it starts
/// inherit that.
pub fn preempt_on_client_core() {
    Cpus::one(1).pin(None).unwrap();
    preempt_other_programs();
}
