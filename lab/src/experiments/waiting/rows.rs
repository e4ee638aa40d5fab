//! Medians, ratios and targets from the measurements.

use loadgen::interleaved_rounds::{ClassRounds, DistanceClass, Round, figures, ratios};
use loadgen::medians::{Interval, median, median_interval};
use serde::Serialize;

use super::config::{ADAPTIVE, BLOCK, SPIN, STRATEGIES, WaitingConfig};
use super::gap::Gap;
use super::measurement::{SERVER_STRATEGIES, WaitingMeasurements};
use super::message_turn::Pair;
use super::messages::MessageCost;
use super::server_turn::ServerCost;

/// Adaptive's round trip over that of the better one of spin and block is to be at most this.
const ROUND_TRIP_LIMIT: f64 = 1.1;
/// Adaptive's CPU time over block's is to be at most this.
const CPU_LIMIT: f64 = 2.0;
/// Adaptive's 99th percentile at the server over spin's is to be at most this.
const P99_LIMIT: f64 = 1.1;
/// Adaptive's CPU time at the server over spin's is to be at most this.
const SERVER_CPU_LIMIT: f64 = 0.3;

/// What a ratio's interval says of its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Outcome {
    /// The interval is within the limit.
    Met,
    /// The interval is above the limit.
    Missed,
    /// The interval contains the limit.
    Open,
    /// There are too few rounds for an interval.
    NoInterval,
}

/// A ratio of two medians in the same round, and the limit that it is to keep.
#[derive(Debug, Clone, Copy, Serialize)]
#[non_exhaustive]
pub struct Target {
    /// The ratio.
    pub ratio: Interval,
    /// What it is to be at most.
    pub limit: f64,
    /// How the ratio's interval lies to the limit.
    pub outcome: Outcome,
}

impl Target {
    fn new(ratios: &[f64], limit: f64) -> Self {
        let ratio = median_interval(ratios);
        let outcome = match ratio {
            _ if !ratio.reaches_target() => Outcome::NoInterval,
            _ if ratio.high <= limit => Outcome::Met,
            _ if ratio.low > limit => Outcome::Missed,
            _ => Outcome::Open,
        };
        Self { ratio, limit, outcome }
    }
}

/// Messages of one pair at one gap.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct MessageRow {
    /// The class of distance between the cores in which it was measured.
    pub class: DistanceClass,
    /// Which sides exchange the messages: workers, or a worker and another thread.
    pub pair: Pair,
    /// What passes between an answer and the next message.
    pub gap: Gap,
    /// The round trip, µs, in the order of [`WaitingConfig::strategies`].
    pub round_trip_us: Vec<Interval>,
    /// CPU time of both sides per message, without what is computed in the gaps, µs, in the same order.
    pub cpu_us: Vec<Interval>,
    /// The better one of spin and block by its median round trip, as an index of [`WaitingConfig::strategies`].
    pub better: usize,
    /// Adaptive's round trip over the better one's.
    pub round_trip: Target,
    /// Adaptive's CPU time over block's.
    pub cpu: Target,
}

/// The memcached server at low load.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ServerRow {
    /// The class of distance between the cores in which it was measured.
    pub class: DistanceClass,
    /// 99th percentile of the latency, µs: block, spin, adaptive.
    pub p99_us: Vec<Interval>,
    /// CPU time of the server's worker over elapsed time, in the same order.
    pub cpu_share: Vec<Interval>,
    /// Adaptive's 99th percentile over spin's.
    pub p99: Target,
    /// Adaptive's CPU time over spin's.
    pub cpu: Target,
}

/// All rows. The class of distance with most rounds comes first.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct WaitingRows {
    /// A row for each pair and gap.
    pub messages: Vec<MessageRow>,
    /// A row for each class.
    pub server: Vec<ServerRow>,
}

impl WaitingRows {
    /// Computes them.
    pub fn new(config: &WaitingConfig, measured: &WaitingMeasurements) -> Self {
        let mut messages = Vec::new();
        for (pair, run) in &measured.messages {
            for in_class in run.finished.classes.iter().filter(|class| !class.rounds.is_empty()) {
                let rows = config.gaps.iter().enumerate();
                messages.extend(rows.map(|(index, gap)| message_row(in_class, *pair, *gap, index)));
            }
        }
        let classes = measured.server.finished.classes.iter();
        let server = classes.filter(|class| !class.rounds.is_empty()).map(server_row).collect();
        Self { messages, server }
    }

