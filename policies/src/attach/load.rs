//! What can be measured of a queue and its server from outside.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use super::instance::QueueName;
use super::process::{RunTimes, run_times};
use crate::controller::Epoch;
use crate::counters::busy_poll_rx_packets;
use crate::netlink::netdev::Netdev;

/// A thread that runs for less than this share of a step has no part in serving.
const SERVES: f64 = 0.01;

#[derive(Debug)]
struct PacketCounter {
    netdev: Netdev,
    queues: BTreeMap<QueueName, Counted>,
}

/// Where a queue's count comes from, and how far it is.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    /// The driver's count of the queue; 0 if it has none.
    of_queue: u64,
    /// The interface's count, if the driver has none of the queue.
    of_interface: Option<u64>,
    /// The packets since the first reading.
    total: u64,
}

impl PacketCounter {
    fn open() -> io::Result<Self> {
        Ok(Self { netdev: Netdev::open()?, queues: BTreeMap::new() })
    }

    /// The packets that a queue has received since it was read first. Where the driver does not
    /// count by queue, those of the interface are divided by the number of queues that share them
    /// at the time.
    fn read(&mut self, queue: &QueueName, sharing: u64) -> u64 {
        // The queue keeps its count where the kernel does not answer.
        let read = self.netdev.rx_packets(queue.ifindex).ok();
        let known = self.queues.get(queue).copied();
        let Some(by_queue) = read else { return known.unwrap_or_default().total };
        let of_queue = by_queue.iter().find(|(index, _)| *index == queue.queue).map(|(_, packets)| *packets);
        let of_interface = match of_queue {
            Some(_) => None,
            None => Some(statistic(&queue.interface, "rx_packets")),
        };
        let now = Counted { of_queue: of_queue.unwrap_or(0), of_interface, total: 0 };
        let total = known.map_or(0, |known| known.total + now.since(&known, sharing));
        self.queues.insert(queue.clone(), Counted { total, ..now });
        total
    }

    fn keep(&mut self, held: &[QueueName]) {
        self.queues.retain(|queue, _| held.contains(queue));
    }
}

impl Counted {
    /// Packets since an earlier reading; 0 where the counts have begun again or come from elsewhere
    /// now.
    fn since(&self, before: &Self, sharing: u64) -> u64 {
        match (self.of_interface, before.of_interface) {
            (None, None) => self.of_queue.saturating_sub(before.of_queue),
            (Some(now), Some(before)) => now.saturating_sub(before) / sharing.max(1),
            _ => 0,
        }
    }
}

/// What the held queues have received since the attachment began.
pub(super) struct Traffic {
    counter: PacketCounter,
    /// Packets that busy polls had received at the last step, in the network namespace.
    busy_polled: u64,
    /// Packets that each interface had lost at the last step.
    drops: BTreeMap<String, u64>,
}

pub(super) struct TrafficStep {
    /// The packets that each queue has received since it was read first.
    pub(super) packets: BTreeMap<QueueName, u64>,
    pub(super) busy_polled: u64,
    /// The packets that each interface has lost in this step. Which of its queues lost them is not
    /// known, so they count for all of them.
    pub(super) lost: BTreeMap<String, u64>,
}

impl Traffic {
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self {
            counter: PacketCounter::open()?,
            busy_polled: busy_poll_rx_packets().unwrap_or(0),
            drops: BTreeMap::new(),
        })
    }

    /// Reads the counters of the queues that are held now.
    pub(super) fn measure(&mut self, queues: &[QueueName]) -> TrafficStep {
        let polled = busy_poll_rx_packets().unwrap_or(self.busy_polled);
        let busy_polled = polled.saturating_sub(std::mem::replace(&mut self.busy_polled, polled));
        self.counter.keep(queues);
        let lost = self.lost(queues);
        let mut packets = BTreeMap::new();
        for queue in queues {
            let sharing = queues.iter().filter(|other| other.ifindex == queue.ifindex).count();
            packets.insert(queue.clone(), self.counter.read(queue, sharing as u64));
        }
        TrafficStep { packets, busy_polled, lost }
    }

    fn lost(&mut self, queues: &[QueueName]) -> BTreeMap<String, u64> {
        let interfaces: BTreeSet<&String> = queues.iter().map(|name| &name.interface).collect();
        let now: BTreeMap<String, u64> =
            interfaces.into_iter().map(|interface| (interface.clone(), drops(interface))).collect();
        let since = |(interface, now): (&String, &u64)| {
            // An interface that is new here begins at 0.
            let before = self.drops.get(interface).unwrap_or(now);
            (interface.clone(), now.saturating_sub(*before))
        };
        let lost = now.iter().map(since).collect();
        self.drops = now;
        lost
    }
}

