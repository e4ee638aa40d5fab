//! The difference between two snapshots.

use std::time::Duration;

use serde::Serialize;

use super::cpu_time::CpuTime;
use super::napi_threads::NapiThread;
use super::received::RxPackets;

/// What changed between two snapshots.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Delta {
    /// Wall-clock time between the snapshots.
    pub elapsed: Duration,
    pub rx_packets: RxPackets,
    pub net_rx: Vec<u64>,
    /// Packets that each CPU handed to protocols, whether in a softirq, in a kernel thread or in a
    /// busy poll. The index is the CPU's number. Counts all interfaces of all network namespaces,
    /// and packets that GRO merged as one (`processed` in `/proc/net/softnet_stat`).
    pub received_by_cpu: Vec<u64>,
    /// What the kernel threads that poll the interface's queues did; empty if none has one.
    pub napi_threads: Vec<NapiThread>,
    /// Interrupts of each receive queue: `(queue, interrupts)`. Empty on a device without
    /// interrupts.
    pub irqs: Vec<(u32, u64)>,
    /// Interrupts of each transmit queue that doesn't share one with a receive queue.
    pub tx_irqs: Vec<(u32, u64)>,
    /// Packets that busy polls received, in the network namespace (`BusyPollRxPackets`).
    pub busy_poll_rx_packets: u64,
    pub cpus: Vec<CpuTime>,
    pub(super) has_interrupts: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PacketsPer {
    /// `"packets per interrupt"`; on a device without interrupts
    /// `"packets per kernel thread wake"`, or `"packets per softirq"` if no kernel thread polls its
    /// queues.
    pub name: &'static str,
    /// The ratio; infinite if there were packets and no events, NaN if there was neither.
    pub value: f64,
}

impl Delta {
    /// The share of the received packets that busy polls received, 0 to 1.
    pub fn busy_poll_share(&self) -> f64 {
        let packets = self.rx_packets.total();
        if packets == 0 { 0.0 } else { (self.busy_poll_rx_packets as f64 / packets as f64).min(1.0) }
    }

    /// Packets per receive interrupt (Table 5 of the paper). On a device without interrupts: per
    /// wake-up of the kernel threads that poll its queues, or per NET_RX softirq of the machine if
    /// there is none.
    pub fn packets_per_interrupt(&self) -> PacketsPer {
        let (name, events) = if self.has_interrupts {
            ("packets per interrupt", self.irqs.iter().map(|(_, count)| count).sum::<u64>())
        } else if !self.napi_threads.is_empty() {
            ("packets per kernel thread wake", self.napi_threads.iter().map(|thread| thread.wakes).sum())
        } else {
            ("packets per softirq", self.net_rx.iter().sum())
        };
        PacketsPer { name, value: self.rx_packets.total() as f64 / events as f64 }
    }
}
