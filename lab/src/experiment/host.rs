//! What the host did during a turn under a fleet, and what the turn cost the server.

use std::time::Duration;

use policies::counters::{CpuTime, PerfReading, Snapshot};

use crate::cores::CoreAssignment;
use crate::fleet::FleetMeasurement;
use crate::rounds::{AttachProgress, Figure, LoadDetail, Turn};

pub(super) struct HostReading {
    /// CPU time of the server's process, in seconds.
    pub(super) cpu: f64,
    pub(super) user: f64,
    pub(super) snapshot: Snapshot,
    /// Counters of the server's core. `None` on a machine without.
    pub(super) perf: Option<PerfReading>,
    pub(super) retransmitted: u64,
    /// How a controller drives the server's queue. `None` without a controller.
    pub(super) queue: Option<String>,
    /// `None` for a server that is not attached to from outside.
    pub(super) attach: Option<AttachReading>,
}

pub(super) struct AttachReading {
    pub(super) cpu: f64,
    pub(super) progress: AttachProgress,
}

/// A turn under a fleet. `receiver` is the core that receives the server's packets. `attachers`: how
/// many programs on the fleet's core attach to servers of other contenders.
pub(super) fn fleet_turn(
    fleet: FleetMeasurement,
    before: &HostReading,
    after: &HostReading,
    cores: CoreAssignment,
    receiver: u32,
    attachers: usize,
) -> Turn {
    let delta = after.snapshot.since(&before.snapshot);
    let (replies, seconds) = (fleet.all_replies.max(1) as f64, delta.elapsed.as_secs_f64());
    let time = |core: u32, part: fn(&CpuTime) -> Duration| -> f64 {
        delta.cpus.get(core as usize).map_or(0.0, |time| part(time).as_secs_f64())
    };
    // The sum of none is -0.
    let kernel_threads =
        delta.napi_threads.iter().map(|thread| thread.cpu_time.as_secs_f64()).fold(0.0, |sum, it| sum + it);
    let used = after.cpu - before.cpu + kernel_threads;
    let stolen = |core: u32| time(core, |it| it.steal) / seconds;
    let share = |seconds: f64| (seconds / used.max(1e-9)).clamp(0.0, 1.0);
    let user = share(after.user - before.user);
    // Without those on behalf of a system call and those of the kernel thread.
    let softirq = share(time(cores.server, |it| it.softirq)).min(1.0 - user);
    let wakes: u64 = delta.napi_threads.iter().map(|thread| thread.wakes).sum();
    let mut turn = Turn::new([
        (Figure::CpuPerRequest, used * 1e6 / replies),
        (Figure::KernelThreadCpu, kernel_threads * 1e6 / replies),
        (Figure::Wakes, wakes as f64 / replies),
        (Figure::PacketsPerInterrupt, delta.packets_per_interrupt().value),
        (Figure::BusyPollShare, delta.busy_poll_share() * 100.0),
        (Figure::CoreBusy, time(cores.server, |it| it.busy) / seconds * 100.0),
        (Figure::App, user * 100.0),
        (Figure::System, (1.0 - user - softirq).max(0.0) * 100.0),
        (Figure::Softirq, softirq * 100.0),
        (Figure::Throughput, fleet.qps),
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
    if receiver != cores.client {
        let received = delta.received_by_cpu.get(receiver as usize).copied().unwrap_or(0);
        let all = delta.rx_packets.total().max(1) as f64;
        turn.set(Figure::ReceivedShare, (received as f64 / all).min(1.0) * 100.0);
    }
    // On two cores `policies attach` shares the fleet's core. Its CPU time is not a disturbance.
    let mut attaching = attachers as f64 * ATTACHER;
    let attach = after.attach.as_ref().zip(before.attach.as_ref()).map(|(after, before)| {
        let share = (after.cpu - before.cpu) / seconds;
        turn.set(Figure::AttachCpu, share * 100.0);
        attaching += share;
        let (after, before) = (&after.progress, &before.progress);
        AttachProgress {
            instances: after.instances,
            stepped_back: [&before.stepped_back[..], &after.stepped_back].concat(),
        }
    });
    turn.invalid = match &attach {
        Some(attach) if attach.instances == 0 => Some("no epoll instance was attached".to_owned()),
        _ => invalid(&fleet, attaching),
    };
    // Of the cores on which nobody else works.
    let elsewhere = receiver != cores.server && receiver != cores.client;
    turn.steal = Some(stolen(cores.server) + if elsewhere { stolen(receiver) } else { 0.0 });
    turn.queue.clone_from(&after.queue);
    (turn.latencies, turn.windows) = (fleet.latencies, fleet.windows);
    turn.detail = Some(Box::new(LoadDetail {
        fleet: FleetMeasurement { latencies: Vec::new(), windows: Vec::new(), ..fleet },
        retransmitted: after.retransmitted.saturating_sub(before.retransmitted),
        attach,
    }));
    turn
}

/// The longest 99th percentile of the fleet's own delay with which a turn is valid, µs. Beyond,
/// something else ran on the fleet's core.
const LONGEST_SEND_LAG_US: f64 = 500.0;
/// The most of a turn that the fleet's core may be paused, as a share: what was in flight then is
/// not counted.
const MOST_PAUSED: f64 = 0.02;
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
}
