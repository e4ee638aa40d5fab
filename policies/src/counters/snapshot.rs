//! Reads the counters of an interface and of the machine.

use std::fs;
use std::io;
use std::time::Instant;

use super::cpu_time::CpuTicks;
use super::delta::Delta;
use super::napi_threads::NapiThread;
use super::received::{RxPackets, received_by_cpu, received_since};
use crate::error::Error;
use crate::host::{Interface, irq};

/// The counters of one interface and of the machine at one moment.
///
/// Network counters are those of the calling thread's network namespace.
#[derive(Debug, Clone)]
pub struct Snapshot {
    taken: Instant,
    rx_packets: RxPackets,
    net_rx: Vec<u64>,
    received_by_cpu: Vec<u64>,
    napi_threads: Vec<NapiThread>,
    irqs: QueueCounts,
    tx_irqs: QueueCounts,
    has_interrupts: bool,
    busy_poll_rx_packets: u64,
    cpus: Vec<CpuTicks>,
}

/// The counters of a snapshot, since the machine booted or the interface was created.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Totals<'a> {
    /// Received packets.
    pub rx_packets: &'a RxPackets,
    /// Interrupts of each receive queue: `(queue, interrupts)`.
    pub irqs: &'a [(u32, u64)],
    /// Interrupts of each transmit queue that doesn't share one with a receive queue.
    pub tx_irqs: &'a [(u32, u64)],
    /// NET_RX softirqs of each CPU.
    pub net_rx: &'a [u64],
    /// Packets that busy polls received, in the network namespace (`BusyPollRxPackets`).
    pub busy_poll_rx_packets: u64,
    /// What each kernel thread that polls a queue has done since it was started.
    pub napi_threads: &'a [NapiThread],
}

/// `(queue, count)`.
type QueueCounts = Vec<(u32, u64)>;

impl Snapshot {
    /// Reads all counters.
    ///
    /// # Errors
    /// [`Error::Kernel`] if a file below `/proc` or rtnetlink can't be read.
    pub fn take(interface: &Interface) -> Result<Self, Error> {
        let (irqs, tx_irqs) = irq_counts(interface).map_err(Error::kernel("read /proc/interrupts"))?;
        Ok(Self {
            taken: Instant::now(),
            rx_packets: RxPackets::read(interface)?,
            net_rx: net_rx_softirqs().map_err(Error::kernel("read /proc/softirqs"))?,
            received_by_cpu: received_by_cpu().map_err(Error::kernel("read /proc/net/softnet_stat"))?,
            napi_threads: NapiThread::read_all(interface),
            irqs,
            tx_irqs,
            has_interrupts: interface.has_interrupts(),
            busy_poll_rx_packets: busy_poll_rx_packets()
                .map_err(Error::kernel("read /proc/thread-self/net/netstat"))?,
            cpus: CpuTicks::read_all().map_err(Error::kernel("read /proc/stat"))?,
        })
    }

    /// The counters since the machine booted or the interface was created.
    pub fn totals(&self) -> Totals<'_> {
        Totals {
            rx_packets: &self.rx_packets,
            irqs: &self.irqs,
            tx_irqs: &self.tx_irqs,
            net_rx: &self.net_rx,
            busy_poll_rx_packets: self.busy_poll_rx_packets,
            napi_threads: &self.napi_threads,
        }
    }

    /// The difference to an earlier snapshot.
    pub fn since(&self, before: &Snapshot) -> Delta {
        let difference = |now: u64, then: u64| now.saturating_sub(then);
        let pairs = |now: &[(u32, u64)], then: &[(u32, u64)]| {
            now.iter()
                .map(|&(queue, count)| {
                    let earlier = then.iter().find(|(other, _)| *other == queue).map_or(0, |pair| pair.1);
                    (queue, difference(count, earlier))
                })
                .collect::<Vec<_>>()
        };
        let rx_packets = match (&self.rx_packets, &before.rx_packets) {
            (RxPackets::PerQueue(now), RxPackets::PerQueue(then)) => RxPackets::PerQueue(pairs(now, then)),
            (now, then) => RxPackets::Interface(difference(now.total(), then.total())),
        };
        Delta {
            elapsed: self.taken - before.taken,
            rx_packets,
            net_rx: self
                .net_rx
                .iter()
                .zip(&before.net_rx)
                .map(|(now, then)| difference(*now, *then))
                .collect(),
            received_by_cpu: self
                .received_by_cpu
                .iter()
                .enumerate()
                .map(|(cpu, now)| {
                    let then = before.received_by_cpu.get(cpu).copied().unwrap_or(0);
                    received_since(*now, then)
                })
                .collect(),
            napi_threads: self.napi_threads.iter().map(|thread| thread.since(&before.napi_threads)).collect(),
            irqs: pairs(&self.irqs, &before.irqs),
            tx_irqs: pairs(&self.tx_irqs, &before.tx_irqs),
            busy_poll_rx_packets: difference(self.busy_poll_rx_packets, before.busy_poll_rx_packets),
            cpus: self.cpus.iter().zip(&before.cpus).map(|(now, then)| now.since(then)).collect(),
            has_interrupts: self.has_interrupts,
        }
    }
}

