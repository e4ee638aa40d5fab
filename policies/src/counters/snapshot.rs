//! The counters of an interface and of the machine at one moment, and what changed between two.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use procfs::{CurrentSI, KernelStats};
use serde::Serialize;

use super::napi_threads::NapiThread;
use super::received::{RxPackets, busy_poll_rx_packets};
use crate::error::Error;
use crate::host::{Interface, irq};

/// The counters of one interface and of the machine at one moment, since the machine booted or the
/// interface was created.
///
/// Network counters are those of the calling thread's network namespace.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Snapshot {
    taken: Instant,
    pub rx_packets: RxPackets,
    pub net_rx: Vec<u64>,
    received_by_cpu: Vec<u64>,
    /// What each kernel thread that polls a queue has done since it was started.
    pub napi_threads: Vec<NapiThread>,
    /// Interrupts of each receive queue: `(queue, interrupts)`.
    pub irqs: Vec<(u32, u64)>,
    has_interrupts: bool,
    /// Packets that busy polls received, in the network namespace (`BusyPollRxPackets`).
    pub busy_poll_rx_packets: u64,
    cpus: Vec<CpuTicks>,
}

impl Snapshot {
    /// Reads all counters.
    ///
    /// # Errors
    /// [`Error::Kernel`] if a file below `/proc` or rtnetlink can't be read.
    pub fn take(interface: &Interface) -> Result<Self, Error> {
        Ok(Self {
            taken: Instant::now(),
            rx_packets: RxPackets::read(interface)?,
            net_rx: net_rx_softirqs().map_err(Error::kernel("read /proc/softirqs"))?,
            received_by_cpu: received_by_cpu().map_err(Error::kernel("read /proc/net/softnet_stat"))?,
            napi_threads: NapiThread::read_all(interface),
            irqs: irq_counts(interface).map_err(Error::kernel("read /proc/interrupts"))?,
            has_interrupts: interface.has_interrupts(),
            busy_poll_rx_packets: busy_poll_rx_packets()
                .map_err(Error::kernel("read /proc/thread-self/net/netstat"))?,
            cpus: CpuTicks::read_all().map_err(Error::kernel("read /proc/stat"))?,
        })
    }

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
            busy_poll_rx_packets: difference(self.busy_poll_rx_packets, before.busy_poll_rx_packets),
            cpus: self.cpus.iter().zip(&before.cpus).map(|(now, then)| now.since(then)).collect(),
            has_interrupts: self.has_interrupts,
        }
    }
}

fn irq_counts(interface: &Interface) -> io::Result<Vec<(u32, u64)>> {
    if !interface.has_interrupts() {
        return Ok(Vec::new());
    }
    let lines = irq::all()?;
    let count = |irq: u32| Some(lines.get(&irq)?.counts.iter().sum());
    Ok(interface.queues.iter().filter_map(|queue| Some((queue.index, count(queue.irq?)?))).collect())
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

/// Reads `processed` of `/proc/net/softnet_stat`: index is the CPU's number, and offline CPUs have 0.
///
/// `__netif_receive_skb_core` counts there what it hands to protocols: in a softirq, in a NAPI's
/// kernel thread and in a busy poll alike.
fn received_by_cpu() -> io::Result<Vec<u64>> {
    parse_softnet_stat(&fs::read_to_string("/proc/net/softnet_stat")?)
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn parse_softnet_stat(text: &str) -> Option<Vec<u64>> {
    /// The column of the CPU's number, from 0 (Linux 5.10).
    const CPU: usize = 12;
    let mut received = Vec::new();
    for (position, line) in text.lines().enumerate() {
        let mut columns = line.split_whitespace().map(|column| u64::from_str_radix(column, 16).ok());
        let processed = columns.next()??;
        // Offline CPUs have no line. Older kernels don't say which CPU a line is for.
        let cpu = match columns.nth(CPU - 1) {
            Some(cpu) => usize::try_from(cpu?).ok()?,
            None => position,
        };
        if received.len() <= cpu {
            received.resize(cpu + 1, 0);
        }
        received[cpu] = processed;
    }
    Some(received)
}

/// The difference of two readings of a counter that the kernel keeps in 32 bits.
fn received_since(now: u64, then: u64) -> u64 {
    now.wrapping_sub(then) & u64::from(u32::MAX)
}

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
    /// Packets that busy polls received, in the network namespace (`BusyPollRxPackets`).
    pub busy_poll_rx_packets: u64,
    pub cpus: Vec<CpuTime>,
    pub(super) has_interrupts: bool,
}

impl Delta {
    /// The share of the received packets that busy polls received, 0 to 1.
    pub fn busy_poll_share(&self) -> f64 {
        let packets = self.rx_packets.total();
        if packets == 0 { 0.0 } else { (self.busy_poll_rx_packets as f64 / packets as f64).min(1.0) }
    }

    /// Packets per receive interrupt (Table 5 of the paper). On a device without interrupts: per
    /// wake-up of the kernel threads that poll its queues, or per NET_RX softirq of the machine if
    /// there is none. Infinite if there were packets and no events, NaN if there was neither.
    pub fn packets_per_interrupt(&self) -> f64 {
        let events: u64 = if self.has_interrupts {
            self.irqs.iter().map(|(_, count)| count).sum()
        } else if !self.napi_threads.is_empty() {
            self.napi_threads.iter().map(|thread| thread.wakes).sum()
        } else {
            self.net_rx.iter().sum()
        };
        self.rx_packets.total() as f64 / events as f64
    }
}

/// How one CPU spent an interval. The kernel counts in ticks of 10 ms (`USER_HZ`).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CpuTime {
    /// Not idle: user, system, interrupts.
    pub busy: Duration,
    /// Part of `busy`: softirqs, except those that ran on behalf of a system call.
    pub softirq: Duration,
    /// Taken by the hypervisor.
    pub steal: Duration,
}

