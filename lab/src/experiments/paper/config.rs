//! How much is measured.

use std::time::Duration;

use loadgen::{Distribution, Mix, Workload};
use policies::law::LatencyBudget;
use serde::Serialize;

use super::part::Part;

/// Of 31 requests one stores: ETC has 30 gets for a set (Atikoglu et al., the paper's reference 3). The paper names no
/// ratio for its experiments.
const UPDATE_RATIO: f64 = 1.0 / 31.0;
/// The part of the time that the search for the capacity has, where there is one.
pub(super) const CAPACITY_SHARE: f64 = 0.35;

/// How much is measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PaperConfig {
    /// Records of the ETC workload. The paper has 1,000,000.
    pub records: u64,
    /// Connections of the fleet: the paper's 1120 for 8 cores are 140 for one.
    pub connections: usize,
    /// Seconds of a turn under the fleet.
    pub turn: f64,
    /// Seconds of load before it.
    pub warm_up: f64,
    /// Seconds of load before each turn of [`Part::Attached`], in which the policy settles.
    pub settle: f64,
    /// Rounds of each load.
    pub rounds: usize,
    /// Rounds of the search for the capacity.
    pub capacity_rounds: usize,
    /// Rates of Figure 5, as shares of vanilla's capacity.
    pub shares: Vec<f64>,
    /// Rates in the place of these shares, requests per second. If there are any, the capacity is not searched.
    pub rates: Vec<f64>,
    /// The latency budgets of kernel polling, µs: latency first, and efficiency.
    pub budgets: Vec<u16>,
    /// Those with which memcached and nginx are attached to.
    pub attached_budgets: Vec<u16>,
    /// Rates of [`Part::Attached`], as shares of memcached's capacity.
    pub attached_shares: Vec<f64>,
    /// Numbers of connections of Figure 9.
    pub connection_counts: Vec<usize>,
    /// Records for Figure 9, which starts a server for each number of connections.
    pub connection_records: u64,
    /// Bytes of the files of Table 2: what fits into a packet with its headers.
    pub file_sizes: Vec<usize>,
    /// Rounds of each load that the time of a part is enough for if no turn is repeated, in the order of [`Part::ALL`]. Starting
    /// servers comes on top.
    pub rounds_in_time: [u32; 4],
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
            attached_shares: if quick { vec![0.5] } else { vec![0.5, 1.1] },
            connection_counts: if quick { vec![1, 100, 10_000] } else { vec![1, 10, 100, 1_000, 10_000] },
            connection_records: if quick { 10_000 } else { 100_000 },
            file_sizes: if quick { vec![64] } else { vec![64, 1 << 10] },
            // Six rounds are the fewest that give an interval, and a turn that is not valid costs one.
            rounds_in_time: if quick { [8, 8, 8, 10] } else { [11, 8, 9, 16] },
        }
    }

    /// The same with shorter turns and fewer rounds, records and connections: to see that it works, not to measure.
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
            // More than twice what they take: on a slow machine, too, rounds are to end it, and not the time.
            config.rounds_in_time = [u32::try_from(2 * rounds + 6).unwrap_or(u32::MAX); 4];
        }
        config
    }

    /// The time that `contenders` under `loads` of a part may take, the search for the capacity included.
    pub(super) fn limit(&self, part: Part, contenders: usize, loads: usize) -> Duration {
        let index = Part::ALL.iter().position(|other| *other == part).unwrap_or(0);
        let turns = contenders * loads * self.rounds_in_time[index] as usize;
        let capacity_share = match part {
            Part::Web | Part::Connections => 0.0,
            _ => CAPACITY_SHARE,
        };
        Duration::from_secs_f64(turns as f64 * self.turn_seconds(part) / (1.0 - capacity_share))
    }

    /// How long a turn takes, with what comes before and after its measurement.
    pub(super) fn turn_seconds(&self, part: Part) -> f64 {
        /// Reading the distance of the cores and the host's counters, twice.
        const READING: f64 = 0.05;
        let fleet = self.warm_up + self.turn + READING;
        match part {
            Part::Attached | Part::Web => self.settle + fleet,
            Part::Policies | Part::Connections => fleet,
        }
    }

    /// Seconds of a trial of the search for the capacity.
    pub(crate) fn trial_seconds(&self) -> f64 {
        self.turn.min(0.15)
    }

    /// The paper's workload.
    pub(super) fn etc(records: u64) -> Workload {
        Workload {
            key: Distribution::EtcKey,
            value: Distribution::EtcValue,
            records,
            mix: Mix::updates(UPDATE_RATIO),
            ..Workload::default()
        }
    }
}

/// Latency budgets, given in microseconds.
pub(super) fn latency_budgets(micros: &[u16]) -> Vec<LatencyBudget> {
    // Those of a configuration are in range, so none is left out.
    micros
        .iter()
        .filter_map(|&micros| LatencyBudget::new(Duration::from_micros(micros.into())).ok())
        .collect()
}
