//! Kernel threads that poll an interface's queues, which stand in for interrupts: a veth has none.

use std::io;

use policies::netlink::netdev::{NapiSetting, Netdev};
use policies::{Cpus, host};
use rustix::process::Pid;

use super::namespace::Namespace;

/// Has each queue of an interface polled by a real-time kernel thread on a core, as Lull's vanilla policy has it on a device
/// without interrupts.
pub(crate) fn poll_by_thread(namespace: &Namespace, interface: &str, core: u32) -> io::Result<()> {
    namespace.run(|| {
        let mut netdev = Netdev::open()?;
        let queues = host::interface(interface).map_err(io::Error::other)?.queues;
        for napi in queues.into_iter().filter_map(|queue| queue.napi) {
            netdev.set_napi(napi.id, NapiSetting::Threaded, 1)?;
            let thread = netdev.napi(napi.id)?.pid.and_then(|pid| i32::try_from(pid).ok());
            let Some(thread) = thread.and_then(Pid::from_raw) else { continue };
            Cpus::one(core).pin(Some(thread))?;
            host::scheduler::set_fifo_priority(thread, host::scheduler::INTERRUPT_THREAD_PRIORITY)?;
        }
        Ok(())
    })
}
