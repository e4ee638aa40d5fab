//! Tests inside the two-namespace testbed. Each one's process enters a namespace, so that nothing
//! of the host is touched.

use std::process::Command;
use std::sync::OnceLock;

use lab::cores::AwakeCores;
use lab::testbed::{CLIENT_INTERFACE, Namespace, SERVER_INTERFACE, Testbed};
use policies::host::{self, scheduler};
use policies::netlink::netdev::{Napi, NapiSetting, Netdev};
use policies::{Cpus, Pid, Policy};
use runtime::{Builder, Runtime};

use crate::isolated::driver;

/// Until the process ends. A virtual machine's idle core may take half a millisecond to wake up,
/// several times what the tests measure. Without the permission they measure that.
static AWAKE: OnceLock<Option<AwakeCores>> = OnceLock::new();

/// Makes the testbed, keeps idle cores awake, and moves the calling thread to the server's side.
pub fn enter(queues: u32) -> Testbed {
    let testbed = Testbed::new(queues).unwrap();
    AWAKE.get_or_init(|| AwakeCores::request().ok());
    // The test harness has threads, so only this one moves; runtimes are made from it.
    let file = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(testbed.server.file()));
    Namespace::open(&file).unwrap().enter_process().unwrap();
    testbed
}

/// The NAPI of the server's first queue, without the id of its thread, which is another one each
/// time it is started.
pub fn napi() -> Napi {
    let mut napi = host::interface(SERVER_INTERFACE).unwrap().queues.remove(0).napi.unwrap();
    napi.pid = None;
    napi
}

/// Whether the interrupts of the server's first queue are deferred.
pub fn is_deferred() -> bool {
    napi().defer_hard_irqs != Some(0)
}

/// Changes links and addresses by the command `ip`.
pub fn ip(arguments: &[&str]) {
    assert!(Command::new("ip").args(arguments).status().unwrap().success(), "{arguments:?}");
}

/// The real-time priority of the kernel thread that receives for the client, above those of tests'
/// threads.
const RECEIVING_PRIORITY: u32 = 50;

/// Gives the client's queues kernel threads on core 1. Without them the softirqs of the server's
/// core receive what the server sends, and a real-time server that never sleeps would keep them
/// from running.
pub fn receive_on_client_core(testbed: &Testbed) {
    let prepare = || {
        let napis =
            || host::interface(CLIENT_INTERFACE).unwrap().queues.into_iter().filter_map(|queue| queue.napi);
        let mut netdev = Netdev::open()?;
        for napi in napis() {
            netdev.set_napi(napi.id, NapiSetting::Threaded, 1)?;
        }
        for napi in napis() {
            let thread = napi.pid.and_then(|pid| Pid::from_raw(pid.try_into().ok()?)).expect("a thread");
            Cpus::one(1).pin(Some(thread))?;
            scheduler::set_fifo_priority(thread, RECEIVING_PRIORITY)?;
        }
        Ok(())
    };
    testbed.client.run(prepare).unwrap();
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
        .ignore_polling_costs()
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
