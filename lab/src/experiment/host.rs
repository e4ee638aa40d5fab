//! What the host did during a turn under a fleet, and what the turn cost the server.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use policies::Cpus;
use policies::counters::{CpuTime, PerfReading, Snapshot};

use crate::cores::CoreAssignment;
use crate::fleet::FleetMeasurement;
use crate::rounds::{AttachProgress, Figure, LoadDetail, MOST_PAUSED, Turn};
use crate::testbed::Receiver;

pub(super) struct HostReading {
    /// CPU time of the server's process, in seconds.
    pub(super) cpu: f64,
    pub(super) user: f64,
    pub(super) snapshot: Snapshot,
    /// Of the cores that work for the server, under a receiver whose work no thread is charged for.
    pub(super) idle: Vec<IdleTime>,
    /// Counters of the server's core. `None` on a machine without.
    pub(super) perf: Option<PerfReading>,
    pub(super) retransmitted: u64,
    /// How a controller drives the server's queue. `None` without a controller.
    pub(super) queue: Option<String>,
    /// CPU time of what attaches to the server, in seconds, and what it did.
    pub(super) attach: Option<(f64, AttachProgress)>,
}

/// Which cores work for a server.
#[derive(Debug, Clone)]
pub(super) struct ServerCores {
    pub(super) cores: CoreAssignment,
    /// How many workers of the server rates are for.
    pub(super) workers: usize,
    /// The cores that receive its queues' packets.
    pub(super) receivers: Vec<u32>,
    pub(super) model: Receiver,
}

impl ServerCores {
    /// The cores on which nobody else works, each once.
    pub(super) fn own(&self) -> Vec<u32> {
        let Self { cores, receivers, .. } = self;
        let own: BTreeSet<u32> = cores.servers.iter().chain(receivers).copied().collect();
        own.into_iter().filter(|core| !cores.clients.contains(core)).collect()
    }
}

