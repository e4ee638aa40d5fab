//! The report on a comparison of policies or drivers.

use loadgen::interleaved_rounds::Round;
use policies::GraceTime;
use serde::Serialize;

use super::grace_time_report::grace_time_line;
use super::machine::Machine;
use super::notes::{notes, routing};
use super::policy_table::{policy_table, verdict};
use crate::experiments::CoreAssignment;
use crate::experiments::grace_time_calibration::GraceTimeCalibration;
use crate::experiments::policy_comparison::{
    ComparisonConfig, Measurement, PolicyComparison, PolicyRow, policy_rows,
};

/// The report on a comparison of policies or drivers.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct ComparisonReport {
    /// The machine.
    pub machine: Machine,
    /// `testbed` or `loopback`.
    pub network: &'static str,
    /// Where the network work ran, a sentence each.
    pub routing: Vec<String>,
    /// Which core ran what.
    pub cores: CoreAssignment,
    /// What was to be measured.
    pub config: ComparisonConfig,
    /// The grace times that were tried; `None` if it was given.
    pub grace_times_tried: Option<GraceTimeCalibration>,
    /// The grace time that was used.
    pub grace_time: GraceTime,
    /// At saturation, in a closed loop.
    pub rows: Vec<PolicyRow>,
    /// At fixed rates, in an open loop.
    pub rate_sweep: Vec<PolicyRow>,
    /// One sentence.
    pub verdict: String,
    /// Reasons to doubt the results, a sentence each.
    pub notes: Vec<String>,
    /// Disturbed turns that were repeated, a sentence each.
    pub repeated: Vec<String>,
    /// Disturbed turns that were kept, a sentence each.
    pub kept_disturbed: Vec<String>,
    /// Every measurement at saturation, with the knobs read back; an array for each round, in the order of turns.
    pub rounds: Vec<Vec<Measurement>>,
    /// Every measurement at a fixed rate.
    pub rate_sweep_rounds: Vec<Vec<Measurement>>,
}

impl ComparisonReport {
    /// Summarises the rounds of a comparison: those at saturation, and those at each of several rates.
    pub fn new(
        comparison: &PolicyComparison,
        grace_times_tried: Option<GraceTimeCalibration>,
        rounds: Vec<Round<Measurement>>,
        rate_sweep: Vec<Vec<Round<Measurement>>>,
    ) -> Self {
        let contestants = &comparison.config.contestants;
        let rows = policy_rows(contestants, &rounds);
        let rate_rows = rate_sweep.iter().flat_map(|rounds| policy_rows(contestants, rounds)).collect();
        let rate_sweep_rounds: Vec<Round<Measurement>> = rate_sweep.into_iter().flatten().collect();
        let in_order = |round: Round<Measurement>| -> Vec<Measurement> {
            round.turns.into_iter().filter_map(|turn| turn.value).collect()
        };
        Self {
            machine: Machine::read(),
            network: if comparison.has_testbed() { "testbed" } else { "loopback" },
            routing: routing(comparison),
            cores: comparison.cores,
            config: comparison.config.clone(),
            grace_times_tried,
            grace_time: comparison.grace_time,
            notes: notes(comparison, &rows, &rounds, &rate_sweep_rounds),
            verdict: verdict(&rows),
            rows,
            rate_sweep: rate_rows,
            repeated: comparison.repeated.clone(),
            kept_disturbed: comparison.kept_disturbed.clone(),
            rounds: rounds.into_iter().map(in_order).collect(),
            rate_sweep_rounds: rate_sweep_rounds.into_iter().map(in_order).collect(),
        }
    }

    /// The report as text.
    pub fn text(&self) -> String {
        let Machine { cpu, cores, kernel, .. } = &self.machine;
        let mut text = format!("{cpu}, {cores} cores, Linux {kernel}; {}\n", self.network);
        self.routing.iter().for_each(|line| text.push_str(&format!("{line}\n")));
        if let Some(tried) = &self.grace_times_tried {
            text.push_str(&format!(
                "grace time (gro-flush-timeout): {} µs; tried: {}\n",
                self.grace_time,
                grace_time_line(tried)
            ));
        }
        text.push_str(&format!(
            "\nAt saturation: closed loop, {} connections, medians of {} interleaved rounds\n",
            self.config.connections,
            self.rounds.len()
        ));
        text.push_str(&policy_table(&self.rows, false));
        text.push_str(&format!("\n{}\n", self.verdict));
        if !self.rate_sweep.is_empty() {
            text.push_str(&format!(
                "\nAt fixed rates: open loop, latency from the scheduled time, medians of {} rounds\n",
                self.config.load_rounds
            ));
            text.push_str(&policy_table(&self.rate_sweep, true));
            text.push('\n');
        }
        for note in &self.notes {
            text.push_str(&format!("note: {note}\n"));
        }
        for turn in &self.repeated {
            text.push_str(&format!("repeated: {turn}\n"));
        }
        for turn in &self.kept_disturbed {
            text.push_str(&format!("disturbed, but kept for lack of time: {turn}\n"));
        }
        text
    }
}
