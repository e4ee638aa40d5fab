//! One turn under a fleet: what the fleet measured, and what the host did meanwhile.

use policies::counters::{CpuTime, PerfReading, Snapshot};
use serde::Serialize;

use super::super::core_assignment::CoreAssignment;
use crate::experiment_process::AttachProgress;
use crate::fleet::{FleetLoad, FleetMeasurement};

/// Counters of the host at one moment.
pub(in crate::experiments) struct HostReading {
    /// CPU time of the server's process, in seconds.
    pub(super) cpu: f64,
    /// The part of it in user space.
    pub(super) user: f64,
    pub(super) snapshot: Snapshot,
    /// Counters of the server's core. `None` on a machine without.
    pub(super) perf: Option<PerfReading>,
    /// Segments that the server's kernel has sent again.
    pub(super) retransmitted: u64,
    /// Packets that found the server's receive ring full.
    pub(super) drops: u64,
    /// How a law drives the server's queue. `None` without a law.
    pub(super) queue: Option<String>,
    /// `None` for a server that is not attached to from outside.
    pub(super) attach: Option<AttachReading>,
}

impl HostReading {
    /// Why nothing is attached now, if something should be.
    pub(in crate::experiments) fn detached(&self) -> Option<String> {
        let attach = self.attach.as_ref()?;
        (attach.progress.instances == 0).then(|| "no epoll instance was attached".to_owned())
    }
}

/// What an attaching process did so far.
pub(in crate::experiments) struct AttachReading {
    /// Its CPU time, in seconds.
    pub(super) cpu: f64,
    pub(super) progress: AttachProgress,
}

/// What an attaching process did in a turn.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct AttachTurn {
    /// Its CPU time over elapsed time. It is not part of the server's.
    pub cores: f64,
    /// The epoll instances that were attached at the end.
    pub instances: usize,
    /// Why it gave polling up for some seconds, each time that it did since the turn before.
    pub stepped_back: Vec<String>,
    /// The modes that the law has chosen for the queue since the turn before, with the reasons, in order of time.
    pub changes: Vec<String>,
}

/// What a turn cost the server, whatever loaded it: the figures of the paper's tables.
#[derive(Debug, Clone, Copy, Default, Serialize)]
#[non_exhaustive]
pub struct ServerFigures {
    /// CPU time of the server's threads and of the kernel thread that polls its queue, per reply, µs.
    pub cpu_us: f64,
    /// The kernel thread's part of it.
    pub kernel_thread_cpu_us: f64,
    /// The server's code in user space, over the CPU time of the server and of the kernel thread, 0 to 1. The kernel samples
    /// it in ticks, so a short turn has few of them.
    pub user_share: f64,
    /// The rest, except softirqs: the kernel on behalf of the server, and the kernel thread.
    pub system_share: f64,
    /// Softirqs on the server's core, over the same, except those on behalf of a system call and those of the kernel thread.
    pub softirq_share: f64,
    /// Instructions of the server's core per reply. `None` on a machine that does not count them, as the next two.
    pub instructions_per_reply: Option<f64>,
    /// Instructions per cycle.
    pub instructions_per_cycle: Option<f64>,
    /// Misses of the last-level cache per reply.
    pub cache_misses_per_reply: Option<f64>,
    /// Packets that the server received per interrupt, or on a device without interrupts per wake-up of the kernel thread
    /// that stands in for it.
    pub packets_per_interrupt: Option<f64>,
    /// CPU time that the hypervisor took from the cores that work for the server (steal), as a share of one core.
    pub steal: f64,
}