/// A turn under a fleet. `attachers`: how many programs on the fleet's core attach to servers of
/// other contenders.
pub(super) fn fleet_turn(
    fleet: FleetMeasurement,
    before: &HostReading,
    after: &HostReading,
    server: &ServerCores,
    attachers: usize,
) -> Turn {
    let ServerCores { cores, workers, receivers, model } = server;
    let delta = after.snapshot.since(&before.snapshot);
    let (replies, seconds) = (fleet.all_replies.max(1) as f64, delta.elapsed.as_secs_f64());
    let time = |cores: &[u32], part: fn(&CpuTime) -> Duration| -> f64 {
        let times = cores.iter().filter_map(|&core| delta.cpus.get(core as usize));
        times.map(|time| part(time).as_secs_f64()).sum()
    };
    let cpu = after.cpu - before.cpu;
    let kernel_threads: Duration = delta.napi_threads.iter().map(|thread| thread.cpu_time).sum();
    let kernel_threads = kernel_threads.as_secs_f64();
    let used = match model {
        Receiver::Fifo | Receiver::Thread => cpu + kernel_threads,
        // No thread is charged for what interrupts an idle core.
        Receiver::Rps | Receiver::Interrupt => awake_between(&before.idle, &after.idle).as_secs_f64(),
    };
    let share = |seconds: f64| (seconds / used.max(1e-9)).clamp(0.0, 1.0);
    let user = share(after.user - before.user);
    // Without those on behalf of a system call and those of the kernel thread.
    let own: BTreeSet<u32> = cores.servers.iter().copied().collect();
    let own: Vec<u32> = own.into_iter().collect();
    let softirq = share(time(&own, |it| it.softirq)).min(1.0 - user);
    let wakes: u64 = delta.napi_threads.iter().map(|thread| thread.wakes).sum();
    let mut turn = Turn::new([
        (Figure::CpuPerRequest, used * 1e6 / replies),
        (Figure::KernelThreadCpu, kernel_threads * 1e6 / replies),
        (Figure::Wakes, wakes as f64 / replies),
        (Figure::PacketsPerInterrupt, delta.packets_per_interrupt()),
        (Figure::BusyPollShare, delta.busy_poll_share() * 100.0),
        (Figure::CoreBusy, time(&own, |it| it.busy) / seconds / own.len() as f64 * 100.0),
        (Figure::App, user * 100.0),
        (Figure::System, (1.0 - user - softirq).max(0.0) * 100.0),
        (Figure::Softirq, softirq * 100.0),
        // For one worker, as the rate.
        (Figure::Throughput, fleet.qps / *workers as f64),
        (Figure::Answered, fleet.qps * fleet.seconds / fleet.requests as f64 * 100.0),
        (Figure::P50, fleet.latency.p50),
        (Figure::P99, fleet.latency.p99),
        (Figure::LoadBusy, fleet.busy * 100.0),
        (Figure::Paused, fleet.paused / (fleet.paused + fleet.seconds) * 100.0),
    ]);
    if let Some((after, before)) = after.perf.zip(before.perf) {
        let instructions = after.instructions.saturating_sub(before.instructions) as f64;
        let cycles = after.cycles.saturating_sub(before.cycles) as f64;
        turn.set(Figure::Instructions, instructions / replies);
        turn.set(Figure::InstructionsPerCycle, instructions / cycles);
        if let Some((after, before)) = after.cache_misses.zip(before.cache_misses) {
            turn.set(Figure::CacheMisses, after.saturating_sub(before) as f64 / replies);
        }
    }
    // The fleet's own packets count on its core, too.
    if !receivers.iter().any(|core| cores.clients.contains(core)) {
        let receivers: BTreeSet<u32> = receivers.iter().copied().collect();
        let of = |core: u32| delta.received_by_cpu.get(core as usize).copied().unwrap_or(0);
        let received: u64 = receivers.into_iter().map(of).sum();
        let all = delta.rx_packets.total().max(1) as f64;
        turn.set(Figure::ReceivedShare, (received as f64 / all).min(1.0) * 100.0);
    }
    // On two cores `policies attach` shares the fleet's core. Its CPU time is not a disturbance.
    let mut attaching = attachers as f64 * ATTACHER;
    let attach = after.attach.as_ref().zip(before.attach.as_ref()).map(|(after, before)| {
        let ((cpu, after), (cpu_before, before)) = (after, before);
        let share = (cpu - cpu_before) / seconds;
        turn.set(Figure::AttachCpu, share * 100.0);
        attaching += share;
        AttachProgress {
            instances: after.instances,
            stepped_back: [&before.stepped_back[..], &after.stepped_back].concat(),
        }
    });
    turn.invalid = match &attach {
        Some(attach) if attach.instances == 0 => Some("no epoll instance was attached".to_owned()),
        _ => invalid(&fleet, attaching),
    };
    let own = server.own();
    turn.steal = Some(time(&own, |it| it.steal) / seconds / own.len().max(1) as f64);
    turn.queue.clone_from(&after.queue);
    turn.latencies = fleet.latencies;
    turn.detail = Some(Box::new(LoadDetail {
        fleet: FleetMeasurement { latencies: Vec::new(), ..fleet },
        retransmitted: after.retransmitted.saturating_sub(before.retransmitted),
        attach,
    }));
    turn
}

/// The longest 99th percentile of the fleet's own delay with which a turn is valid, µs. Beyond,
/// something else ran on the fleet's core.
const LONGEST_SEND_LAG_US: f64 = 500.0;
/// What a program that attaches to an idle server may take of the fleet's core, beside
/// [`MOST_PAUSED`].
const ATTACHER: f64 = 0.02;

/// Why the fleet's measurement is not valid, if it is not. `attaching`: the share of a core that
/// what attaches to the server has taken.
fn invalid(fleet: &FleetMeasurement, attaching: f64) -> Option<String> {
    let FleetMeasurement { errors, misses, send_lag, requests, paused, seconds, .. } = fleet;
    if *requests == 0 {
        return Some("no request was sent".to_owned());
    }
    if *errors + *misses > 0 {
        return Some(format!("{errors} replies reported errors, and {misses} values were missing"));
    }
    if *paused > (*paused + *seconds) * (MOST_PAUSED + attaching) {
        let share = *paused / (*paused + *seconds) * 100.0;
        return Some(format!("the fleet's core was paused for {share:.0} % of the time"));
    }
    if send_lag.p99 > LONGEST_SEND_LAG_US {
        return Some(format!("the fleet sent late (99th percentile {:.0} µs)", send_lag.p99));
    }
    None
}

