//! Whose turn it is, under which conditions, and which turns are repeated.

use std::io;
use std::time::{Duration, Instant};

use super::conditions::ConditionsGuard;
use super::figure::Figure;
use super::order::Rounds;
use super::results::Results;
use super::turn::{LoadPlan, Measurement, TakenTurn, Turn};
use crate::Error;
use crate::cores::CoreAssignment;

pub struct Runner<'a> {
    cores: CoreAssignment,
    progress: &'a mut dyn FnMut(&str),
    measured: Vec<Measurement>,
}

impl<'a> Runner<'a> {
    /// Calls `progress` before each turn, but not before one that is repeated.
    pub fn new(cores: CoreAssignment, progress: &'a mut dyn FnMut(&str)) -> Self {
        Self { cores, progress, measured: Vec::new() }
    }

    /// Measures all contenders in interleaved rounds, in the order of a Williams design.
    pub fn measure(
        &mut self,
        plan: LoadPlan,
        contenders: &[String],
        mut measure: impl FnMut(usize) -> Result<Turn, Error>,
    ) -> Result<(), Error> {
        let mut rounds = Rounds::new(contenders.len(), plan.rounds, plan.limit, plan.steal_limit);
        let mut turns = Vec::new();
        while let Some(next) = rounds.next() {
            let (contender, round) = (next.contender, next.round);
            if !next.is_repeat {
                let (load, name) = (&plan.name, &contenders[contender]);
                (self.progress)(&format!("{load}: {name}, round {} of {}", round + 1, plan.rounds));
            }
            let guard = ConditionsGuard::begin(self.cores)?;
            let turn = measure(contender)?;
            let mut conditions = guard.end()?;
            conditions.steal = turn.steal.unwrap_or(conditions.steal);
            let has_steal = conditions.steal > plan.steal_limit;
            let repeated = rounds.finish(next, &conditions);
            let (stolen, disturbed) = (has_steal && repeated, has_steal && !repeated);
            turns.push(TakenTurn { contender, round, conditions, stolen, disturbed, turn });
        }
        self.measured.push(Measurement { plan, contenders: contenders.to_vec(), turns });
        Ok(())
    }

    /// The medians of a figure of the load that was measured last, by contender. `None`: no valid
    /// turn.
    pub fn medians(&self, figure: Figure) -> Vec<Option<f64>> {
        let Some(last) = self.measured.last() else { return Vec::new() };
        let values = |contender| -> Vec<f64> {
            let turns = last.turns.iter().filter(|it| it.contender == contender && !it.stolen);
            let valid = turns.filter(|it| it.turn.invalid.is_none());
            valid.filter_map(|it| it.turn.figures.get(&figure).copied()).collect()
        };
        let median = |values: Vec<f64>| (!values.is_empty()).then(|| loadgen::medians::median(&values));
        (0..last.contenders.len()).map(|contender| median(values(contender))).collect()
    }

    pub fn last(&self) -> Option<&Measurement> {
        self.measured.last()
    }

    /// The rows of all loads. In each figure ratios refer to the best of the contenders with these
    /// indices.
    pub fn finish(self, references: &[usize]) -> Results {
        Results::new(self.measured, references)
    }
}

/// The limits of phases with these shares of some seconds, the next one's first: what a phase
/// leaves over is the later ones'.
pub(crate) struct Phases {
    ends: Instant,
    shares: Vec<f64>,
}

impl Phases {
    pub(crate) fn new(seconds: f64, shares: &[f64]) -> Self {
        let ends = Instant::now() + Duration::from_secs_f64(seconds);
        Self { ends, shares: shares.iter().rev().copied().collect() }
    }

    pub(crate) fn next_limit(&mut self) -> io::Result<Duration> {
        let left = self.ends.saturating_duration_since(Instant::now());
        let all: f64 = self.shares.iter().sum();
        let share = self.shares.pop().ok_or_else(|| io::Error::other("more phases than shares"))?;
        Ok(left.mul_f64(share / all).max(Duration::from_millis(100)))
    }
}
