//! Sequences of arrivals.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

/// What kind of arrivals a sequence has. The report has one table for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum SequenceClass {
    /// A Poisson process at 5, 10 and 25 % of plain mode's capacity.
    RandomLow,
    /// A Poisson process at 50 and 75 %.
    RandomMiddle,
    /// A Poisson process at 90 and 95 %.
    RandomHigh,
    /// A Poisson process at 110 %.
    Overload,
    /// From 10 to 90 and back to 10 %.
    Steps,
    /// On for half of a period and off for the other.
    Bursts,
    /// Equal gaps that are a little shorter or longer than a grace time.
    AroundGrace,
    /// Short and long gaps in turns.
    Alternating,
    /// Pareto gaps.
    HeavyTails,
    /// Recorded from servers' queues.
    Recorded,
}

impl SequenceClass {
    /// A description for the heading of a table.
    pub fn title(self) -> &'static str {
        match self {
            Self::RandomLow => "Random arrivals at 5, 10 and 25 % of plain's capacity",
            Self::RandomMiddle => "Random arrivals at 50 and 75 %",
            Self::RandomHigh => "Random arrivals at 90 and 95 %",
            Self::Overload => "Random arrivals at 110 %: plain falls behind",
            Self::Steps => "Load steps from 10 to 90 and back to 10 %",
            Self::Bursts => "Bursts at 90 %, then silence; periods of 1 ms to 1 s",
            Self::AroundGrace => "Equal gaps, 5 % shorter or longer than 20, 50 and 100 µs",
            Self::Alternating => "Short and long gaps in turns, half and twice a block or a grace time",
            Self::HeavyTails => "Heavy-tailed (Pareto) gaps at 10, 25 and 50 %",
            Self::Recorded => "Recorded arrivals",
        }
    }
}

/// Arrival times, and which part of them is measured.
#[derive(Debug, Clone)]
pub struct Sequence {
    /// A name for the report.
    pub name: String,
    /// The kind of arrivals.
    pub class: SequenceClass,
    /// When requests arrive, in ns, ascending.
    pub arrivals: Vec<u64>,
    /// Requests that arrive before this time (in ns) are not measured: the rules adapt first.
    pub measured_from: u64,
    /// When the load steps, in ns.
    pub steps: Vec<u64>,
}

impl Sequence {
    /// A sequence from the gaps between its arrivals, in ns. All of it is measured.
    pub fn new(name: impl Into<String>, class: SequenceClass, gaps: impl IntoIterator<Item = u64>) -> Self {
        let arrivals = gaps.into_iter().scan(0_u64, |now, gap| {
            *now = now.saturating_add(gap);
            Some(*now)
        });
        Self { name: name.into(), class, arrivals: arrivals.collect(), measured_from: 0, steps: Vec::new() }
    }

    /// The index of the first request that is measured.
    pub(super) fn first_measured(&self) -> usize {
        self.arrivals.partition_point(|&arrival| arrival < self.measured_from)
    }

    pub(super) fn measured_from(mut self, time: u64) -> Self {
        self.measured_from = time;
        self
    }
}

/// Draws gaps. The same seed gives the same gaps.
pub(super) struct Gaps(SmallRng);

impl Gaps {
    pub(super) fn new(seed: u64) -> Self {
        Self(SmallRng::seed_from_u64(seed))
    }

    /// Above 0, at most 1.
    fn uniform(&mut self) -> f64 {
        1.0 - self.0.random::<f64>()
    }

    pub(super) fn exponential(&mut self, mean: f64) -> u64 {
        (-self.uniform().ln() * mean) as u64
    }

    /// With this shape (above 1) and mean; at most 10 ms.
    pub(super) fn pareto(&mut self, shape: f64, mean: f64) -> u64 {
        let least = mean * (shape - 1.0) / shape;
        (least * self.uniform().powf(-1.0 / shape)).min(1e7) as u64
    }

    /// The gaps of a Poisson process at `rate` per second, for `duration` ns.
    pub(super) fn poisson(&mut self, rate: f64, duration: u64) -> Vec<u64> {
        let mut gaps = Vec::with_capacity((rate * duration as f64 / 1e9 * 1.01) as usize);
        let mut now = 0;
        loop {
            let gap = self.exponential(1e9 / rate);
            now += gap;
            if now >= duration {
                return gaps;
            }
            gaps.push(gap);
        }
    }
}

/// Repeats a pattern of gaps for `duration` ns.
pub(super) fn repeated<const N: usize>(pattern: [u64; N], duration: u64) -> impl Iterator<Item = u64> {
    let period: u64 = pattern.iter().sum();
    let count = duration / period.max(1) * pattern.len() as u64;
    pattern.into_iter().cycle().take(count as usize)
}
