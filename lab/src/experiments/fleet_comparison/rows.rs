//! Rows of tables: medians over the rounds of a class, and ratios within its rounds.

use loadgen::interleaved_rounds::{DistanceClass, Round, figures, ratios};
use loadgen::medians::{Interval, median, median_interval};
use serde::Serialize;

use super::capacity::Capacity;
use super::config::FleetComparisonConfig;
use super::contender::Contender;
use super::measurement::{RECEIVED_SHARE, TurnMeasurement};
use crate::experiments::slowest_turn::slowest_over_median;

/// The rows of one class of distance.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ClassRows<R> {
    /// The class.
    pub class: DistanceClass,
    /// The shortest distance in this class, ns.
    pub low: Option<f64>,
    /// The longest distance in this class, ns.
    pub high: Option<f64>,
    /// The number of rounds.
    pub rounds: usize,
    /// A row for each contender.
    pub rows: Vec<R>,
}

/// The capacity of one contender.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct CapacityRow {
    /// The contender.
    pub name: String,
    /// Requests per second.
    pub rate: Interval,
    /// Over the reference's, in the same round.
    pub ratio: Interval,
}

/// One contender under one load.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct FleetRow {
    /// The contender.
    pub name: String,
    /// The contender that ratios refer to.
    pub reference: String,
    /// Replies per second.
    pub qps: Interval,
    /// Replies per second of the slowest turn over the median of all turns. In the closed loop it is far below 1 if a turn fell
    /// out of gear. 1 without a turn.
    pub slowest_turn: f64,
    /// The turns that the row is of.
    pub turns: usize,
    /// Median latency, µs.
    pub p50_us: Interval,
    /// 99th percentile of the latency, µs.
    pub p99_us: Interval,
    /// CPU time per reply of the server and of the kernel thread that receives for it, µs.
    pub cpu_us: Interval,
    /// The kernel thread's part of it.
    pub kernel_thread_cpu_us: f64,
    /// Replies per second over the reference's, in the same round.
    pub qps_ratio: Interval,
    /// Median latency over the reference's, in the same round.
    pub p50_ratio: Interval,
    /// 99th percentile over the reference's, in the same round.
    pub p99_ratio: Interval,
    /// CPU time per reply over the reference's, in the same round.
    pub cpu_ratio: Interval,
    /// CPU time per reply minus the reference's, in the same round, µs.
    pub cpu_difference_us: Interval,
    /// Busy time of the server's core over elapsed time, 0 to 1.
    pub server_core_busy: f64,
    /// The share of time in which the fleet sent or received, 0 to 1.
    pub fleet_busy: f64,
    /// CPU time of the fleet's sending and receiving per reply, µs.
    pub fleet_cpu_us: f64,
    /// Packets per wake-up of the kernel thread that polls the server's queue.
    pub packets_per_wake: f64,
    /// Packets that the fleet found when it looked and there were any.
    pub packets_per_look: f64,
    /// The share of packets that busy polling received, 0 to 1.
    pub busy_poll_share: f64,
    /// How a law drove the server's queue at the end of most turns. `None` without a law.
    pub queue: Option<String>,
    /// CPU time of the process that attached to the server over elapsed time. It is not part of `cpu_us`. `None` if
    /// nothing was attached.
    pub attach_cores: Option<f64>,
    /// Whether less than [`RECEIVED_SHARE`] of the server's packets were received where they should be.
    pub received_elsewhere: bool,
}

pub(super) fn capacity_rows(config: &FleetComparisonConfig, rounds: &[Round<Capacity>]) -> Vec<CapacityRow> {
    let contenders = &config.contenders;
    let row = |(index, contender): (usize, &Contender)| CapacityRow {
        name: contender.name(),
        rate: median_interval(&figures(rounds, index, |it| it.rate)),
        ratio: median_interval(&ratios(rounds, index, config.reference_of(index), |it| it.rate)),
    };
    contenders.iter().enumerate().map(row).collect()
}

pub(super) fn fleet_rows(config: &FleetComparisonConfig, rounds: &[Round<TurnMeasurement>]) -> Vec<FleetRow> {
    let contenders = &config.contenders;
    let row = |(index, contender): (usize, &Contender)| {
        let reference = config.reference_of(index);
        let interval = |figure: fn(&TurnMeasurement) -> f64| median_interval(&figures(rounds, index, figure));
        let middle = |figure: fn(&TurnMeasurement) -> f64| median(&figures(rounds, index, figure));
        let ratio =
            |figure: fn(&TurnMeasurement) -> f64| median_interval(&ratios(rounds, index, reference, figure));
        let difference = |round: &Round<TurnMeasurement>| {
            Some(round.value(index)?.cpu_us() - round.value(reference)?.cpu_us())
        };
        FleetRow {
            name: contender.name(),
            reference: contenders[reference].name(),
            qps: interval(|it| it.fleet.qps),
            slowest_turn: slowest_over_median(&figures(rounds, index, |it| it.fleet.qps)),
            turns: figures(rounds, index, |_| 1.0).len(),
            p50_us: interval(|it| it.fleet.latency.p50),
            p99_us: interval(|it| it.fleet.latency.p99),
            cpu_us: interval(TurnMeasurement::cpu_us),
            kernel_thread_cpu_us: middle(|it| it.kernel_thread_cpu_us),
            qps_ratio: ratio(|it| it.fleet.qps),
            p50_ratio: ratio(|it| it.fleet.latency.p50),
            p99_ratio: ratio(|it| it.fleet.latency.p99),
            cpu_ratio: ratio(TurnMeasurement::cpu_us),
            cpu_difference_us: median_interval(&rounds.iter().filter_map(difference).collect::<Vec<_>>()),
            server_core_busy: middle(|it| it.server_core_busy),
            fleet_busy: middle(|it| it.fleet.busy),
            fleet_cpu_us: middle(|it| it.fleet.cpu_us),
            packets_per_wake: middle(|it| it.packets_per_wake),
            packets_per_look: middle(|it| it.fleet.packets_per_look),
            busy_poll_share: middle(|it| it.busy_poll_share),
            queue: queue_mode(rounds, index),
            attach_cores: contender
                .is_attached()
                .then(|| middle(|it| it.attach.as_ref().map_or(0.0, |attach| attach.cores))),
            received_elsewhere: rounds.iter().any(|round| round.value(index).is_some())
                && middle(|it| it.received_share.unwrap_or(1.0)) < RECEIVED_SHARE,
        }
    };
    contenders.iter().enumerate().map(row).collect()
}

/// The most frequent mode of a contender's queue, with the share of turns that ended in it if that is not all.
fn queue_mode(rounds: &[Round<TurnMeasurement>], index: usize) -> Option<String> {
    let modes: Vec<&String> = rounds.iter().filter_map(|round| round.value(index)?.queue.as_ref()).collect();
    let count = |mode: &String| modes.iter().filter(|other| **other == mode).count();
    let most = modes.iter().max_by_key(|mode| count(mode))?;
    Some(match count(most) {
        all if all == modes.len() => (*most).clone(),
        some => format!("{most} ({some} of {})", modes.len()),
    })
}
