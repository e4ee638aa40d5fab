//! What the kernel counts, before and after a run, and the paper's figures from it.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use procfs::{CurrentSI, KernelStats};
use serde::Serialize;

pub use crate::perf::{PerfCounters, PerfReading, PerfTarget};

use crate::netlink::netdev::Netdev;
use crate::netlink::route;
use crate::{Error, Interface, irq};

/// The counters of one interface and of the machine, at one moment.
///
/// Network counters are those of the calling thread's network namespace.
#[derive(Debug, Clone)]
pub struct Snapshot {
    taken: Instant,
    rx_packets: RxPackets,
    net_rx: Vec<u64>,
    irqs: QueueCounts,
    tx_irqs: QueueCounts,
    has_interrupts: bool,
    busy_poll_rx_packets: u64,
    cpus: Vec<CpuTicks>,
}

/// A snapshot's counters, since the machine or the interface was started.
#[derive(Debug, Clone, Copy)]
pub struct Totals<'a> {
    /// Packets received.
    pub rx_packets: &'a RxPackets,
    /// Interrupts by receive queue.
    pub irqs: &'a [(u32, u64)],
    /// Interrupts by send queue, of those that have one of their own.
    pub tx_irqs: &'a [(u32, u64)],
    /// NET_RX softirqs by CPU.
    pub net_rx: &'a [u64],
    /// Packets that a busy poll got, in this network namespace.
    pub busy_poll_rx_packets: u64,
}

/// Packets received.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RxPackets {
    /// By queue: `(queue, packets)`.
    PerQueue(Vec<(u32, u64)>),
    /// The interface's sum; its driver doesn't count by queue.
    Interface(u64),
}

impl RxPackets {
    /// The sum over all queues.
    pub fn total(&self) -> u64 {
        match self {
            RxPackets::PerQueue(queues) => queues.iter().map(|(_, packets)| packets).sum(),
            RxPackets::Interface(packets) => *packets,
        }
    }
}

/// A count for each queue, with the queue's number.
type QueueCounts = Vec<(u32, u64)>;

/// What one CPU did, in ticks of `USER_HZ`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct CpuTicks {
    busy: u64,
    softirq: u64,
    idle: u64,
    steal: u64,
}

/// How one CPU spent a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CpuTime {
    /// Running anything: user, system, interrupts. Counted by ticks of 10 ms.
    pub busy: Duration,
    /// Of that, in softirqs that interrupted something (those on behalf of a system call count there).
    pub softirq: Duration,
    /// Idle or waiting for a disk.
    pub idle: Duration,
    /// Taken away by the hypervisor.
    pub steal: Duration,
}

/// What changed between two snapshots.
#[derive(Debug, Clone, Serialize)]
pub struct Delta {
    /// Wall-clock time between them.
    pub elapsed: Duration,
    /// Packets received.
    pub rx_packets: RxPackets,
    /// NET_RX softirqs by CPU.
    pub net_rx: Vec<u64>,
    /// Interrupts by receive queue: `(queue, interrupts)`; empty on a device without them.
    pub irqs: Vec<(u32, u64)>,
    /// Interrupts by send queue, of those that have one of their own.
    pub tx_irqs: Vec<(u32, u64)>,
    /// Packets that a busy poll got out of the queue (`BusyPollRxPackets`).
    pub busy_poll_rx_packets: u64,
    /// How each CPU spent the time.
    pub cpus: Vec<CpuTime>,
    has_interrupts: bool,
}

impl Snapshot {
    /// Reads all counters.
    pub fn take(interface: &Interface) -> Result<Self, Error> {
        let (irqs, tx_irqs) = irq_counts(interface).map_err(Error::kernel("read /proc/interrupts"))?;
        Ok(Self {
            taken: Instant::now(),
            rx_packets: rx_packets(interface)?,
            net_rx: net_rx_softirqs().map_err(Error::kernel("read /proc/softirqs"))?,
            irqs,
            tx_irqs,
            has_interrupts: interface.has_interrupts(),
            busy_poll_rx_packets: busy_poll_rx_packets()
                .map_err(Error::kernel("read /proc/thread-self/net/netstat"))?,
            cpus: cpu_ticks().map_err(Error::kernel("read /proc/stat"))?,
        })
    }

