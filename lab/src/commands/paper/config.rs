//! How much is measured.

use std::time::Duration;

use loadgen::{Distribution, Mix, Workload};
use policies::controller::LatencyBudget;
use serde::Serialize;

use crate::fleet::FleetRequests;

/// Of 31 requests one stores: ETC has 30 gets for a set (Atikoglu et al., the paper's reference 3).
/// The paper names no ratio for its experiments.
const UPDATE_RATIO: f64 = 1.0 / 31.0;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PaperConfig {
    /// Records of the ETC workload. The paper has 1,000,000.
    pub records: u64,
    /// Connections of the fleet: the paper's 1120 for 8 cores are 140 for one.
    pub connections: usize,
    /// Seconds of a turn under the fleet.
    pub turn: f64,
    pub warm_up: f64,
    /// Seconds of load before each turn of what is attached to, in which the policy settles.
    pub settle: f64,
    pub rounds: usize,
    pub capacity_rounds: usize,
    /// Rates of Figure 5, as shares of vanilla's capacity.
    pub shares: Vec<f64>,
    /// Rates in the place of shares, requests per second. If there are any, the capacity is not
    /// searched.
    pub rates: Vec<f64>,
    /// The latency budgets of kernel polling, µs: latency first, and efficiency.
    pub budgets: Vec<u16>,
    pub attached_budgets: Vec<u16>,
    pub connection_counts: Vec<usize>,
    /// Records for Figure 9, which starts a server for each number of connections.
    pub connection_records: u64,
    /// Bytes of the files of Table 2: what fits into a packet with its headers.
    pub file_sizes: Vec<usize>,
    /// Seconds that each load of a contender may take, with its part of the search for the capacity
    /// and without settling: enough for eight rounds or more. Six give an interval, and a turn that
    /// is not valid costs one.
    pub load_seconds: f64,
}

impl PaperConfig {
    /// About 20 minutes, or 5 if `quick`.
    pub fn new(quick: bool) -> Self {
        Self {
            records: if quick { 20_000 } else { 1_000_000 },
            connections: 140,
            turn: if quick { 0.15 } else { 0.3 },
            warm_up: if quick { 0.1 } else { 0.2 },
            settle: if quick { 0.3 } else { 0.6 },
            rounds: if quick { 9 } else { 20 },
            capacity_rounds: if quick { 3 } else { 8 },
            shares: if quick { vec![0.5, 1.1] } else { vec![0.25, 0.5, 0.75, 0.9, 1.1, 1.4] },
            rates: Vec::new(),
            budgets: vec![0, 50],
            attached_budgets: if quick { vec![0] } else { vec![0, 50] },
            connection_counts: if quick { vec![1, 100, 10_000] } else { vec![1, 10, 100, 1_000, 10_000] },
            connection_records: if quick { 10_000 } else { 100_000 },
            file_sizes: if quick { vec![64] } else { vec![64, 1 << 10] },
            load_seconds: if quick { 4.0 } else { 9.5 },
        }
    }

    /// The same with shorter turns and fewer rounds, records and connections: to see that it works,
    /// not to measure.
    pub fn shortened(self, turn: Option<Duration>, rounds: Option<usize>) -> Self {
        let mut config = self;
        if let Some(turn) = turn {
            config.turn = turn.as_secs_f64();
            (config.warm_up, config.settle) = (config.turn, config.turn);
            config.records = config.records.min(1_000);
            config.connection_records = config.connection_records.min(1_000);
            config.connections = config.connections.min(8);
            config.connection_counts.retain(|count| *count <= 100);
            config.rates = vec![500.0];
        }
        if let Some(rounds) = rounds {
            (config.rounds, config.capacity_rounds) = (rounds, rounds);
        }
        config
    }

    pub(super) fn etc(records: u64) -> FleetRequests {
        FleetRequests::Memcached(Box::new(Workload {
            key: Distribution::EtcKey,
            value: Distribution::EtcValue,
            records,
            mix: Mix::updates(UPDATE_RATIO),
            ..Workload::default()
        }))
    }
}

pub(super) fn latency_budgets(micros: &[u16]) -> Vec<LatencyBudget> {
    // Those of a configuration are in range, so none is left out.
    let budgets = micros.iter().map(|&micros| LatencyBudget::new(Duration::from_micros(micros.into())));
    budgets.filter_map(Result::ok).collect()
}
