//! What receives a queue's packets in the place of an interrupt: a veth has none.

use std::fs;
use std::io;

use policies::netlink::netdev::{NapiSetting, Netdev};
use policies::{Cpus, host};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use super::namespace::Namespace;
use super::veth::{SERVER_INTERFACE, Testbed};

/// The priority that the kernel gives its interrupt threads (`sched_set_fifo`): `SCHED_FIFO` 50.
pub const INTERRUPT_THREAD_PRIORITY: u32 = 50;

/// Gives each queue of an interface a kernel thread that packets wake, on the queue's core of
/// `cores`: with a `SCHED_FIFO` priority, or with 0 an ordinary one. Policies leave its class, and
/// move it to the core where the queue's interrupt would go.
pub fn poll_by_threads(
    namespace: &Namespace,
    interface: &str,
    cores: &[u32],
    priority: u32,
) -> io::Result<()> {
    each_napi(namespace, interface, |netdev, napi, queue| {
        // A thread of before is ended: who looks at it has noted its class.
        netdev.set_napi(napi, NapiSetting::Threaded, 0)?;
        netdev.set_napi(napi, NapiSetting::Threaded, 1)?;
        let Some(thread) = thread_of(netdev, napi)? else { return Ok(()) };
        of_queue(cores, queue).pin(Some(thread))?;
        host::scheduler::set_fifo_priority(thread, priority)
    })
    .map(drop)
}

/// The core of a queue's interrupt; queues beyond the last core begin with the first again.
fn of_queue(cores: &[u32], queue: u32) -> Cpus {
    Cpus::one(cores[queue as usize % cores.len()])
}

/// Calls `action` with each NAPI of an interface, and the index of its queue.
fn each_napi<T: Send>(
    namespace: &Namespace,
    interface: &str,
    action: impl Fn(&mut Netdev, u32, u32) -> io::Result<T> + Sync,
) -> io::Result<Vec<T>> {
    namespace.run(|| {
        let mut netdev = Netdev::open()?;
        let queues = host::interface(interface).map_err(io::Error::other)?.queues.into_iter();
        queues.filter_map(|queue| Some(action(&mut netdev, queue.napi?.id, queue.index))).collect()
    })
}

/// What stands in for the interrupt of a server's queue. No one of them is an interrupt; how far
/// results depend on the choice says how far to trust them.
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
    /// Receive packet steering: the sender's core polls the queue, and the softirq that it raises
    /// on the core of the interrupt does the rest. No context switch, but the packets of busy polls
    /// pass that softirq, too, and polling a queue that nobody suspends costs the server nothing.
    Rps,
    /// None of them: the interrupt of a network card.
    Interrupt,
}

policies::names!(
    Receiver, "receiver":
    Fifo = "fifo", Thread = "thread", Rps = "rps", Interrupt = "interrupt"
);

impl Receiver {
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::Fifo => "a real-time kernel thread",
            Self::Thread => "an ordinary kernel thread",
            Self::Rps => "the softirq of packet steering (RPS)",
            Self::Interrupt => "a network card's interrupt",
        }
    }

    /// Before the server starts: starts the threads that receive its packets on these cores.
    pub(crate) fn prepare(self, testbed: &Testbed, cores: &[u32]) -> io::Result<()> {
        let threads = |priority| poll_by_threads(&testbed.server, SERVER_INTERFACE, cores, priority);
        match self {
            Self::Fifo => threads(INTERRUPT_THREAD_PRIORITY),
            Self::Thread => threads(0),
            // The server's policy may stop steering.
            Self::Rps | Self::Interrupt => Ok(()),
        }
    }

    /// Makes it receive the packets of a server that runs, each queue's on its core.
    pub fn receive(self, testbed: &Testbed, server: u32, cores: &[u32]) -> io::Result<()> {
        each_napi(&testbed.server, SERVER_INTERFACE, |netdev, napi, queue| {
            netdev.set_napi(napi, NapiSetting::Threaded, 0)?;
            let steered = if self == Self::Rps { of_queue(cores, queue) } else { Cpus::default() };
            fs::write(rps_cpus(server, queue), steered.to_mask())
        })?;
        self.prepare(testbed, cores)
    }

    /// Whether it receives. A supervisor of the server that finds the queue changed when it starts
    /// takes it for reset by its device, and sets its own receiver again.
    pub fn receives(self, testbed: &Testbed, server: u32, cores: &[u32]) -> io::Result<bool> {
        let receive = each_napi(&testbed.server, SERVER_INTERFACE, |netdev, napi, queue| {
            let priority = thread_of(netdev, napi)?.map(host::scheduler::fifo_priority).transpose()?;
            Ok(match (self, priority) {
                (Self::Fifo, priority) => priority > Some(0),
                (Self::Thread, priority) => priority == Some(0),
                (Self::Rps, None) => {
                    let mask = fs::read_to_string(rps_cpus(server, queue))?;
                    Cpus::from_mask(mask.trim()).is_ok_and(|steered| steered == of_queue(cores, queue))
                }
                (Self::Rps, Some(_)) => false,
                (Self::Interrupt, _) => true,
            })
        });
        Ok(receive?.into_iter().all(|receives| receives))
    }
}

fn thread_of(netdev: &mut Netdev, napi: u32) -> io::Result<Option<Pid>> {
    Ok(netdev.napi(napi)?.pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw))
}

/// By the server's view of /sys, which is of its network namespace.
fn rps_cpus(server: u32, queue: u32) -> String {
    format!("/proc/{server}/root/sys/class/net/{SERVER_INTERFACE}/queues/rx-{queue}/rps_cpus")
}
