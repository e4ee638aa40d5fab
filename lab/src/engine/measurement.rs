//! A load, and the turns that were taken under it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::conditions::{Conditions, STEAL_LIMIT};
use super::turn::Turn;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoadKind {
    Capacity,
    Open,
    Steps,
    /// Each connection sends again when it has its reply.
    Closed,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoadPlan {
    pub name: String,
    pub kind: LoadKind,
    /// What loads differ in: requests per second, bytes of a file, or connections.
    pub at: f64,
    pub share: Option<f64>,
    /// Rounds; each measures every contender once.
    pub rounds: usize,
    /// The time that all rounds may take; half of it may go to turns that are repeated.
    pub limit: Duration,
    /// Steal, as a share of one core, above which a turn is repeated.
    pub steal_limit: f64,
}

impl LoadPlan {
    pub fn new(name: impl Into<String>, kind: LoadKind, at: f64, rounds: usize, limit: Duration) -> Self {
        Self { name: name.into(), kind, at, share: None, rounds, limit, steal_limit: STEAL_LIMIT }
    }
}

/// A turn that was taken, whatever became of it.
#[derive(Debug, Clone, Serialize)]
pub struct TakenTurn {
    pub contender: usize,
    /// The round, from 0, of the class of distance that the machine was in. A turn that is repeated
    /// has that of its repeat.
    pub round: usize,
    pub conditions: Conditions,
    pub stolen: bool,
    /// Whether it counts in spite of steal: nothing was left for another attempt.
    pub disturbed: bool,
    #[serde(flatten)]
    pub turn: Turn,
}

#[derive(Debug, Clone, Serialize)]
pub struct Measurement {
    #[serde(flatten)]
    pub plan: LoadPlan,
    pub contenders: Vec<String>,
    pub turns: Vec<TakenTurn>,
}