    /// The targets on messages: of the round trips, and of the CPU times.
    pub fn message_targets(&self) -> [Vec<&Target>; 2] {
        [
            self.messages.iter().map(|row| &row.round_trip).collect(),
            self.messages.iter().map(|row| &row.cpu).collect(),
        ]
    }
}

fn message_row(in_class: &ClassRounds<Vec<MessageCost>>, pair: Pair, gap: Gap, index: usize) -> MessageRow {
    let rounds = &in_class.rounds;
    // A turn has all gaps.
    let round_trip = |costs: &Vec<MessageCost>| costs.get(index).map_or(f64::NAN, |cost| cost.round_trip_us);
    let cpu = |costs: &Vec<MessageCost>| costs.get(index).map_or(f64::NAN, MessageCost::cpu_us);
    let typical = |strategy| median(&figures(rounds, strategy, round_trip));
    let better = if typical(SPIN) <= typical(BLOCK) { SPIN } else { BLOCK };
    MessageRow {
        class: in_class.class,
        pair,
        gap,
        round_trip_us: intervals(rounds, STRATEGIES.len(), &round_trip),
        cpu_us: intervals(rounds, STRATEGIES.len(), &cpu),
        better,
        round_trip: Target::new(&ratios(rounds, ADAPTIVE, better, round_trip), ROUND_TRIP_LIMIT),
        cpu: Target::new(&ratios(rounds, ADAPTIVE, BLOCK, cpu), CPU_LIMIT),
    }
}

fn server_row(in_class: &ClassRounds<ServerCost>) -> ServerRow {
    let rounds = &in_class.rounds;
    let contestant = |strategy| SERVER_STRATEGIES.iter().position(|it| *it == strategy).unwrap_or_default();
    let (spin, adaptive) = (contestant(SPIN), contestant(ADAPTIVE));
    let p99 = |cost: &ServerCost| cost.p99_us;
    let cpu = |cost: &ServerCost| cost.cpu_share;
    ServerRow {
        class: in_class.class,
        p99_us: intervals(rounds, SERVER_STRATEGIES.len(), &p99),
        cpu_share: intervals(rounds, SERVER_STRATEGIES.len(), &cpu),
        p99: Target::new(&ratios(rounds, adaptive, spin, p99), P99_LIMIT),
        cpu: Target::new(&ratios(rounds, adaptive, spin, cpu), SERVER_CPU_LIMIT),
    }
}

fn intervals<T>(rounds: &[Round<T>], contestants: usize, figure: &impl Fn(&T) -> f64) -> Vec<Interval> {
    (0..contestants).map(|index| median_interval(&figures(rounds, index, figure))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::sample::{config, measurements};
    use super::*;

    #[test]
    fn adaptive_is_compared_with_the_better_one_of_spin_and_block_at_each_gap() {
        let rows = WaitingRows::new(&config(), &measurements(8));
        assert_eq!(rows.messages.len(), Pair::ALL.len() * 2);
        for rows in rows.messages.chunks(2) {
            let [short, long] = rows else { panic!("two gaps") };
            // Spin 2 µs, block 12, adaptive 2.1; then 30, 15 and 18.
            assert_eq!((short.better, short.round_trip.outcome), (SPIN, Outcome::Met), "{short:?}");
            assert!((short.round_trip.ratio.median - 1.05).abs() < 1e-9, "{short:?}");
            assert_eq!((long.better, long.round_trip.outcome), (BLOCK, Outcome::Missed), "{long:?}");
            assert!((long.round_trip.ratio.median - 1.2).abs() < 1e-9, "{long:?}");
            // Of block's CPU time 0.5 and 2.5.
            assert_eq!((short.cpu.outcome, long.cpu.outcome), (Outcome::Met, Outcome::Missed));
        }
        let [server] = &rows.server[..] else { panic!("one class") };
        assert_eq!((server.p99.outcome, server.cpu.outcome), (Outcome::Met, Outcome::Missed), "{server:?}");
        assert!((server.cpu.ratio.median - 0.4).abs() < 1e-9, "{server:?}");
    }

    #[test]
    fn five_rounds_decide_nothing() {
        let rows = WaitingRows::new(&config(), &measurements(5));
        assert!(rows.message_targets().concat().iter().all(|it| it.outcome == Outcome::NoInterval));
    }

    #[test]
    fn a_ratio_whose_interval_contains_the_limit_is_open() {
        let target = Target::new(&[1.0, 1.05, 1.08, 1.12, 1.2, 1.3], 1.1);
        assert_eq!(target.outcome, Outcome::Open);
    }
}