    /// All counters, as the kernel has them: since the machine or the interface was started.
    pub fn totals(&self) -> Totals<'_> {
        Totals {
            rx_packets: &self.rx_packets,
            irqs: &self.irqs,
            tx_irqs: &self.tx_irqs,
            net_rx: &self.net_rx,
            busy_poll_rx_packets: self.busy_poll_rx_packets,
        }
    }

    /// What changed since `before`.
    pub fn since(&self, before: &Snapshot) -> Delta {
        let differ = |now: u64, then: u64| now.saturating_sub(then);
        let pairs = |now: &[(u32, u64)], then: &[(u32, u64)]| {
            now.iter()
                .map(|&(queue, count)| {
                    let earlier = then.iter().find(|(other, _)| *other == queue).map_or(0, |pair| pair.1);
                    (queue, differ(count, earlier))
                })
                .collect::<Vec<_>>()
        };
        let rx_packets = match (&self.rx_packets, &before.rx_packets) {
            (RxPackets::PerQueue(now), RxPackets::PerQueue(then)) => RxPackets::PerQueue(pairs(now, then)),
            (now, then) => RxPackets::Interface(differ(now.total(), then.total())),
        };
        Delta {
            elapsed: self.taken - before.taken,
            rx_packets,
            net_rx: self.net_rx.iter().zip(&before.net_rx).map(|(now, then)| differ(*now, *then)).collect(),
            irqs: pairs(&self.irqs, &before.irqs),
            tx_irqs: pairs(&self.tx_irqs, &before.tx_irqs),
            busy_poll_rx_packets: differ(self.busy_poll_rx_packets, before.busy_poll_rx_packets),
            cpus: self.cpus.iter().zip(&before.cpus).map(|(now, then)| now.since(then)).collect(),
            has_interrupts: self.has_interrupts,
        }
    }
}

impl CpuTicks {
    fn since(&self, before: &CpuTicks) -> CpuTime {
        let tick = Duration::from_secs(1) / u32::try_from(procfs::ticks_per_second()).unwrap_or(100);
        let time = |now: u64, then: u64| tick * u32::try_from(now.saturating_sub(then)).unwrap_or(u32::MAX);
        CpuTime {
            busy: time(self.busy, before.busy),
            softirq: time(self.softirq, before.softirq),
            idle: time(self.idle, before.idle),
            steal: time(self.steal, before.steal),
        }
    }
}

/// A ratio with the name of what it really is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PacketsPer {
    /// `"packets per interrupt"`, or `"packets per softirq"` on a device without interrupts.
    pub name: &'static str,
    /// Packets for each; infinite where packets came and none of those.
    pub value: f64,
}

impl Delta {
    /// The share of the received packets that a busy poll got, 0 to 1.
    pub fn busy_poll_share(&self) -> f64 {
        let packets = self.rx_packets.total();
        if packets == 0 { 0.0 } else { (self.busy_poll_rx_packets as f64 / packets as f64).min(1.0) }
    }

    /// The paper's packets per interrupt (its Table 5), or what comes nearest on this device.
    pub fn packets_per_interrupt(&self) -> PacketsPer {
        let (name, events) = if self.has_interrupts {
            ("packets per interrupt", self.irqs.iter().map(|(_, count)| count).sum::<u64>())
        } else {
            ("packets per softirq", self.net_rx.iter().sum())
        };
        PacketsPer { name, value: self.rx_packets.total() as f64 / events as f64 }
    }

    /// The same, counting also the interrupts that only tell the end of sending, as the paper does for
    /// kernel polling.
    pub fn packets_per_any_interrupt(&self) -> f64 {
        let events: u64 = self.irqs.iter().chain(&self.tx_irqs).map(|(_, count)| count).sum();
        self.rx_packets.total() as f64 / events as f64
    }

    /// The largest share of a core that the hypervisor took, 0 to 1.
    pub fn worst_steal(&self) -> f64 {
        self.cpus.iter().map(|cpu| cpu.steal.as_secs_f64() / self.elapsed.as_secs_f64()).fold(0.0, f64::max)
    }
}

/// The paper's performance model (section 3.1): `QPT = CPT × IPC / IPQ`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PerformanceModel {
    /// Queries a second.
    pub qpt: f64,
    /// Cycles a second; `None` where the machine has no performance counters ("not supported").
    pub cpt: Option<f64>,
    /// Instructions a query.
    pub ipq: Option<f64>,
    /// Instructions a cycle.
    pub ipc: Option<f64>,
}

impl PerformanceModel {
    /// Works the model out for a run.
    pub fn new(queries: u64, elapsed: Duration, perf: Option<PerfReading>) -> Self {
        let seconds = elapsed.as_secs_f64();
        Self {
            qpt: queries as f64 / seconds,
            cpt: perf.map(|perf| perf.cycles as f64 / seconds),
            ipq: perf.map(|perf| perf.instructions as f64 / queries as f64),
            ipc: perf.map(|perf| perf.instructions as f64 / perf.cycles as f64),
        }
    }
}

