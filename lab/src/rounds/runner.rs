//! Whose turn it is, under which conditions, and which turns are repeated.

use std::time::{Duration, Instant};

use super::conditions::observed;
use super::order::Rounds;
use super::results::Results;
use super::turn::{LoadPlan, Measurement, Turn};
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
    ) -> Result<&Measurement, Error> {
        let (load, count) = (plan.name.clone(), plan.rounds);
        let mut rounds = Rounds::new(plan, contenders.to_vec());
        while let Some(next) = rounds.next() {
            if !next.is_repeat {
                let name = &contenders[next.contender];
                (self.progress)(&format!("{load}: {name}, round {} of {count}", next.round + 1));
            }
            let (turn, conditions) = observed(self.cores, || measure(next.contender))?;
            rounds.finish(next, conditions, turn);
        }
        self.measured.push(rounds.measured);
        Ok(&self.measured[self.measured.len() - 1])
    }

    /// The rows of all loads. In each figure ratios refer to the best of the contenders with these
    /// indices.
    pub fn finish(self, references: &[usize]) -> Results {
        Results::new(self.measured, references)
    }
}

/// The equal share that the next one of some loads, which are `left`, has of the time to a deadline.
pub(crate) fn share_of_time(deadline: Instant, left: usize) -> Duration {
    deadline.saturating_duration_since(Instant::now()) / u32::try_from(left).unwrap_or(u32::MAX)
}
