//! Kernel threads that poll an interface's queues, which stand in for interrupts: a veth has none.

use std::io;

use policies::netlink::netdev::{NapiSetting, Netdev};
use policies::{Cpus, host};
use rustix::process::{Pid, setpriority_process};

use super::namespace::Namespace;

/// What a kernel thread stands in for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueThread {
    /// The server's interrupts: a real-time thread, as Lull's vanilla policy has it on a device without interrupts.
    Interrupt,
    /// The receiving of clients on other machines: half the weight of the client, with which it shares a core.
    Client,
}

impl QueueThread {
    /// The nice value at which a thread has half the weight of one at 0.
    const HALF_WEIGHT: i32 = 3;
}

/// Has each queue of an interface polled by a kernel thread on a core.
pub(crate) fn poll_by_thread(
    namespace: &Namespace,
    interface: &str,
    core: u32,
    stands_for: QueueThread,
) -> io::Result<()> {
    namespace.run(|| {
        let mut netdev = Netdev::open()?;
        let queues = host::interface(interface).map_err(io::Error::other)?.queues;
        for napi in queues.into_iter().filter_map(|queue| queue.napi) {
            netdev.set_napi(napi.id, NapiSetting::Threaded, 1)?;
            let thread = netdev.napi(napi.id)?.pid.and_then(|pid| i32::try_from(pid).ok());
            let Some(thread) = thread.and_then(Pid::from_raw) else { continue };
            Cpus::one(core).pin(Some(thread))?;
            match stands_for {
                QueueThread::Interrupt => {
                    host::scheduler::set_fifo_priority(thread, host::scheduler::INTERRUPT_THREAD_PRIORITY)?;
                }
                QueueThread::Client => setpriority_process(Some(thread), QueueThread::HALF_WEIGHT)?,
            }
        }
        Ok(())
    })
}