/// CPU time that a thread of this process (or any, by its thread id) has used.
///
/// Source: the first field of `/proc/<tid>/schedstat`, in nanoseconds.
pub fn thread_cpu_time(thread: i32) -> io::Result<Duration> {
    let text = fs::read_to_string(format!("/proc/{thread}/schedstat"))?;
    let nanos = text.split_whitespace().next().and_then(|word| word.parse().ok());
    nanos.map(Duration::from_nanos).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// CPU time that the calling thread has used.
pub fn this_thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

fn rx_packets(interface: &Interface) -> Result<RxPackets, Error> {
    let by_queue = Netdev::open().and_then(|mut netdev| netdev.rx_packets(interface.index));
    match by_queue {
        Ok(queues) if !queues.is_empty() => Ok(RxPackets::PerQueue(queues)),
        _ => {
            let links = route::links().map_err(Error::kernel("read the interface's packet count"))?;
            let link = links.into_iter().find(|link| link.index == interface.index);
            Ok(RxPackets::Interface(link.and_then(|link| link.rx_packets).unwrap_or(0)))
        }
    }
}

/// How often each queue's interrupt has fired: of those that receive, and of those that only send.
fn irq_counts(interface: &Interface) -> io::Result<(QueueCounts, QueueCounts)> {
    if !interface.has_interrupts() {
        return Ok(Default::default());
    }
    let lines = irq::lines()?;
    let count = |irq: u32| Some(lines.get(&irq)?.counts.iter().sum());
    let received = interface.queues.iter().filter_map(|queue| Some((queue.index, count(queue.irq?)?)));
    let shared = |irq: u32| interface.queues.iter().any(|queue| queue.irq == Some(irq));
    let sent = interface
        .tx_queues
        .iter()
        .filter_map(|queue| Some((queue.index, count(queue.irq.filter(|&irq| !shared(irq))?)?)));
    Ok((received.collect(), sent.collect()))
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

fn busy_poll_rx_packets() -> io::Result<u64> {
    // "self" would be the namespace of the process's first thread.
    let text = fs::read_to_string("/proc/thread-self/net/netstat")?;
    parse_netstat(&text, "TcpExt:", "BusyPollRxPackets").ok_or_else(|| {
        io::Error::new(io::ErrorKind::Unsupported, "this kernel has no BusyPollRxPackets counter")
    })
}

/// `netstat` has pairs of lines with one prefix: names, then values.
fn parse_netstat(text: &str, prefix: &str, counter: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(prefix));
    let (names, values) = (lines.next()?, lines.next()?);
    names
        .split_whitespace()
        .zip(values.split_whitespace())
        .find(|(name, _)| *name == counter)
        .and_then(|(_, value)| value.parse().ok())
}

fn cpu_ticks() -> io::Result<Vec<CpuTicks>> {
    let stats = KernelStats::current().map_err(io::Error::other)?;
    Ok(stats
        .cpu_time
        .into_iter()
        .map(|cpu| {
            let softirq = cpu.softirq.unwrap_or(0);
            CpuTicks {
                busy: cpu.user + cpu.nice + cpu.system + cpu.irq.unwrap_or(0) + softirq,
                softirq,
                idle: cpu.idle + cpu.iowait.unwrap_or(0),
                steal: cpu.steal.unwrap_or(0),
            }
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host;

    #[test]
    fn the_netstat_counter_is_found_by_its_column() {
        let text = "TcpExt: SyncookiesSent BusyPollRxPackets\nTcpExt: 3 42\nIpExt: InNoRoutes\nIpExt: 1\n";
        assert_eq!(parse_netstat(text, "TcpExt:", "BusyPollRxPackets"), Some(42));
        assert_eq!(parse_netstat(text, "TcpExt:", "Nonesuch"), None);
    }

    #[test]
    fn traffic_on_loopback_shows_in_the_difference() {
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
    }

    #[test]
    fn the_model_is_consistent_with_its_equation() {
        let perf = PerfReading { cycles: 3_000_000, instructions: 1_500_000 };
        let model = PerformanceModel::new(1000, Duration::from_millis(10), Some(perf));
        let right = model.cpt.unwrap() * model.ipc.unwrap() / model.ipq.unwrap();
        assert!((model.qpt - right).abs() / model.qpt < 1e-9);
        assert_eq!(PerformanceModel::new(1, Duration::from_secs(1), None).ipc, None);
    }

    #[test]
    fn a_thread_that_computes_uses_cpu_time() {
        let before = this_thread_cpu_time();
        let end = before + Duration::from_millis(5);
        while this_thread_cpu_time() < end {
            std::hint::spin_loop();
        }
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        assert!(thread_cpu_time(thread).unwrap() >= Duration::from_millis(4));
    }
}