impl ServerFigures {
    /// What was counted between two readings, while the server sent `replies`.
    pub(in crate::experiments) fn between(
        before: &HostReading,
        after: &HostReading,
        cores: CoreAssignment,
        receiver: u32,
        replies: u64,
    ) -> Self {
        let delta = after.snapshot.since(&before.snapshot);
        let (replies, seconds) = (replies.max(1) as f64, delta.elapsed.as_secs_f64());
        let kernel_threads: f64 = delta.napi_threads.iter().map(|thread| thread.cpu_time.as_secs_f64()).sum();
        let time = |core: u32| delta.cpus.get(core as usize).copied();
        let cpu = after.cpu - before.cpu;
        let share = |seconds: f64| (seconds / (cpu + kernel_threads).max(1e-9)).clamp(0.0, 1.0);
        let stolen = |core: u32| time(core).map_or(0.0, |time| time.steal.as_secs_f64()) / seconds;
        let perf = after.perf.zip(before.perf);
        let counted = |count: fn(&PerfReading) -> Option<u64>| {
            let (after, before) = perf?;
            Some(count(&after)?.saturating_sub(count(&before)?) as f64)
        };
        let instructions = counted(|perf| Some(perf.instructions));
        let cycles = counted(|perf| Some(perf.cycles)).filter(|cycles| *cycles > 0.0);
        let thread = kernel_threads * 1e6 / replies;
        let user = share(after.user - before.user);
        let softirq =
            share(time(cores.server).map_or(0.0, |time| time.softirq.as_secs_f64())).min(1.0 - user);
        let elsewhere = receiver != cores.server && receiver != cores.client;
        Self {
            cpu_us: cpu * 1e6 / replies + thread,
            kernel_thread_cpu_us: thread,
            user_share: user,
            system_share: (1.0 - user - softirq).max(0.0),
            softirq_share: softirq,
            instructions_per_reply: instructions.map(|count| count / replies),
            instructions_per_cycle: instructions
                .zip(cycles)
                .map(|(instructions, cycles)| instructions / cycles),
            cache_misses_per_reply: counted(|perf| perf.cache_misses).map(|misses| misses / replies),
            packets_per_interrupt: Some(delta.packets_per_interrupt().value)
                .filter(|ratio| ratio.is_finite()),
            steal: stolen(cores.server) + if elsewhere { stolen(receiver) } else { 0.0 },
        }
    }
}

/// The CPU time over elapsed time of the server and of the kernel thread that receives for it.
pub(super) fn idle_cpu(before: &HostReading, after: &HostReading) -> f64 {
    let delta = after.snapshot.since(&before.snapshot);
    let kernel_threads: f64 = delta.napi_threads.iter().map(|thread| thread.cpu_time.as_secs_f64()).sum();
    (after.cpu - before.cpu + kernel_threads) / delta.elapsed.as_secs_f64()
}

/// One contender measured once.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct TurnMeasurement {
    /// The load.
    pub load: FleetLoad,
    /// What the fleet measured.
    pub fleet: FleetMeasurement,
    /// CPU time of the server's threads per reply, µs.
    pub server_cpu_us: f64,
    /// CPU time of the kernel thread that polls the server's queue, per reply, µs. Busy polls are not part of it: they
    /// are CPU time of the server's threads.
    pub kernel_thread_cpu_us: f64,
    /// Busy time of the server's core over elapsed time, 0 to 1, as the kernel's tick samples it.
    pub server_core_busy: f64,
    /// The same of the client's core. The fleet never sleeps; [`FleetMeasurement::busy`] says how much of that is work.
    pub client_core_busy: f64,
    /// CPU time that the hypervisor took from the cores that work for the server (steal), as a share of one core.
    pub steal: f64,
    /// Packets that the server received per wake-up of the kernel thread that polls its queue.
    pub packets_per_wake: f64,
    /// The share of the server's packets that busy polling received, 0 to 1.
    pub busy_poll_share: f64,
    /// The packets that the core received that should receive the server's, over those that the server received. Below
    /// [`RECEIVED_SHARE`] the receiving was done elsewhere. `None` where the kernel's counters can't tell: on the fleet's
    /// core, whose own packets count there, too, and with several requests in flight, which GRO merges.
    pub received_share: Option<f64>,
    /// Packets that each CPU received, the fleet's included (`/proc/net/softnet_stat`).
    pub received_by_cpu: Vec<u64>,
    /// Segments that the server's kernel sent again.
    pub server_retransmitted: u64,
    /// Packets that found the server's receive ring full.
    pub drops: u64,
    /// How a law drove the server's queue at the end of the turn: the mode, and the grace time. `None` without a law.
    pub queue: Option<String>,
    /// What attached to the server from outside. `None` if nothing did.
    pub attach: Option<AttachTurn>,
    /// The figures of the paper's tables.
    pub figures: ServerFigures,
}

