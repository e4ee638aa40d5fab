//! Predicts what attaching changes, from measurements of a server whose queues interrupts drive.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::attacher::STEP;
use super::held_queue::limits_of;
use super::instance::{QueueMap, QueueName};
use super::load::{Load, LoadMeter, Traffic};
use super::process;
use super::survey::{Fitness, Observation};
use crate::controller::{PollInterval, PollingController};
use crate::error::Error;
use crate::host::net_namespace::NetNamespace;

/// What was measured of a queue and its server, and what is expected once it is attached.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Forecast {
    pub queue: QueueName,
    pub packets_per_second: f64,
    /// How often the server's threads woke from a sleep, by second.
    pub wakeups_per_second: f64,
    /// How many cores the server's threads took.
    pub cores: f64,
    /// The share of the time in which the controller would have polled, 0 to 1.
    pub polled: f64,
    /// How often the threads would wake by second: once for what comes in a poll interval.
    pub wakeups_left_per_second: f64,
    /// How many cores would be left without the turns that go. What these do for requests remains,
    /// so it may be more; packets that are merged take less, so it may be fewer.
    pub cores_left: f64,
    /// How long a packet waits on average for the poll, in microseconds, beside none now.
    pub delay_us: f64,
}

impl Observation {
    /// Measures the server for a time, and foresees what the controller would do. Changes nothing. Empty where nothing
    /// can be attached.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the server's network namespace can't be entered or the kernel has no netdev netlink.
    pub fn forecast(&self, interval: PollInterval, time: Duration) -> Result<Vec<Forecast>, Error> {
        let mut threads: BTreeMap<QueueName, BTreeSet<(u32, i32)>> = BTreeMap::new();
        for process in &self.processes {
            for instance in process.instances.iter().filter(|it| it.fitness == Fitness::Aligned) {
                // A thread that is always busy was not seen waiting.
                let all = || process::threads(process.pid).unwrap_or_default();
                let on_it = if instance.threads.is_empty() { all() } else { instance.threads.clone() };
                for (queue, _) in &instance.queues {
                    threads
                        .entry(queue.clone())
                        .or_default()
                        .extend(on_it.iter().map(|thread| (process.pid, *thread)));
                }
            }
        }
        let Some(first) = self.processes.first().filter(|_| !threads.is_empty()) else {
            return Ok(Vec::new());
        };
        let step = "enter the network namespace of the server";
        let namespace = NetNamespace::of_process(first.pid).map_err(Error::kernel(step))?;
        namespace.run(|| measure(threads, interval, time)).map_err(Error::kernel(step))?
    }
}

/// A queue that is measured.
struct Measured {
    name: QueueName,
    threads: BTreeSet<(u32, i32)>,
    controller: PollingController,
    meter: LoadMeter,
    /// How often the threads have slept, at the last step.
    sleeps: u64,
    sums: Sums,
}

impl Measured {
    /// Measures the time since the last step, and runs the controller on it. `packets`: those that
    /// the queue has received since the first step, which only reads where the counts begin.
    fn step(&mut self, packets: u64, is_first: bool) {
        let load = self.meter.measure(packets, &self.threads);
        let sleeps = self.threads.iter().map(|(_, thread)| process::sleeps(*thread)).sum();
        let wakeups = u64::saturating_sub(sleeps, std::mem::replace(&mut self.sleeps, sleeps));
        if is_first {
            return;
        }
        self.controller.step(&load.epoch);
        let settings = self.controller.settings();
        let interval = (!settings.is_by_interrupts()).then_some(settings.grace_time);
        self.sums.add(&load, wakeups, interval);
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    time: Duration,
    polled: Duration,
    packets: u64,
    wakeups: u64,
    run: Duration,
    wakeups_left: f64,
    /// `run` without the time of the turns that go.
    run_left: Duration,
    /// The mean wait for the poll, times the time.
    waits: f64,
}

impl Sums {
    /// Takes in a step with `wakeups`, in which the controller polls once in `interval` or not at all.
    fn add(&mut self, load: &Load, wakeups: u64, interval: Option<Duration>) {
        let epoch = &load.epoch;
        self.time += epoch.duration;
        self.packets += epoch.packets;
        self.wakeups += wakeups;
        self.run += load.run;
        let wakeups = wakeups as f64;
        let left = interval.map_or(wakeups, |interval| {
            self.polled += epoch.duration;
            self.waits += epoch.duration.as_secs_f64() * interval.as_secs_f64() / 2.0;
            let intervals = epoch.duration.as_secs_f64() / interval.as_secs_f64();
            // Packets that come independently of each other leave some intervals empty.
            let filled = 1.0 - (-epoch.event_rate() * interval.as_secs_f64()).exp();
            // Each thread that serves wakes for its part of the packets.
            let serving = epoch.packets as f64 / epoch.events.max(1) as f64;
            wakeups.min(serving * filled * intervals)
        });
        self.wakeups_left += left;
        // A thread that never sleeps has no turns that could go.
        let kept = if wakeups > 0.0 { left / wakeups } else { 1.0 };
        self.run_left += load.run.mul_f64(kept);
    }

