//! How much is measured.

use std::fmt;

use policies::Policy;
use runtime::DriverKind;
use serde::Serialize;

use super::cores::Placement;

/// How much is measured.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct NumaConfig {
    /// Rounds of each load.
    pub rounds: usize,
    /// Seconds of load before a measurement.
    pub warm_up: f64,
    /// Seconds of a measurement.
    pub duration: f64,
    /// Connections of each of the load's threads.
    pub connections: usize,
    /// Records in the store.
    pub records: u64,
    /// The rate of the open loop, as a share of the first contestant's throughput in the closed loop.
    pub share: f64,
    /// The servers' driver.
    pub driver: DriverKind,
    /// The policies, each on all placements.
    pub policies: Vec<Policy>,
}

impl NumaConfig {
    /// For two policies about four minutes, or one if `quick`.
    pub fn new(policies: Vec<Policy>, driver: DriverKind, quick: bool) -> Self {
        Self {
            rounds: if quick { 6 } else { 16 },
            warm_up: if quick { 0.1 } else { 0.2 },
            duration: if quick { 0.25 } else { 0.5 },
            connections: 32,
            records: if quick { 2_000 } else { 10_000 },
            share: 0.5,
            driver,
            policies,
        }
    }

    /// What takes turns: the placements of the first policy, then those of the next one.
    pub fn contestants(&self) -> Vec<NumaContestant> {
        let contestant = |&policy| Placement::ALL.map(|placement| NumaContestant { placement, policy });
        self.policies.iter().flat_map(contestant).collect()
    }

    /// Turns without repeats, for a progress bar.
    pub fn steps(&self) -> usize {
        2 * self.rounds * self.contestants().len()
    }
}

/// A server in the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct NumaContestant {
    /// Where its workers are.
    pub placement: Placement,
    /// The policy that its runtime is built with.
    pub policy: Policy,
}

impl fmt::Display for NumaContestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.policy, self.placement)
    }
}