/// Steal, as a share of one core, above which a turn or a trial is repeated. A 99th percentile bears 1 % of the time.
pub(super) const STEAL_LIMIT: f64 = 0.005;
/// The least share of the server's packets that its own core must have received.
pub const RECEIVED_SHARE: f64 = 0.9;
/// The longest 99th percentile of the fleet's own delay with which a turn is valid, µs. Beyond, something else ran on the
/// fleet's core.
const LONGEST_SEND_LAG_US: f64 = 500.0;

/// The most of a turn that the fleet's core may be paused, as a share.
const MOST_PAUSED: f64 = 0.2;

impl TurnMeasurement {
    pub(super) fn new(
        load: FleetLoad,
        fleet: FleetMeasurement,
        before: &HostReading,
        after: &HostReading,
        cores: CoreAssignment,
        receiver: u32,
        depth: usize,
    ) -> Self {
        let delta = after.snapshot.since(&before.snapshot);
        let replies = fleet.all_replies.max(1) as f64;
        let seconds = delta.elapsed.as_secs_f64();
        let busy = |core: u32| {
            let time = delta.cpus.get(core as usize);
            time.map_or(0.0, |time: &CpuTime| time.busy.as_secs_f64()) / seconds
        };
        let figures = ServerFigures::between(before, after, cores, receiver, fleet.all_replies);
        let received = delta.rx_packets.total();
        let by_receiver = delta.received_by_cpu.get(receiver as usize).copied().unwrap_or(0);
        let wakes: u64 = delta.napi_threads.iter().map(|thread| thread.wakes).sum();
        Self {
            load,
            server_cpu_us: (after.cpu - before.cpu) * 1e6 / replies,
            kernel_thread_cpu_us: figures.kernel_thread_cpu_us,
            server_core_busy: busy(cores.server),
            client_core_busy: busy(cores.client),
            steal: figures.steal,
            packets_per_wake: received as f64 / wakes.max(1) as f64,
            busy_poll_share: delta.busy_poll_share(),
            received_share: (receiver != cores.client && depth == 1)
                .then(|| (by_receiver as f64 / received.max(1) as f64).min(1.0)),
            received_by_cpu: delta.received_by_cpu.clone(),
            server_retransmitted: after.retransmitted.saturating_sub(before.retransmitted),
            drops: after.drops.saturating_sub(before.drops),
            queue: after.queue.clone(),
            attach: attach_turn(before, after, seconds),
            figures,
            fleet,
        }
    }

    /// CPU time per reply of the server and of the kernel thread that receives for it, µs.
    pub fn cpu_us(&self) -> f64 {
        self.server_cpu_us + self.kernel_thread_cpu_us
    }

    /// Why the turn is not valid, if it is not.
    pub fn invalid(&self) -> Option<String> {
        let FleetMeasurement { errors, misses, send_lag, requests, paused, seconds, .. } = &self.fleet;
        if *requests == 0 {
            return Some("no request was sent".to_owned());
        }
        if *errors + *misses > 0 {
            return Some(format!("{errors} replies reported errors, and {misses} values were missing"));
        }
        if *paused > (*paused + *seconds) * MOST_PAUSED {
            return Some(format!("the fleet's core was paused for {:.0} ms", *paused * 1e3));
        }
        if send_lag.p99 > LONGEST_SEND_LAG_US {
            return Some(format!("the fleet sent late (99th percentile {:.0} µs)", send_lag.p99));
        }
        if self.attach.as_ref().is_some_and(|attach| attach.instances == 0) {
            return Some("no epoll instance was attached".to_owned());
        }
        None
    }
}

fn attach_turn(before: &HostReading, after: &HostReading, seconds: f64) -> Option<AttachTurn> {
    let (before, after) = (before.attach.as_ref()?, after.attach.as_ref()?);
    let stepped_back = [&before.progress.stepped_back[..], &after.progress.stepped_back[..]].concat();
    let changes = [&before.progress.changes[..], &after.progress.changes[..]].concat();
    Some(AttachTurn {
        cores: (after.cpu - before.cpu) / seconds,
        instances: after.progress.instances,
        stepped_back,
        changes,
    })
}
