//! What is compared, and under which loads.

use std::time::Duration;

use loadgen::Workload;
use policies::Policy;
use serde::Serialize;

use super::contender::Contender;
use crate::cores::CoreAssignment;
use crate::fleet::FleetRequests;
use crate::testbed::Receiver;

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// A share of the reference's capacity, in an open loop.
    Share(f64),
    /// Requests per second and worker in an open loop.
    Rate(f64),
    Closed,
}

impl Load {
    pub fn needs_capacity(&self) -> bool {
        matches!(self, Self::Share(_))
    }

    fn is_open(&self) -> bool {
        matches!(self, Self::Share(_) | Self::Rate(_))
    }
}

/// Steal, as a share of one core, above which a turn or a window is repeated. A 99th percentile
/// bears 1 % of the time.
pub(super) const STEAL_LIMIT: f64 = 0.005;

#[derive(Debug, Clone, Serialize)]
pub struct Experiment {
    pub contenders: Vec<Contender>,
    /// The contenders by index that ratios refer to: in each figure to the best of them. Shares are
    /// of the highest of their capacities.
    pub references: Vec<usize>,
    pub loads: Vec<Load>,
    /// Connections for each worker, 1 to 20,000.
    pub connections: usize,
    /// What stands in for an interrupt: under the first one everything is measured, under the others
    /// the rates of open loops.
    pub receivers: Vec<Receiver>,
    pub requests: FleetRequests,
    /// The capacity that shares refer to, requests per second, instead of one that is searched.
    pub given_capacity: Option<f64>,
    /// Whether the capacity is searched also if one is given.
    pub searches_anyway: bool,
    pub rounds: usize,
    pub capacity_rounds: usize,
    /// Seconds of load before each turn of which nothing is counted, so that a policy that adapts
    /// has settled. CPU time is that of a whole turn, warm-up included. 0 for none.
    pub settle: f64,
    pub warm_up: f64,
    pub duration: f64,
    /// Seconds of load before the first window of a rate that is tried as the capacity.
    pub trial_warm_up: f64,
    pub trial_duration: f64,
    /// The highest 99th percentile at which a rate is within the capacity, µs.
    pub capacity_p99_us: f64,
    pub time_limit: Duration,
    /// The search for the capacity's share of that time, 0 to 1. The loads share the rest equally.
    pub capacity_share: f64,
}

impl Experiment {
    /// The better one of the vanilla servers is the reference; without one the first contender. For
    /// four contenders five minutes at most, or one if `quick`; more contenders take proportionally
    /// longer.
    pub fn new(contenders: Vec<Contender>, quick: bool) -> Self {
        let fours = contenders.len() as f64 / 4.0;
        let mut references: Vec<usize> =
            (0..contenders.len()).filter(|index| contenders[*index].runs(Policy::Vanilla)).collect();
        if references.is_empty() {
            references.push(0);
        }
        let shares: &[f64] = if quick { &[0.5] } else { &[0.1, 0.25, 0.5, 0.75, 0.9] };
        let mut loads = shares.iter().copied().map(Load::Share).collect::<Vec<_>>();
        loads.push(Load::Closed);
        Self {
            contenders,
            references,
            loads,
            connections: 64,
            receivers: vec![Receiver::default()],
            requests: FleetRequests::Memcached(Box::<Workload>::default()),
            given_capacity: None,
            searches_anyway: false,
            rounds: 12,
            capacity_rounds: if quick { 6 } else { 12 },
            settle: if quick { 0.1 } else { 0.15 },
            warm_up: 0.05,
            duration: if quick { 0.2 } else { 0.25 },
            trial_warm_up: if quick { 0.1 } else { 0.2 },
            trial_duration: 0.1,
            capacity_p99_us: 500.0,
            capacity_share: 0.5,
            time_limit: Duration::from_secs_f64(if quick { 75.0 } else { 290.0 } * fours.max(1.0)),
        }
    }

    /// Whether the capacity is searched: it is what shares refer to.
    pub fn searches_capacity(&self) -> bool {
        let is_missing = self.given_capacity.is_none() || self.searches_anyway;
        is_missing && self.loads.iter().any(Load::needs_capacity)
    }

    /// Turns without repeats, for a progress bar.
    pub fn steps(&self) -> usize {
        let searches = if self.searches_capacity() { self.capacity_rounds } else { 0 };
        self.contenders.len() * (searches + self.loads_by_receiver().len() * self.rounds)
    }

    /// What the rounds of all loads take without repeats.
    pub fn rounds_time(&self) -> Duration {
        /// Two readings of the distance, and of the host.
        const AROUND: f64 = 0.05;
        let turns = self.contenders.len() * self.rounds * self.loads_by_receiver().len();
        Duration::from_secs_f64(turns as f64 * (self.settle + self.warm_up + self.duration + AROUND))
    }

    /// The loads in their order, each with what receives under it.
    pub fn loads_by_receiver(&self) -> Vec<(Load, Receiver)> {
        let of = |load: &Load| {
            let under = if load.is_open() { self.receivers.len() } else { 1 };
            let receivers = self.receivers.iter().take(under).copied();
            receivers.map(|receiver| (*load, receiver)).collect::<Vec<_>>()
        };
        self.loads.iter().flat_map(of).collect()
    }

    /// Why a contender can't be compared with the others on these cores, if it can't.
    pub fn not_comparable(&self, contender: usize, cores: &CoreAssignment) -> Option<String> {
        let shares_a_core = cores.packing_is_shared() && self.contenders[contender].runs(Policy::Packing);
        shares_a_core.then(|| "its network work has no core for each worker that nobody else uses".to_owned())
    }
}
