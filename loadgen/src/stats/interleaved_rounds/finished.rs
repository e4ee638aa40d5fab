//! The results of interleaved rounds.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::conditions::{Conditions, DistanceClass};
use crate::stats::batch_means::{Estimate, mean_estimate};

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
    /// The class of distance.
    pub class: DistanceClass,
    /// The place in time among all turns of the run, those left out included, from 0.
    pub sequence: usize,
}

/// A round in which every contestant had its turn, all in the same class of distance.
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

/// The rounds of one class of distance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ClassRounds<T> {
    /// The class.
    pub class: DistanceClass,
    /// The shortest distance read in this class, in nanoseconds; `None` if none was measured.
    pub low: Option<f64>,
    /// The longest distance read in this class, in nanoseconds; `None` if none was measured.
    pub high: Option<f64>,
    /// The rounds that are complete.
    pub rounds: Vec<Round<T>>,
}

/// A turn that exceeded the steal limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DisturbedTurn {
    /// The index of the contestant.
    pub contestant: usize,
    /// What disturbed it.
    pub conditions: Conditions,
    /// Whether the turn was repeated; otherwise its value counts.
    pub repeated: bool,
}

/// Why a turn is not part of the results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum LeftOutReason {
    /// The hypervisor took too much CPU time; the turn was repeated.
    Steal,
    /// The distance of the cores changed meanwhile, or was seen in this turn only.
    ClassChanged,
    /// The measurement was invalid. Its round is kept, without this value.
    Invalid,
    /// Not every contestant had its turn in this round.
    RoundIncomplete,
}

impl std::fmt::Display for LeftOutReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Steal => "steal",
            Self::ClassChanged => "the distance of the cores changed",
            Self::Invalid => "invalid",
            Self::RoundIncomplete => "its round was not completed",
        })
    }
}

/// A turn that is not part of the results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LeftOutTurn<T> {
    /// The index of the contestant.
    pub contestant: usize,
    /// What was measured; `None` if the measurement was invalid.
    pub value: Option<T>,
    /// The machine's conditions meanwhile.
    pub conditions: Conditions,
    /// Why it was left out.
    pub reason: LeftOutReason,
    /// The place in time among all turns of the run, from 0.
    pub sequence: usize,
}

/// The result of [`Rounds`](super::Rounds).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FinishedRounds<T> {
    /// The rounds of each class of distance that was seen, the class with most rounds first. Never empty: without a
    /// turn it has one class without rounds.
    pub classes: Vec<ClassRounds<T>>,
    /// Turns that are not part of the results, in order of time.
    pub left_out: Vec<LeftOutTurn<T>>,
    /// Turns that exceeded the steal limit, in order of time.
    pub disturbed: Vec<DisturbedTurn>,
    /// The time of the attempts that were repeated because of steal.
    pub repeated_time: Duration,
}

impl<T> FinishedRounds<T> {
    /// The class with most rounds, whose results are the verdict's.
    pub fn leading(&self) -> &ClassRounds<T> {
        &self.classes[0]
    }

    /// The class with most rounds, without the others.
    pub fn into_leading(mut self) -> ClassRounds<T> {
        self.classes.swap_remove(0)
    }

    /// The number of turns that were left out for this reason.
    pub fn left_out_for(&self, reason: LeftOutReason) -> usize {
        self.left_out.iter().filter(|turn| turn.reason == reason).count()
    }
}

/// One figure of a contestant, from every round in which its measurement was valid.
pub fn figures<T>(rounds: &[Round<T>], contestant: usize, figure: impl Fn(&T) -> f64) -> Vec<f64> {
    rounds.iter().filter_map(|round| round.value(contestant)).map(figure).collect()
}

/// One figure of a contestant over the same figure of `reference`, from every round in which both are valid. Turns of
/// a round are of one class of distance, so no ratio is taken across classes.
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

    #[test]
    fn a_ratio_that_holds_in_each_round_has_a_narrow_interval_though_rounds_differ() {
        let ratios = [201.0 / 100.0, 99.0 / 50.0, 400.0 / 200.0];
        let found = mean_ratio(&ratios).unwrap();
        assert!((1.99..2.01).contains(&found.mean) && found.low > 1.95 && found.high < 2.05, "{found:?}");
        assert_eq!(mean_ratio(&[f64::NAN; 3]), None);
        assert_eq!(mean_ratio(&ratios[..1]), None);
    }
}
