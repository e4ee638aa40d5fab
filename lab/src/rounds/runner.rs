//! Whose turn it is, under which conditions, and which turns are repeated.

use std::io;
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