/// For how long a core was idle until a moment. From `/proc/timer_list`, which counts nanoseconds:
/// the ticks of `/proc/stat` are 10 ms, some percent of what a server uses in a turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct IdleTime {
    core: u32,
    at: Instant,
    idle: Duration,
}

impl IdleTime {
    pub(super) fn of(core: u32) -> io::Result<Self> {
        let allowed = Cpus::of_thread(None)?;
        // The kernel counts idle time when it ends: it does when this thread runs on the core.
        Cpus::one(core).pin(None)?;
        let (at, text) = (Instant::now(), fs::read_to_string("/proc/timer_list"));
        allowed.pin(None)?;
        match parse(&text?).get(core as usize) {
            Some(idle) => Ok(Self { core, at, idle: *idle }),
            None => Err(io::Error::other(format!("/proc/timer_list has no idle_sleeptime of core {core}"))),
        }
    }
}

/// For how long the cores of these readings were awake, summed.
pub(super) fn awake_between(before: &[IdleTime], after: &[IdleTime]) -> Duration {
    let pairs = after.iter().flat_map(|after| before.iter().map(move |before| (before, after)));
    let same = pairs.filter(|(before, after)| before.core == after.core);
    same.map(|(before, after)| (after.at - before.at).saturating_sub(after.idle.saturating_sub(before.idle)))
        .sum()
}

/// The kernel adds a core's waits for disks to a counter of their own.
fn parse(text: &str) -> Vec<Duration> {
    let mut times: Vec<Duration> = Vec::new();
    for line in text.lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        let number = || value.trim().split(' ').next().and_then(|it| it.parse::<u64>().ok());
        match name.trim() {
            "cpu" => times.resize(number().map_or(times.len(), |cpu| cpu as usize + 1), Duration::ZERO),
            ".idle_sleeptime" | ".iowait_sleeptime" => {
                if let (Some(time), Some(nanos)) = (times.last_mut(), number()) {
                    *time += Duration::from_nanos(nanos);
                }
            }
            _ => {}
        }
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_percent_of_pauses_are_forgiven_and_no_more() {
        let fleet = |paused: f64| FleetMeasurement {
            requests: 100,
            paused,
            seconds: 1.0 - paused,
            ..FleetMeasurement::default()
        };
        assert_eq!(invalid(&fleet(0.019), 0.0), None);
        let reason = invalid(&fleet(0.03), 0.0).unwrap();
        assert_eq!(reason, "the fleet's core was paused for 3 % of the time");
    }

    #[test]
    fn the_idle_times_of_all_cores_are_read() {
        let text = "cpu: 0\n clock 0:\n  .index:      0\n  .idle_entrytime : 52 nsecs\n  .idle_sleeptime : 1300 nsecs\n  \
                    .iowait_sleeptime: 35 nsecs\ncpu: 2\n  .idle_sleeptime : 8 nsecs\n  .iowait_sleeptime: 0 nsecs\n";
        assert_eq!(parse(text), [1335, 0, 8].map(Duration::from_nanos));
    }

    #[test]
    fn a_core_is_awake_while_a_thread_runs_on_it_and_not_while_it_sleeps() {
        let readable = fs::File::open("/proc/timer_list").ok();
        let Some(_) = requirements::require("/proc/timer_list, which root may read", readable) else {
            return;
        };
        let core = Cpus::allowed().unwrap().iter().next().unwrap();
        Cpus::one(core).pin(None).unwrap();
        let time = Duration::from_millis(50);
        let awake = |work: fn(Duration)| {
            let before = IdleTime::of(core).unwrap();
            work(time);
            awake_between(&[before], &[IdleTime::of(core).unwrap()])
        };
        // Other programs may run there, but not all the time.
        assert!((0..1_200).any(|_| awake(std::thread::sleep) < time));
        let computed = awake(|time| {
            let begun = Instant::now();
            while begun.elapsed() < time {}
        });
        assert!(computed >= time * 9 / 10, "{computed:?}");
    }
}
