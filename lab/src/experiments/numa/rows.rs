//! Rows of the tables: medians over the rounds of a class, and ratios within its rounds.

use loadgen::interleaved_rounds::{DistanceClass, Round, figures, ratios};
use loadgen::medians::{Interval, median, median_interval};
use policies::Policy;
use serde::Serialize;

use super::config::{NumaConfig, NumaContestant};
use super::cores::Placement;
use super::measurement::NumaTurn;
use crate::experiments::MeasuredRounds;

/// One server under one load.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct NumaRow {
    /// The class of distance between the nodes in which it was measured.
    pub class: DistanceClass,
    /// Policy and placement of the server that the row is about.
    pub contestant: NumaContestant,
    /// Replies per second, over the rounds of the class.
    pub qps: Interval,
    /// Requests per second over those of the same policy on the first node, in the same round.
    pub qps_to_first_node: Interval,
    /// Requests per second over vanilla's at the same place, in the same round. `None` without vanilla.
    pub qps_to_vanilla: Option<Interval>,
    /// Median latency, µs.
    pub p50_us: Interval,
    /// 99th percentile of the latency, µs.
    pub p99_us: Interval,
    /// The 99th percentile over that of the same policy on the first node, in the same round.
    pub p99_to_first_node: Interval,
    /// CPU time of the server's cores per request, µs.
    pub cpu_us: Interval,
    /// Instructions per request. `None` on a machine that does not count them, as the next.
    pub ipq: Option<f64>,
    /// Instructions per cycle, median of the rounds; `None` where the machine counts neither.
    pub ipc: Option<f64>,
    /// The first node's share of the memory that the server took, 0 to 1.
    pub on_first_node: f64,
    /// CPU time of the load's threads over elapsed time, their mean, 0 to 1.
    pub load_busy: f64,
}

/// A row for each server and class with rounds, in the order of the contestants.
pub fn numa_rows(config: &NumaConfig, measured: &MeasuredRounds<NumaTurn>) -> Vec<NumaRow> {
    let contestants = config.contestants();
    let classes = measured.finished.classes.iter().filter(|class| !class.rounds.is_empty());
    classes
        .flat_map(|class| {
            (0..contestants.len()).map(|index| row(&contestants, index, class.class, &class.rounds))
        })
        .collect()
}

fn row(
    contestants: &[NumaContestant],
    index: usize,
    class: DistanceClass,
    rounds: &[Round<NumaTurn>],
) -> NumaRow {
    let contestant = contestants[index];
    let position = |policy, placement| {
        contestants.iter().position(|other| *other == NumaContestant { policy, placement })
    };
    let interval = |figure: fn(&NumaTurn) -> f64| median_interval(&figures(rounds, index, figure));
    let to = |other, figure: fn(&NumaTurn) -> f64| median_interval(&ratios(rounds, index, other, figure));
    let first = position(contestant.policy, Placement::First).unwrap_or(index);
    let counted = |figure: fn(&NumaTurn) -> Option<f64>| {
        let values: Vec<f64> = rounds.iter().filter_map(|round| figure(round.value(index)?)).collect();
        (!values.is_empty()).then(|| median(&values))
    };
    NumaRow {
        class,
        contestant,
        qps: interval(|turn| turn.load.qps),
        qps_to_first_node: to(first, |turn| turn.load.qps),
        qps_to_vanilla: position(Policy::Vanilla, contestant.placement)
            .map(|vanilla| to(vanilla, |turn| turn.load.qps)),
        p50_us: interval(|turn| turn.load.latency.p50),
        p99_us: interval(|turn| turn.load.latency.p99),
        p99_to_first_node: to(first, |turn| turn.load.latency.p99),
        cpu_us: interval(NumaTurn::cpu_us),
        ipq: counted(|turn| turn.server.ipq),
        ipc: counted(|turn| turn.server.ipc),
        on_first_node: median(&figures(rounds, index, NumaTurn::on_first_node)),
        load_busy: median(&figures(rounds, index, |turn| turn.load.client_busy)),
    }
}
