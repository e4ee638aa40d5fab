//! The report of `lab paper`: for each table and figure the paper's numbers beside this machine's.

mod exhibits;
mod plots;
mod tables;

use policies::host::Machine;
use serde::Serialize;

use self::exhibits::{attached_section, exhibit_section};
use super::comparison::is_virtual;
use super::document::{Document, Section};
use super::wake_cost::WakeCost;
use crate::engine::CoreAssignment;
use crate::experiments::paper::{
    CITATION, EXHIBITS, PaperConfig, PaperResult, Part, PartOutcome, Programs, SETUP,
};
use crate::testbed::CONGESTION_CONTROL;

/// The report of `lab paper`.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct PaperReport {
    /// The paper.
    pub paper: &'static str,
    /// What the paper measured on.
    pub paper_setup: &'static str,
    /// This machine.
    pub machine: Machine,
    /// NUMA nodes with cores.
    pub numa_nodes: usize,
    /// Which core ran what.
    pub cores: CoreAssignment,
    /// The congestion control of both sides.
    pub congestion_control: &'static str,
    /// Whether idle cores polled instead of sleeping.
    pub cores_awake: bool,
    /// Whether performance counters are available.
    pub counts_instructions: bool,
    /// Rounds, loads and time limits of the run.
    pub config: PaperConfig,
    /// Programs of other projects.
    pub programs: Programs,
    exhibits: Vec<Section>,
    /// Everything that was measured.
    pub parts: Vec<(Part, PartOutcome)>,
}

impl PaperReport {
    /// Puts the result beside the paper's.
    pub fn new(config: PaperConfig, cores: CoreAssignment, cores_awake: bool, result: PaperResult) -> Self {
        let mut exhibits: Vec<Section> = Vec::new();
        for exhibit in &EXHIBITS {
            exhibits.push(exhibit_section(exhibit, &result));
            if exhibit.id == "table-5" {
                exhibits.push(attached_section(exhibit, &result));
            }
        }
        let machine = Machine::read();
        let counts_instructions = result.parts.iter().any(|(_, outcome)| counts_instructions(outcome));
        Self {
            paper: CITATION,
            paper_setup: SETUP,
            machine,
            numa_nodes: result.numa_nodes,
            cores,
            congestion_control: CONGESTION_CONTROL,
            cores_awake,
            counts_instructions,
            config,
            programs: result.programs,
            exhibits,
            parts: result.parts,
        }
    }

    /// The report as a document.
    pub fn document(&self) -> Document {
        Document {
            title: "The paper on this machine".to_owned(),
            findings: [self.paper.to_owned()].into_iter().chain(self.wake_cost()).collect(),
            conditions: self.conditions(),
            sections: self.exhibits.clone(),
        }
    }

    /// What an avoided wake-up saves here, by the closed loop of Table 5.
    fn wake_cost(&self) -> Option<String> {
        let policies = self.parts.iter().find(|(part, _)| *part == Part::Policies);
        let Some((_, PartOutcome::Measured { result, .. })) = policies else { return None };
        let contender = result.published.iter().position(|it| it.as_deref() == Some("Kernel Polling"))?;
        Some(WakeCost::of(result.loads.iter(), contender)?.sentence())
    }

    /// A line for each table and figure.
    pub fn summary(&self) -> String {
        self.exhibits.iter().map(|exhibit| format!("{}: {}\n", exhibit.name, exhibit.glance)).collect()
    }

    /// The machine and what ran on it, a sentence each.
    fn conditions(&self) -> Vec<String> {
        let CoreAssignment { server, client, packing, .. } = self.cores;
        let PaperConfig { records, connection_records, rounds, capacity_rounds, turn, .. } = &self.config;
        let nodes = if self.numa_nodes == 1 { "one NUMA node" } else { "several NUMA nodes" };
        let mut sentences = vec![
            format!("This machine: {}{}, {nodes}.", self.machine, if is_virtual() { ", a virtual machine" } else { "" }),
            format!("The paper's: {}.", self.paper_setup),
            format!(
                "Server on core {server}, load on core {client}, packing on core {packing}; congestion control {}; idle \
                 cores {}.",
                self.congestion_control,
                if self.cores_awake { "poll" } else { "sleep, which adds to latencies" }
            ),
            format!(
                "{records} records ({connection_records} for Figure 9), of the paper's 1000000; turns of {:.0} ms \
                 up to {rounds} rounds; for capacities trials of {:.0} ms, up to \
                 {capacity_rounds} rounds.",
                turn * 1e3,
                self.config.trial_seconds() * 1e3
            ),
            "Figures are medians of rounds with 95 % intervals; ratios are taken within rounds. Turns with steal are \
             repeated until that has taken half of a load's time; later ones are kept, and the notes say how many. Turns \
             during which the distance of the cores changed are left out. Fewer than six rounds give no interval."
                .to_owned(),
        ];
        if !self.counts_instructions {
            sentences.push(
                "This machine counts no instructions, cycles and cache misses (no performance counters, or no permission), \
                 so IPQ, IPC and LLC misses are not counted here."
                    .to_owned(),
            );
        }
        let programs = &self.programs;
        let versions: Vec<&str> = [&programs.memcached, &programs.nginx, &programs.web]
            .into_iter()
            .flatten()
            .map(|program| program.version.as_str())
            .collect();
        if !versions.is_empty() {
            sentences.push(format!("Other programs: {}.", versions.join(", ")));
        }
        sentences
    }
}

/// Whether a part has instructions.
fn counts_instructions(outcome: &PartOutcome) -> bool {
    use crate::engine::Figure;
    let PartOutcome::Measured { result, .. } = outcome else { return false };
    let mut rows = result.loads.iter().flat_map(|load| &load.rows);
    rows.any(|row| row.figures.contains_key(&Figure::Instructions))
}

#[cfg(test)]
mod tests;
