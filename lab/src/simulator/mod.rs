//! A simulator of rules for kernel polling.
//!
//! One core serves one queue: requests arrive at given times, one packet each, and take a given time. The simulator goes
//! through the kernel's loops step by step (interrupt, timer, busy poll; see [`policies::law::QueueMode`]), adds up the
//! CPU time that each step costs, and records when each request is done. It reads no clock, so the same
//! input gives the same output.
//!
//! It has no caches, no other processes and no network card that gathers interrupts. Its figures compare rules with each
//! other; `lab compare` measures a machine.
//!
//! ```
//! use lab::simulator::{Candidate, Costs, Simulation, parse_gaps};
//!
//! let gaps = "20000\n".repeat(50_000);
//! let candidates = Candidate::all(&[]);
//! let simulation = Simulation::of_sequence(parse_gaps("each 20 µs", &gaps)?, &candidates, Costs::BARE);
//! let interrupt_first = &simulation.rows[1];
//! assert!(interrupt_first.cpu_to_plain > 1.1, "it polls three times in vain before each sleep");
//! # Ok::<(), lab::simulator::GapFileError>(())
//! ```

mod candidate;
mod comparison;
mod core_loops;
mod costs;
mod crossings;
mod figures;
mod gap_file;
mod optimum;
mod rules;
mod sequence;
mod suite;

pub use candidate::Candidate;
pub use comparison::SimulatedRow;
pub use costs::Costs;
pub use crossings::Crossing;
pub use figures::Figures;
pub use gap_file::{GapFileError, parse as parse_gaps};
pub use sequence::{Sequence, SequenceClass};

use serde::Serialize;
use suite::Length;

/// Loads in the table of crossings, in percent of plain mode's capacity.
const CROSSING_LOADS: [u32; 19] = [2, 3, 5, 7, 10, 15, 20, 30, 40, 50, 60, 70, 75, 80, 85, 90, 95, 100, 110];

/// Results of all rules on all sequences.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Simulation {
    /// The simulated machine.
    pub costs: Costs,
    /// One row for each rule on each sequence.
    pub rows: Vec<SimulatedRow>,
    /// From which load on a mode pays; empty for a single sequence.
    pub crossings: Vec<Crossing>,
}

impl Simulation {
    /// Runs the rules on the built-in sequences.
    ///
    /// # Errors
    /// If a recorded sequence in this crate can't be parsed.
    pub fn of_suite(candidates: &[Candidate], costs: Costs) -> Result<Self, GapFileError> {
        let sequences = suite::sequences(&costs, Length::FULL)?;
        let rows = sequences.iter().flat_map(|sequence| comparison::compare(sequence, candidates, costs));
        let crossings = crossings::crossings(&costs, &CROSSING_LOADS, Length::FULL);
        Ok(Self { costs, rows: rows.collect(), crossings })
    }

    /// Runs the rules on one sequence.
    pub fn of_sequence(sequence: Sequence, candidates: &[Candidate], costs: Costs) -> Self {
        let rows = comparison::compare(&sequence, candidates, costs);
        Self { costs, rows, crossings: Vec::new() }
    }
}

#[cfg(test)]
mod tests;
