//! Interleaved rounds: each round measures every contestant once, so that drift of the machine affects all of them.
//!
//! [`Rounds`] decides whose turn it is, repeats turns that the hypervisor disturbed, and collects the values. It
//! does not measure: the caller does, blocking or `async`, between [`next_turn`](Rounds::next_turn) and
//! [`finish_turn`](Rounds::finish_turn).
//!
//! ```
//! use loadgen::medians::median_interval;
//! use loadgen::interleaved_rounds::{Conditions, Rounds, TurnOrder, ratios};
//!
//! // Two contestants, three rounds; the machine is twice as fast in the second round.
//! let mut rounds = Rounds::new(2, 3).order(TurnOrder::Rotated);
//! while let Some(turn) = rounds.next_turn() {
//!     let machine = if turn.round() == 1 { 2.0 } else { 1.0 };
//!     let rate = machine * if turn.contestant() == 0 { 100.0 } else { 150.0 };
//!     rounds.finish_turn(turn, Some(rate), Conditions::default());
//! }
//! let ratio = median_interval(&ratios(&rounds.finish().rounds, 1, 0, |rate| *rate));
//! assert_eq!((ratio.low, ratio.median, ratio.high), (1.5, 1.5, 1.5));
//! ```

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::stats::batch_means::{Estimate, mean_estimate};

/// The order of turns within a round.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TurnOrder {
    /// The same order in every round.
    Fixed,
    /// Each round starts with the next contestant.
    #[default]
    Rotated,
    /// Every second round runs backwards.
    Alternating,
    /// Rounds form pairs, one forwards and one backwards; each pair starts with the next contestant.
    RotatedPairs,
}

impl TurnOrder {
    fn contestant(self, round: usize, position: usize, contestants: usize) -> usize {
        let reversed = contestants - 1 - position;
        match self {
            Self::Fixed => position,
            Self::Rotated => (position + round) % contestants,
            Self::Alternating if round.is_multiple_of(2) => position,
            Self::Alternating => reversed,
            Self::RotatedPairs => {
                let place = if round.is_multiple_of(2) { position } else { reversed };
                (place + round / 2) % contestants
            }
        }
    }
}

/// How often a turn is repeated that exceeded the steal limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RepeatPolicy {
    /// Never: the disturbed turn counts.
    #[default]
    Never,
    /// Once; the second attempt counts, whatever disturbs it.
    Once,
    /// Until all disturbed attempts together have taken this long.
    Within(Duration),
    /// Until an attempt is undisturbed.
    Always,
}

/// What the machine did during a turn that none of the contestants caused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Conditions {
    /// CPU time that the hypervisor took (steal), as a share of one core.
    pub steal: f64,
}

impl Conditions {
    /// Conditions with this much steal, as a share of one core.
    pub fn with_steal(steal: f64) -> Self {
        Self { steal }
    }
}

/// Whose turn it is. Ends with [`Rounds::finish_turn`].
#[derive(Debug)]
#[must_use = "a turn that is not finished is started again by `next_turn`"]
pub struct Turn {
    round: usize,
    contestant: usize,
    last_of_round: bool,
    repeats: bool,
    started: Instant,
}

impl Turn {
    /// The round, from 0.
    pub fn round(&self) -> usize {
        self.round
    }

    /// The index of the contestant to measure.
    pub fn contestant(&self) -> usize {
        self.contestant
    }

    /// Whether the round ends with this turn.
    pub fn is_last_of_round(&self) -> bool {
        self.last_of_round
    }

    /// Whether this turn repeats a disturbed one.
    pub fn is_repeat(&self) -> bool {
        self.repeats
    }
}

/// What [`Rounds::finish_turn`] did with a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TurnOutcome {
    /// The value counts.
    Kept,
    /// The turn was disturbed; the value counts because [`RepeatPolicy`] allows no further attempt.
    KeptDisturbed,
    /// The turn was disturbed; the next turn measures the same contestant again.
    Repeated,
}

/// A turn that exceeded the steal limit.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct DisturbedTurn {
    /// The index of the contestant.
    pub contestant: usize,
    /// What disturbed it.
    pub conditions: Conditions,
    /// Whether the turn was repeated; otherwise its value counts.
    pub repeated: bool,
}

/// One contestant's part of a round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FinishedTurn<T> {
    /// The index of the contestant.
    pub contestant: usize,
    /// What was measured; `None` if the measurement was invalid.
    pub value: Option<T>,
    /// The machine's conditions meanwhile.
    pub conditions: Conditions,
}

/// A round in which every contestant had its turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Round<T> {
    /// The turns, in the order in which they were taken.
    pub turns: Vec<FinishedTurn<T>>,
}

impl<T> Round<T> {
    /// What was measured of a contestant; `None` if its turn was invalid.
    pub fn value(&self, contestant: usize) -> Option<&T> {
        self.turns.iter().find(|turn| turn.contestant == contestant)?.value.as_ref()
    }

