//! From which load on a mode pays, with random arrivals: what the law's thresholds come from.

use policies::law::Epoch;
use serde::Serialize;
use std::time::Duration;

use super::candidate::Candidate;
use super::comparison::{SimulatedRow, compare, run};
use super::core_loops::Run;
use super::costs::Costs;
use super::rules::law::INTERRUPT;
use super::sequence::SequenceClass;
use super::suite::{self, Length};

/// How plain mode looks to the law at one load, and what other modes make of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Crossing {
    /// The load, in percent of plain mode's capacity.
    pub load: u32,
    /// How much of the time the core is busy in plain mode.
    pub core_busy: f64,
    /// The busy share that the law measures in plain mode.
    pub busy_share: f64,
    /// Which part of the gaps is within 20, 50 and 100 µs, in plain mode.
    pub within_grace: [f64; 3],
    /// Interrupt-first mode, and grace mode with 20, 50 and 100 µs.
    pub modes: Vec<SimulatedRow>,
}

/// Simulates random arrivals at each of the loads.
pub(super) fn crossings(costs: &Costs, loads: &[u32], length: Length) -> Vec<Crossing> {
    loads.iter().map(|&load| crossing(costs, load, length)).collect()
}

fn crossing(costs: &Costs, load: u32, length: Length) -> Crossing {
    let sequence = suite::poisson(costs, SequenceClass::RandomMiddle, load, length);
    let plain = run(&sequence, Candidate::Plain, *costs);
    let mut modes = vec![Candidate::InterruptFirst];
    modes.extend([20, 50, 100].map(Candidate::Grace));
    Crossing {
        load,
        core_busy: plain.busy as f64 / plain.end as f64,
        busy_share: busy_share(&plain),
        within_grace: [20_000, 50_000, 100_000].map(|grace| {
            plain.gaps.iter().filter(|&&gap| gap <= grace).count() as f64 / plain.gaps.len().max(1) as f64
        }),
        modes: compare(&sequence, &modes, *costs),
    }
}

/// As `LawRule` measures it.
fn busy_share(run: &Run) -> f64 {
    let cpu = Duration::from_nanos(run.end - run.asleep + INTERRUPT * run.sleeps);
    Epoch { duration: Duration::from_nanos(run.end), cpu, ..Epoch::default() }.busy_share()
}