    fn forecast(&self, queue: QueueName) -> Forecast {
        let seconds = self.time.as_secs_f64().max(1e-9);
        Forecast {
            queue,
            packets_per_second: self.packets as f64 / seconds,
            wakeups_per_second: self.wakeups as f64 / seconds,
            cores: self.run.as_secs_f64() / seconds,
            polled: self.polled.as_secs_f64() / seconds,
            wakeups_left_per_second: self.wakeups_left / seconds,
            cores_left: self.run_left.as_secs_f64() / seconds,
            delay_us: self.waits * 1e6 / seconds,
        }
    }
}

/// In the network namespace of the server.
fn measure(
    threads: BTreeMap<QueueName, BTreeSet<(u32, i32)>>,
    interval: PollInterval,
    time: Duration,
) -> Result<Vec<Forecast>, Error> {
    let names: Vec<QueueName> = threads.keys().cloned().collect();
    let mut traffic = Traffic::open().map_err(Error::kernel("use netdev netlink"))?;
    let map = QueueMap::read()?;
    let measured = |(name, threads)| {
        let limits = map.interface(&name).map(limits_of).unwrap_or_default();
        let controller = PollingController::new(interval.max(PollInterval::MIN), limits);
        Measured { name, threads, controller, meter: LoadMeter::new(), sleeps: 0, sums: Sums::default() }
    };
    let mut queues: Vec<Measured> = threads.into_iter().map(measured).collect();
    let mut step = |is_first: bool| {
        let packets = traffic.measure(&names).packets;
        queues.iter_mut().for_each(|queue| queue.step(packets[&queue.name], is_first));
    };
    step(true);
    let end = Instant::now() + time;
    while Instant::now() < end {
        thread::sleep(STEP);
        step(false);
    }
    Ok(queues.into_iter().map(|queue| queue.sums.forecast(queue.name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::Epoch;

    fn load(rate: u64, serving: u64) -> Load {
        let duration = Duration::from_millis(50);
        let packets = rate / 20;
        let epoch = Epoch { duration, events: packets / serving, packets, busy: duration / 2 };
        Load { epoch, run: duration / 2, ..Load::default() }
    }

    fn forecast(load: &Load, wakeups: u64, interval: Option<u64>) -> Forecast {
        let queue = QueueName { interface: "eth0".to_owned(), queue: 0, ifindex: 1 };
        let interval = interval.map(Duration::from_micros);
        let mut sums = Sums::default();
        (0..20).for_each(|_| sums.add(load, wakeups, interval));
        sums.forecast(queue)
    }

    #[test]
    fn at_most_one_wake_up_is_left_for_each_interval_and_thread() {
        let one = forecast(&load(1_000_000, 1), 2_000, Some(100));
        assert!((9_990.0..=10_000.0).contains(&one.wakeups_left_per_second), "{one:?}");
        assert_eq!((one.packets_per_second, one.wakeups_per_second), (1_000_000.0, 40_000.0));
        assert!((0.124..0.126).contains(&one.cores_left), "{one:?}");
        assert!(one.polled == 1.0 && (one.delay_us - 50.0).abs() < 0.1, "{one:?}");
        let two = forecast(&load(1_000_000, 2), 2_000, Some(100));
        assert!((19_900.0..=20_000.0).contains(&two.wakeups_left_per_second), "{two:?}");
    }

    #[test]
    fn intervals_without_a_packet_wake_nobody() {
        // Two packets in an interval on average: one in seven intervals has none.
        let seen = forecast(&load(20_000, 1), 1_000, Some(100));
        assert!((8_600.0..8_700.0).contains(&seen.wakeups_left_per_second), "{seen:?}");
    }

    #[test]
    fn nothing_changes_where_interrupts_drive_the_queue_or_wake_ups_are_fewer_already() {
        let off = forecast(&load(20_000, 1), 900, None);
        assert_eq!((off.wakeups_left_per_second, off.cores_left), (18_000.0, 0.5));
        assert_eq!((off.polled, off.delay_us), (0.0, 0.0));
        let few = forecast(&load(1_000_000, 1), 100, Some(100));
        assert_eq!((few.wakeups_left_per_second, few.cores_left), (2_000.0, 0.5));
        let none = forecast(&load(1_000_000, 1), 0, Some(100));
        assert_eq!((none.wakeups_left_per_second, none.cores_left), (0.0, 0.5));
    }
}
