//! What was measured of a contender once, and the turns that were taken under a load.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::conditions::{Conditions, STEAL_LIMIT};
use super::figure::Figure;
use crate::fleet::{FleetMeasurement, FleetPacing};
use crate::testbed::Receiver;

#[derive(Debug, Clone, Default, Serialize)]
pub struct Turn {
    /// What the machine does not count is not there.
    pub figures: BTreeMap<Figure, f64>,
    /// Latencies as ends of buckets in ns, ascending, with the number of requests in each.
    #[serde(skip)]
    pub latencies: Vec<(u64, u64)>,
    /// How a controller drove the server's queue at the end. `None` without a controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invalid: Option<String>,
    /// CPU time that the hypervisor took from the cores that work for the server (steal), as a
    /// share of one core. `None`: that of all cores counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steal: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<Box<LoadDetail>>,
}

/// What else was counted under a load of the fleet.
#[derive(Debug, Clone, Serialize)]
pub struct LoadDetail {
    /// What the fleet has counted. Its `latencies` are empty here: they are in [`Turn::latencies`].
    pub fleet: FleetMeasurement,
    /// Segments that the server's kernel has sent again.
    pub retransmitted: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attach: Option<AttachProgress>,
}

/// What an attaching process did since it was last asked.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct AttachProgress {
    pub instances: usize,
    /// Why it gave polling up for some seconds, each time that it did.
    pub stepped_back: Vec<String>,
}

impl Turn {
    /// A turn with these figures. Those that are not finite are left out.
    pub fn new(figures: impl IntoIterator<Item = (Figure, f64)>) -> Self {
        let mut turn = Self::default();
        figures.into_iter().for_each(|(figure, value)| turn.set(figure, value));
        turn
    }

    /// Adds a figure, unless it is not finite.
    pub fn set(&mut self, figure: Figure, value: f64) {
        if value.is_finite() {
            self.figures.insert(figure, value);
        }
    }
}

/// Fewer rounds give no interval that holds as often as it says, and no verdict.
pub const LEAST_ROUNDS: usize = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoadKind {
    Open,
    /// Each connection sends again when it has its reply.
    Closed,
}

/// A load that is to be measured; see [`LoadResult`](super::LoadResult).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoadPlan {
    pub name: String,
    pub kind: LoadKind,
    pub at: f64,
    pub pacing: Option<FleetPacing>,
    pub receiver: Option<Receiver>,
    /// Rounds; each measures every contender once.
    pub rounds: usize,
    /// The time that all rounds may take, or twice as long until there are [`LEAST_ROUNDS`]; half of
    /// it may go to turns that are repeated.
    pub limit: Duration,
    pub steal_limit: f64,
}

impl LoadPlan {
    pub fn new(name: impl Into<String>, kind: LoadKind, at: f64, rounds: usize, limit: Duration) -> Self {
        let steal_limit = STEAL_LIMIT;
        let (pacing, receiver) = (None, None);
        Self { name: name.into(), kind, at, pacing, receiver, rounds, limit, steal_limit }
    }
}

/// A turn that was taken, whatever became of it.
#[derive(Debug, Clone, Serialize)]
pub struct TakenTurn {
    pub contender: usize,
    pub conditions: Conditions,
    /// Whether another one took its place: for steal, or because it was not valid.
    pub left_out: bool,
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

/// The turns of a class of distance, by their indices.
#[derive(Debug, Default)]
pub(super) struct ClassRounds {
    /// Complete rounds, oldest first: the index of one turn of each contender, in the contenders' order.
    pub(super) complete: Vec<Vec<usize>>,
    /// The round in progress: the index of each contender's turn in it, or `None` if it has none yet.
    pub(super) begun: Vec<Option<usize>>,
}

impl Measurement {
    /// The rounds among the turns that are `counted`, in their order: a round is complete when each
    /// contender has had a turn since the last one. Of several turns of a contender the last one counts,
    /// which is nearest in time to the others.
    pub(super) fn rounds_of(&self, counted: impl Fn(usize, &TakenTurn) -> bool) -> ClassRounds {
        let mut rounds = ClassRounds { begun: vec![None; self.contenders.len()], ..ClassRounds::default() };
        for (at, turn) in self.turns.iter().enumerate().filter(|(at, turn)| counted(*at, turn)) {
            rounds.begun[turn.contender] = Some(at);
            if let Some(round) = rounds.begun.iter().copied().collect() {
                rounds.complete.push(round);
                rounds.begun.fill(None);
            }
        }
        rounds
    }
}
