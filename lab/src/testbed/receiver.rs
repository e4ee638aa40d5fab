//! What receives a queue's packets in the place of an interrupt: a veth has none.

use std::io;

use policies::netlink::netdev::{NapiSetting, Netdev};
use policies::{Cpus, host};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use super::namespace::Namespace;
use super::veth::{SERVER_INTERFACE, Testbed};

/// The priority that the kernel gives its interrupt threads (`sched_set_fifo`): `SCHED_FIFO` 50.
pub const INTERRUPT_THREAD_PRIORITY: u32 = 50;

/// Gives each queue of an interface a kernel thread that packets wake, on a core: with a
/// `SCHED_FIFO` priority, or with 0 an ordinary one. Policies leave its class, and move it to the
/// core where the queue's interrupt would go.
pub fn poll_by_threads(namespace: &Namespace, interface: &str, core: u32, priority: u32) -> io::Result<()> {
    namespace.run(|| {
        let mut netdev = Netdev::open()?;
        for queue in host::interface(interface).map_err(io::Error::other)?.queues {
            let Some(napi) = queue.napi else { continue };
            // A thread of before is ended: who looks at it has noted its class.
            netdev.set_napi(napi.id, NapiSetting::Threaded, 0)?;
            netdev.set_napi(napi.id, NapiSetting::Threaded, 1)?;
            let Some(thread) = thread_of(&mut netdev, napi.id)? else { continue };
            Cpus::one(core).pin(Some(thread))?;
            host::scheduler::set_fifo_priority(thread, priority)?;
        }
        Ok(())
    })
}

/// What stands in for the interrupt of a server's queue. Neither is an interrupt; how far results
/// depend on the choice says how far to trust them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Receiver {
    /// A real-time kernel thread on the core of the interrupt. It preempts the server, as an
    /// interrupt does, but for a context switch more.
    #[default]
    Fifo,
    /// The NAPI's kernel thread as it comes (`SCHED_OTHER`), on the same core. It takes turns with
    /// the server.
    Thread,
}

policies::names!(Receiver, "receiver": Fifo = "fifo", Thread = "thread");

impl Receiver {
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::Fifo => "a real-time kernel thread",
            Self::Thread => "an ordinary kernel thread",
        }
    }

    /// Starts the threads that receive the server's packets, on a core.
    pub fn receive(self, testbed: &Testbed, core: u32) -> io::Result<()> {
        let priority = if self == Self::Fifo { INTERRUPT_THREAD_PRIORITY } else { 0 };
        poll_by_threads(&testbed.server, SERVER_INTERFACE, core, priority)
    }

    /// Whether it receives. A supervisor of the server that finds the queue changed when it starts
    /// takes it for reset by its device, and sets its own receiver again.
    pub fn receives(self, testbed: &Testbed) -> io::Result<bool> {
        testbed.server.run(|| {
            let mut netdev = Netdev::open()?;
            for queue in host::interface(SERVER_INTERFACE).map_err(io::Error::other)?.queues {
                let Some(napi) = queue.napi else { continue };
                let Some(thread) = thread_of(&mut netdev, napi.id)? else { return Ok(false) };
                if (host::scheduler::fifo_priority(thread)? > 0) != (self == Self::Fifo) {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }
}

fn thread_of(netdev: &mut Netdev, napi: u32) -> io::Result<Option<Pid>> {
    Ok(netdev.napi(napi)?.pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw))
}
