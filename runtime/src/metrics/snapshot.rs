//! All metrics of a runtime at one time.

use policies::Policy;
use policies::counters::busy_poll_rx_packets;
use policies::netlink::route;

use crate::blocking::BlockingMetrics;
use crate::counters::worker_counters::Metrics;
use crate::worker::current;
use crate::worker::report::WorkerReport;
use crate::worker::runtime_state::RuntimeState;

/// All metrics of a runtime at one time. Workers go on counting while it is taken.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Snapshot {
    /// The policy that was asked for.
    pub policy: Policy,
    /// In the order of the workers' numbers.
    pub workers: Vec<WorkerSnapshot>,
    /// Counts of blocking work.
    pub blocking: BlockingMetrics,
    /// The packets of the runtime's interface. `None` without an interface, or where the kernel
    /// does not count busy polls.
    pub packets: Option<PolledPackets>,
}

/// One worker's part of a [`Snapshot`].
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct WorkerSnapshot {
    /// The worker's number, from 0.
    pub worker: usize,
    /// Its counters and histograms.
    pub metrics: Metrics,
    /// What is in effect on it. `None` until it has started: worker 0 starts in the first
    /// `block_on`.
    pub report: Option<WorkerReport>,
}

/// How many packets came, and how many of them busy polls received. Their ratio over a time is the
/// busy-poll share, which the kernel does not count for each worker.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PolledPackets {
    /// The interface's name.
    pub interface: String,
    /// Packets that the interface has received since it was created.
    pub received: u64,
    /// Packets that busy polls have received since boot, in the network namespace of the calling
    /// thread (`BusyPollRxPackets`). The last poll of each wait is not counted (`net/core/dev.c`,
    /// `busy_poll_stop`).
    pub busy_polled: u64,
}

impl Snapshot {
    /// The metrics of the calling task's runtime, or of the one that the thread has
    /// [entered](crate::Handle::enter). With an interface this asks rtnetlink and reads a file of
    /// `/proc`.
    #[track_caller]
    pub fn take() -> Self {
        Self::of(&current::runtime())
    }

    pub(crate) fn of(runtime: &RuntimeState) -> Self {
        let workers = runtime.workers.iter().map(|worker| WorkerSnapshot {
            worker: worker.index,
            metrics: worker.metrics(),
            report: worker.report(),
        });
        Self {
            policy: runtime.config.policy,
            workers: workers.collect(),
            blocking: runtime.blocking.metrics(),
            packets: runtime.config.interface.as_deref().and_then(PolledPackets::read),
        }
    }
}

impl PolledPackets {
    fn read(interface: &str) -> Option<Self> {
        let link = route::links().ok()?.into_iter().find(|link| link.name == interface)?;
        let busy_polled = busy_poll_rx_packets().ok()?;
        Some(Self { interface: link.name, received: link.rx_packets?, busy_polled })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_an_interface_are_read_and_of_none_are_not() {
        assert_eq!(PolledPackets::read("lo").unwrap().interface, "lo");
        assert_eq!(PolledPackets::read("nonesuch0"), None);
    }
}