/// Interrupts of the receive queues, and of the transmit queues that don't share one with them.
fn irq_counts(interface: &Interface) -> io::Result<(QueueCounts, QueueCounts)> {
    if !interface.has_interrupts() {
        return Ok(Default::default());
    }
    let lines = irq::all()?;
    let count = |irq: u32| Some(lines.get(&irq)?.counts.iter().sum());
    let rx = interface.queues.iter().filter_map(|queue| Some((queue.index, count(queue.irq?)?)));
    let shared = |irq: u32| interface.queues.iter().any(|queue| queue.irq == Some(irq));
    let tx = interface
        .tx_queues
        .iter()
        .filter_map(|queue| Some((queue.index, count(queue.irq.filter(|&irq| !shared(irq))?)?)));
    Ok((rx.collect(), tx.collect()))
}

fn net_rx_softirqs() -> io::Result<Vec<u64>> {
    let text = fs::read_to_string("/proc/softirqs")?;
    let line = text.lines().find_map(|line| line.trim().strip_prefix("NET_RX:"));
    Ok(line
        .ok_or(io::ErrorKind::InvalidData)?
        .split_whitespace()
        .map(|word| word.parse().unwrap_or(0))
        .collect())
}

/// Packets that busy polls have received since boot, in the calling thread's network namespace (`BusyPollRxPackets` in
/// `/proc/thread-self/net/netstat`).
///
/// # Errors
/// If the file can't be read; `Unsupported` if the kernel has no such counter.
pub fn busy_poll_rx_packets() -> io::Result<u64> {
    // /proc/self would be the namespace of the process's main thread.
    let text = fs::read_to_string("/proc/thread-self/net/netstat")?;
    parse_netstat(&text, "TcpExt:", "BusyPollRxPackets").ok_or_else(|| {
        io::Error::new(io::ErrorKind::Unsupported, "this kernel has no BusyPollRxPackets counter")
    })
}

/// Finds a counter in `netstat`, which has pairs of lines with the same prefix: names, then values.
fn parse_netstat(text: &str, prefix: &str, counter: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(prefix));
    let (names, values) = (lines.next()?, lines.next()?);
    names
        .split_whitespace()
        .zip(values.split_whitespace())
        .find(|(name, _)| *name == counter)
        .and_then(|(_, value)| value.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host;

    #[test]
    fn a_netstat_counter_is_found_by_its_column() {
        let text = "TcpExt: SyncookiesSent BusyPollRxPackets\nTcpExt: 3 42\nIpExt: InNoRoutes\nIpExt: 1\n";
        assert_eq!(parse_netstat(text, "TcpExt:", "BusyPollRxPackets"), Some(42));
        assert_eq!(parse_netstat(text, "TcpExt:", "Nonesuch"), None);
    }

    #[test]
    fn packets_on_loopback_are_in_the_difference() {
        let loopback = host::interface("lo").unwrap();
        let before = Snapshot::take(&loopback).unwrap();
        let receiver = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..10 {
            receiver.send_to(b"packet", receiver.local_addr().unwrap()).unwrap();
        }
        let delta = Snapshot::take(&loopback).unwrap().since(&before);
        assert!(delta.rx_packets.total() >= 10, "{:?}", delta.rx_packets);
        assert_eq!(delta.packets_per_interrupt().name, "packets per softirq");
        assert_eq!(delta.busy_poll_share(), 0.0);
        let received: u64 = delta.received_by_cpu.iter().sum();
        assert!(received >= 10, "{:?}", delta.received_by_cpu);
        assert_eq!(delta.napi_threads, []);
    }
}