/// Packets of an interface that were lost for lack of room.
fn drops(interface: &str) -> u64 {
    ["rx_dropped", "rx_missed_errors", "rx_fifo_errors"].map(|name| statistic(interface, name)).iter().sum()
}

fn statistic(interface: &str, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/sys/class/net/{interface}/statistics/{name}"));
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// What the threads of a queue and its packets were during a step.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Load {
    pub(super) epoch: Epoch,
    /// The time that all threads had a core.
    pub(super) run: Duration,
    /// The mean time that a thread was ready before it got a core.
    pub(super) delay: Duration,
}

#[derive(Debug)]
pub(super) struct LoadMeter {
    last: Instant,
    packets: Option<u64>,
    threads: BTreeMap<(u32, i32), RunTimes>,
}

impl LoadMeter {
    pub(super) fn new() -> Self {
        Self { last: Instant::now(), packets: None, threads: BTreeMap::new() }
    }

    /// Measures the time since the last call. `threads`: those that serve the queue.
    pub(super) fn measure(&mut self, packets: u64, threads: &BTreeSet<(u32, i32)>) -> Load {
        let now = Instant::now();
        let duration = now - std::mem::replace(&mut self.last, now);
        let received = packets.saturating_sub(self.packets.replace(packets).unwrap_or(packets));
        let times: BTreeMap<_, _> = threads
            .iter()
            .filter_map(|&(pid, thread)| Some(((pid, thread), run_times(pid, thread).ok()?)))
            .collect();
        let before = std::mem::replace(&mut self.threads, times);
        let mut total = RunTimes::default();
        let mut serving = 0_u32;
        for (thread, now) in &self.threads {
            let Some(then) = before.get(thread) else { continue };
            let run = now.run.saturating_sub(then.run);
            if run as f64 >= duration.as_nanos() as f64 * SERVES {
                serving += 1;
            }
            total.run += run;
            total.ready += now.ready.saturating_sub(then.ready);
            total.turns += now.turns.saturating_sub(then.turns);
        }
        // The controller knows one core: the share of one thread.
        let serving = serving.max(1);
        let (run, ready) = (Duration::from_nanos(total.run), Duration::from_nanos(total.ready));
        let epoch = Epoch {
            duration,
            events: received / u64::from(serving),
            packets: received,
            // While the kernel's work for the queue has a thread's core, the thread is ready.
            busy: (run + ready) / serving,
        };
        Load { epoch, run, delay: per(ready, total.turns) }
    }
}

fn per(time: Duration, count: u64) -> Duration {
    time / u32::try_from(count).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::process::threads;

    #[test]
    #[ignore = "timing"]
    fn a_thread_that_computes_keeps_its_core_busy_and_one_that_sleeps_does_not() {
        let pid = std::process::id();
        let own: BTreeSet<(u32, i32)> = [(pid, rustix::thread::gettid().as_raw_nonzero().get())].into();
        assert!(own.iter().all(|(_, thread)| threads(pid).unwrap().contains(thread)));
        let mut meter = LoadMeter::new();
        meter.measure(100, &own);
        let end = Instant::now() + Duration::from_millis(60);
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        let load = meter.measure(150, &own);
        assert!(load.epoch.busy_share() > 0.5, "{load:?}");
        assert_eq!((load.epoch.packets, load.epoch.events), (50, 50));
        for _ in 0..6 {
            std::thread::sleep(Duration::from_millis(10));
        }
        let load = meter.measure(150, &own);
        assert!(load.epoch.busy_share() < 0.5, "{load:?}");
    }

    #[test]
    fn packets_of_an_interface_are_shared_by_what_came_meanwhile_and_not_by_their_total() {
        let of_interface = |packets| Counted { of_interface: Some(packets), ..Counted::default() };
        let of_queue = |packets| Counted { of_queue: packets, ..Counted::default() };
        assert_eq!(of_interface(1_000_300).since(&of_interface(1_000_000), 2), 150);
        assert_eq!(of_interface(1_000_300).since(&of_interface(1_000_000), 1), 300);
        assert_eq!(of_queue(500).since(&of_queue(400), 2), 100);
        // The device was created again, or the driver no longer reports counts by queue.
        assert_eq!(of_queue(5).since(&of_queue(400), 1), 0);
        assert_eq!(of_interface(1_000_000).since(&of_queue(400), 1), 0);
    }
}
