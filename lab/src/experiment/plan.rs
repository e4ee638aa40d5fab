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
    /// Requests per second and worker in an open loop.
    Rate(f64),
    Closed,
}

impl Load {
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Rate(_))
    }
}

/// Steal, as a share of one core, above which a turn is repeated. A 99th percentile bears 1 % of the
/// time.
pub(super) const STEAL_LIMIT: f64 = 0.005;

#[derive(Debug, Clone, Serialize)]
pub struct Experiment {
    pub contenders: Vec<Contender>,
    /// The contenders by index that ratios refer to: in each figure to the best of them.
    pub references: Vec<usize>,
    pub loads: Vec<Load>,
    /// Connections for each worker, 1 to 20,000.
    pub connections: usize,
    /// What stands in for an interrupt: under the first one everything is measured, under the others
    /// the rates of open loops.
    pub receivers: Vec<Receiver>,
    pub requests: FleetRequests,
    pub rounds: usize,
    /// Seconds of load before each turn of which nothing is counted, so that a policy that adapts
    /// has settled. CPU time is that of a whole turn, warm-up included. 0 for none.
    pub settle: f64,
    pub warm_up: f64,
    pub duration: f64,
    /// Seconds around a turn: two readings of the distance, and of the host; on a card also the start of
    /// the server and of the fleets.
    pub around: f64,
}

impl Experiment {
    /// A closed loop. The better one of the vanilla servers is the reference; without one the first
    /// contender.
    pub fn new(contenders: Vec<Contender>, quick: bool) -> Self {
        let mut references: Vec<usize> =
            (0..contenders.len()).filter(|index| contenders[*index].runs(Policy::Vanilla)).collect();
        if references.is_empty() {
            references.push(0);
        }
        Self {
            contenders,
            references,
            loads: vec![Load::Closed],
            connections: 64,
            receivers: vec![Receiver::default()],
            requests: FleetRequests::Memcached(Box::<Workload>::default()),
            rounds: if quick { 8 } else { 12 },
            settle: if quick { 0.1 } else { 0.15 },
            warm_up: 0.05,
            duration: if quick { 0.2 } else { 0.25 },
            around: 0.05,
        }
    }

    /// Turns without repeats, for a progress bar.
    pub fn steps(&self) -> usize {
        self.contenders.len() * self.loads_by_receiver().len() * self.rounds
    }

    /// What the rounds of a load take, with a fifth for repeats.
    pub fn time_limit(&self) -> Duration {
        let turn = self.settle + self.warm_up + self.duration + self.around;
        Duration::from_secs_f64((self.contenders.len() * self.rounds) as f64 * turn * 1.2)
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