/// The counters of one CPU in `/proc/stat`, in ticks of `USER_HZ`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct CpuTicks {
    busy: u64,
    softirq: u64,
    steal: u64,
}

impl CpuTicks {
    /// The ticks of each CPU since boot.
    pub(super) fn read_all() -> io::Result<Vec<Self>> {
        let stats = KernelStats::current().map_err(io::Error::other)?;
        Ok(stats
            .cpu_time
            .into_iter()
            .map(|cpu| {
                let softirq = cpu.softirq.unwrap_or(0);
                Self {
                    busy: cpu.user + cpu.nice + cpu.system + cpu.irq.unwrap_or(0) + softirq,
                    softirq,
                    steal: cpu.steal.unwrap_or(0),
                }
            })
            .collect())
    }

    pub(super) fn since(&self, before: &CpuTicks) -> CpuTime {
        let tick = Duration::from_secs(1) / u32::try_from(procfs::ticks_per_second()).unwrap_or(100);
        let time = |now: u64, then: u64| tick * u32::try_from(now.saturating_sub(then)).unwrap_or(u32::MAX);
        CpuTime {
            busy: time(self.busy, before.busy),
            softirq: time(self.softirq, before.softirq),
            steal: time(self.steal, before.steal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host;

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
        assert!(delta.packets_per_interrupt() > 0.0);
        assert_eq!(delta.busy_poll_share(), 0.0);
        let received: u64 = delta.received_by_cpu.iter().sum();
        assert!(received >= 10, "{:?}", delta.received_by_cpu);
        assert_eq!(delta.napi_threads, []);
    }

    #[test]
    fn lines_belong_to_the_cpu_in_their_late_column() {
        let text = "0000000a 0 0 0 0 0 0 0 0 0 0 0 00000000 00000000 00000000\n\
                    000000ff 0 0 0 0 0 0 0 0 0 0 0 00000003 00000000 00000000\n";
        assert_eq!(parse_softnet_stat(text), Some(vec![10, 0, 0, 255]));
    }

    #[test]
    fn without_that_column_lines_are_in_the_order_of_cpus() {
        assert_eq!(parse_softnet_stat("0000000a 0 0\n0000000b 0 0\n"), Some(vec![10, 11]));
        assert_eq!(parse_softnet_stat("not hexadecimal\n"), None);
    }

    #[test]
    fn a_counter_that_overflowed_still_gives_the_difference() {
        assert_eq!(received_since(5, 0xffff_fffe), 7);
        assert_eq!(received_since(7, 5), 2);
    }
}
