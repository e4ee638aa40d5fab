//! All rules on all sequences.

use std::collections::BTreeMap;

use serde::Serialize;

use super::candidate::Candidate;
use super::core_loops::{Run, serve_all};
use super::costs::Costs;
use super::figures::Figures;
use super::optimum::least_cpu_time;
use super::sequence::{Sequence, SequenceClass};

/// One rule on one sequence. Ratios are of the measured part.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SimulatedRow {
    /// The name of the sequence of arrivals.
    pub sequence: String,
    /// The process that its arrivals follow, and the load.
    pub class: SequenceClass,
    /// The rule, with its parameters.
    pub candidate: Candidate,
    /// CPU time and delay of a request, µs.
    #[serde(flatten)]
    pub figures: Figures,
    /// CPU time over that of plain mode.
    pub cpu_to_plain: f64,
    /// CPU time over that of the offline optimum that delays no request longer than this rule may.
    pub cpu_to_optimum: f64,
    /// Median delay over plain's.
    pub p50_to_plain: f64,
    /// 99th percentile of the delay over plain's.
    pub p99_to_plain: f64,
}

/// Simulates all of these rules on a sequence.
pub(super) fn compare(sequence: &Sequence, candidates: &[Candidate], costs: Costs) -> Vec<SimulatedRow> {
    let plain_run = run(sequence, Candidate::Plain, costs);
    let plain = Figures::new(sequence, &plain_run, &plain_run.delays);
    let measured = &sequence.arrivals[sequence.first_measured()..];
    let mut optima = BTreeMap::new();
    let mut row = |&candidate: &Candidate| {
        let figures = match candidate {
            Candidate::Plain => plain,
            other => Figures::new(sequence, &run(sequence, other, costs), &plain_run.delays),
        };
        let optimum: &mut f64 = optima.entry(candidate.delay()).or_insert_with(|| {
            least_cpu_time(measured, candidate.delay(), &costs) as f64 / 1e3 / measured.len().max(1) as f64
        });
        SimulatedRow {
            sequence: sequence.name.clone(),
            class: sequence.class,
            candidate,
            figures,
            cpu_to_plain: figures.cpu_us / plain.cpu_us,
            cpu_to_optimum: figures.cpu_us / *optimum,
            p50_to_plain: figures.p50_us / plain.p50_us,
            p99_to_plain: figures.p99_us / plain.p99_us,
        }
    };
    candidates.iter().map(&mut row).collect()
}

pub(super) fn run(sequence: &Sequence, candidate: Candidate, costs: Costs) -> Run {
    serve_all(&sequence.arrivals, sequence.first_measured(), costs, &mut *candidate.rule(&costs))
}