    /// Whether every turn's measurement was valid.
    pub fn is_valid(&self) -> bool {
        self.turns.iter().all(|turn| turn.value.is_some())
    }
}

/// The result of [`Rounds`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FinishedRounds<T> {
    /// The rounds; a round that was broken off is left out.
    pub rounds: Vec<Round<T>>,
    /// Turns that exceeded the steal limit, in order.
    pub disturbed: Vec<DisturbedTurn>,
    /// The time of the attempts that were repeated.
    pub repeated_time: Duration,
}

/// Interleaved rounds in progress.
#[derive(Debug)]
pub struct Rounds<T> {
    contestants: usize,
    count: usize,
    order: TurnOrder,
    steal_limit: f64,
    repeat: RepeatPolicy,
    /// Turns of the round in progress.
    current: Vec<FinishedTurn<T>>,
    /// Attempts at the turn in progress that were repeated.
    attempts: usize,
    finished: FinishedRounds<T>,
}

impl<T> Rounds<T> {
    /// `count` rounds of `contestants`, rotated, without a steal limit.
    pub fn new(contestants: usize, count: usize) -> Self {
        Self {
            contestants,
            count,
            order: TurnOrder::default(),
            steal_limit: f64::INFINITY,
            repeat: RepeatPolicy::Never,
            current: Vec::with_capacity(contestants),
            attempts: 0,
            finished: FinishedRounds {
                rounds: Vec::with_capacity(count),
                disturbed: Vec::new(),
                repeated_time: Duration::ZERO,
            },
        }
    }

    /// Sets the order of turns within a round.
    pub fn order(mut self, order: TurnOrder) -> Self {
        self.order = order;
        self
    }

    /// Repeats turns with more steal than `limit`, a share of one core, as `policy` says.
    pub fn repeat_above(mut self, limit: f64, policy: RepeatPolicy) -> Self {
        self.steal_limit = limit;
        self.repeat = policy;
        self
    }

    /// The turn to measure now; `None` after the last round.
    pub fn next_turn(&mut self) -> Option<Turn> {
        let (round, position) = (self.finished.rounds.len(), self.current.len());
        if round == self.count || self.contestants == 0 {
            return None;
        }
        Some(Turn {
            round,
            contestant: self.order.contestant(round, position, self.contestants),
            last_of_round: position + 1 == self.contestants,
            repeats: self.attempts > 0,
            started: Instant::now(),
        })
    }

    /// Ends a turn. `value` is `None` if the measurement is invalid.
    pub fn finish_turn(&mut self, turn: Turn, value: Option<T>, conditions: Conditions) -> TurnOutcome {
        let disturbed = conditions.steal > self.steal_limit;
        let repeated = disturbed
            && match self.repeat {
                RepeatPolicy::Never => false,
                RepeatPolicy::Once => self.attempts == 0,
                RepeatPolicy::Within(budget) => self.finished.repeated_time < budget,
                RepeatPolicy::Always => true,
            };
        let contestant = turn.contestant;
        if disturbed {
            self.finished.disturbed.push(DisturbedTurn { contestant, conditions, repeated });
        }
        if repeated {
            self.attempts += 1;
            self.finished.repeated_time += turn.started.elapsed();
            return TurnOutcome::Repeated;
        }
        self.attempts = 0;
        self.current.push(FinishedTurn { contestant, value, conditions });
        if turn.last_of_round {
            self.finished.rounds.push(Round { turns: std::mem::take(&mut self.current) });
        }
        if disturbed { TurnOutcome::KeptDisturbed } else { TurnOutcome::Kept }
    }

    /// The rounds that are complete. May be called before the last round, to break off.
    pub fn finish(self) -> FinishedRounds<T> {
        self.finished
    }
}

/// One figure of a contestant, from every round in which its measurement was valid.
pub fn figures<T>(rounds: &[Round<T>], contestant: usize, figure: impl Fn(&T) -> f64) -> Vec<f64> {
    rounds.iter().filter_map(|round| round.value(contestant)).map(figure).collect()
}

/// One figure of a contestant over the same figure of `reference`, from every round in which both are valid.
pub fn ratios<T>(
    rounds: &[Round<T>],
    contestant: usize,
    reference: usize,
    figure: impl Fn(&T) -> f64,
) -> Vec<f64> {
    let ratio = |round: &Round<T>| Some(figure(round.value(contestant)?) / figure(round.value(reference)?));
    rounds.iter().filter_map(ratio).collect()
}

