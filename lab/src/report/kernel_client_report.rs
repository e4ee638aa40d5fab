//! The report on a comparison of policies or drivers under one kernel client.

use loadgen::interleaved_rounds::DistanceClass;
use policies::host::Machine;
use serde::Serialize;

use super::class_tables::class_title;
use super::notes::{notes, routing};
use super::policy_table::{policy_table, verdict};
use crate::experiments::policy_comparison::{
    ComparisonConfig, Measurement, PolicyComparison, PolicyRow, policy_rows,
};
use crate::experiments::{CoreAssignment, MeasuredRounds};
use crate::polling_config::PollingConfig;

/// The report on a comparison of policies or drivers under one kernel client in a closed loop.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct KernelClientReport {
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
    /// The grace time that was used.
    pub polling: PollingConfig,
    /// A row for each contestant, by class of distance; the class with most rounds first.
    pub classes: Vec<(DistanceClass, Vec<PolicyRow>)>,
    /// One sentence.
    pub verdict: String,
    /// Reasons to doubt the results, a sentence each.
    pub notes: Vec<String>,
    /// Every turn, with the knobs read back.
    pub measured: MeasuredRounds<Measurement>,
}

impl KernelClientReport {
    /// Summarises the rounds of a comparison.
    pub fn new(comparison: &PolicyComparison, measured: MeasuredRounds<Measurement>) -> Self {
        let contestants = &comparison.config.contestants;
        let classes = measured.finished.classes.iter().filter(|class| !class.rounds.is_empty());
        let classes: Vec<_> =
            classes.map(|class| (class.class, policy_rows(contestants, &class.rounds))).collect();
        let leading = classes.first().map_or(&[][..], |(_, rows)| rows);
        Self {
            machine: Machine::read(),
            network: if comparison.has_testbed() { "testbed" } else { "loopback" },
            routing: routing(comparison),
            cores: comparison.cores,
            config: comparison.config.clone(),
            polling: comparison.polling,
            notes: notes(comparison, leading, &measured),
            verdict: verdict(leading),
            classes,
            measured,
        }
    }

    /// The report as text.
    pub fn text(&self) -> String {
        let Machine { cpu, cores, kernel, .. } = &self.machine;
        let mut text = format!("{cpu}, {cores} cores, Linux {kernel}; {}\n", self.network);
        self.routing.iter().for_each(|line| text.push_str(&format!("{line}\n")));
        text.push_str(&format!("\n{}", self.tables()));
        text.push_str(&format!("\n{}\n", self.verdict));
        for note in &self.notes {
            text.push_str(&format!("note: {note}\n"));
        }
        text
    }

    /// The tables alone, with their title.
    pub(super) fn tables(&self) -> String {
        let mut text = format!(
            "Closed loop of one kernel client on the epoll driver, {} connections\n",
            self.config.connections
        );
        for (class, rows) in &self.classes {
            text.push_str(&class_title(*class));
            text.push_str(&policy_table(rows));
        }
        text
    }
}