/// The geometric mean of ratios, with its 95 % interval; `None` for fewer than two, or if one is zero or not finite.
pub fn mean_ratio(ratios: &[f64]) -> Option<Estimate> {
    let logarithms: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    let valid = logarithms.iter().all(|logarithm| logarithm.is_finite());
    let Estimate { mean, low, high, batches } = mean_estimate(&logarithms).filter(|_| valid)?;
    Some(Estimate { mean: mean.exp(), low: low.exp(), high: high.exp(), batches })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contestants(order: TurnOrder, contestants: usize, count: usize) -> Vec<Vec<usize>> {
        let mut rounds = Rounds::new(contestants, count).order(order);
        while let Some(turn) = rounds.next_turn() {
            rounds.finish_turn(turn, Some(()), Conditions::default());
        }
        let turns = |round: &Round<()>| round.turns.iter().map(|turn| turn.contestant).collect();
        rounds.finish().rounds.iter().map(turns).collect()
    }

    #[test]
    fn each_order_gives_every_contestant_one_turn_a_round() {
        assert_eq!(contestants(TurnOrder::Fixed, 3, 2), [[0, 1, 2], [0, 1, 2]]);
        assert_eq!(contestants(TurnOrder::Rotated, 3, 3), [[0, 1, 2], [1, 2, 0], [2, 0, 1]]);
        assert_eq!(contestants(TurnOrder::Alternating, 3, 3), [[0, 1, 2], [2, 1, 0], [0, 1, 2]]);
        assert_eq!(contestants(TurnOrder::RotatedPairs, 3, 4), [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]]);
        assert_eq!(contestants(TurnOrder::Rotated, 0, 3), [[0; 0]; 0]);
    }

    /// The outcomes of one turn whose attempts have this much steal, and the attempt that counts.
    fn outcomes(policy: RepeatPolicy, steals: &[f64]) -> (Vec<TurnOutcome>, usize, usize) {
        let mut rounds = Rounds::new(1, 1).repeat_above(0.02, policy);
        let (mut outcomes, mut attempt) = (Vec::new(), 0);
        while let Some(turn) = rounds.next_turn() {
            let conditions = Conditions::with_steal(steals[attempt]);
            outcomes.push(rounds.finish_turn(turn, Some(attempt), conditions));
            attempt += 1;
        }
        let finished = rounds.finish();
        (outcomes, *finished.rounds[0].value(0).unwrap(), finished.disturbed.len())
    }

    #[test]
    fn a_turn_with_steal_is_repeated_as_the_policy_says() {
        use TurnOutcome::{Kept, KeptDisturbed, Repeated};
        let steals = [0.5, 0.03, 0.02];
        assert_eq!(outcomes(RepeatPolicy::Never, &steals), (vec![KeptDisturbed], 0, 1));
        assert_eq!(outcomes(RepeatPolicy::Once, &steals), (vec![Repeated, KeptDisturbed], 1, 2));
        assert_eq!(outcomes(RepeatPolicy::Always, &steals), (vec![Repeated, Repeated, Kept], 2, 2));
        assert_eq!(outcomes(RepeatPolicy::Within(Duration::ZERO), &steals), (vec![KeptDisturbed], 0, 1));
        let hour = Duration::from_secs(3600);
        assert_eq!(outcomes(RepeatPolicy::Within(hour), &steals), (vec![Repeated, Repeated, Kept], 2, 2));
    }

    #[test]
    fn an_invalid_turn_leaves_its_round_out_of_the_ratios() {
        let mut rounds = Rounds::new(2, 2);
        while let Some(turn) = rounds.next_turn() {
            let value = 1.0 + turn.contestant() as f64;
            let valid = turn.round() == 0 || turn.contestant() == 0;
            rounds.finish_turn(turn, valid.then_some(value), Conditions::default());
        }
        let finished = rounds.finish().rounds;
        assert_eq!(finished.iter().map(Round::is_valid).collect::<Vec<_>>(), [true, false]);
        assert_eq!(figures(&finished, 0, |value| *value), [1.0, 1.0]);
        assert_eq!(figures(&finished, 1, |value| *value), [2.0]);
        assert_eq!(ratios(&finished, 1, 0, |value| *value), [2.0]);
    }

    #[test]
    fn a_round_that_is_broken_off_is_left_out() {
        let mut rounds = Rounds::new(2, 2);
        for _ in 0..3 {
            let turn = rounds.next_turn().unwrap();
            rounds.finish_turn(turn, Some(1.0), Conditions::default());
        }
        assert_eq!(rounds.finish().rounds.len(), 1);
    }

    #[test]
    fn a_ratio_that_holds_in_each_round_has_a_narrow_interval_though_rounds_differ() {
        let ratios = [201.0 / 100.0, 99.0 / 50.0, 400.0 / 200.0];
        let found = mean_ratio(&ratios).unwrap();
        assert!((1.99..2.01).contains(&found.mean) && found.low > 1.95 && found.high < 2.05, "{found:?}");
        assert_eq!(mean_ratio(&[f64::NAN; 3]), None);
        assert_eq!(mean_ratio(&ratios[..1]), None);
    }
}
