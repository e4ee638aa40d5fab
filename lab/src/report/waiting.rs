//! The report on wait strategies.

use policies::host::Machine;
use serde::Serialize;

use super::document::{Document, Section, Table};
use super::figures::{class_suffix, classes, table};
use super::table::interval_text;
use crate::engine::{Bound, CoreAssignment, Figure, LoadResult, Results};
use crate::experiments::waiting::{CLAIMS, Claim, Target, WaitingConfig, targets};

#[derive(Debug, Serialize)]
pub struct WaitingReport {
    pub machine: Machine,
    pub cores: CoreAssignment,
    pub cores_awake: bool,
    pub config: WaitingConfig,
    /// How adaptive waits compare, in a sentence each.
    pub verdict: Vec<String>,
    /// Each claim under each load that it is about.
    pub targets: Vec<Target>,
    pub results: Results,
}

impl WaitingReport {
    pub fn new(cores: CoreAssignment, cores_awake: bool, config: WaitingConfig, results: Results) -> Self {
        let targets = targets(&results);
        let verdict =
            CLAIMS.iter().enumerate().map(|(index, claim)| sentence(index, claim, &targets)).collect();
        Self { machine: Machine::read(), cores, cores_awake, config, verdict, targets, results }
    }

    pub fn document(&self) -> Document {
        let mut section = Section::new("strategies", "Messages, and a memcached server on loopback");
        section.caption =
            format!("{:.0} requests/s on {} connections", self.config.rate, self.config.connections);
        section.only_in_page = true;
        for class in classes(&self.results.loads) {
            let loads: Vec<&LoadResult> =
                self.results.loads.iter().filter(|load| load.class == class).collect();
            let figures =
                [Figure::RoundTrip, Figure::P50, Figure::P99, Figure::CpuPerRequest, Figure::CpuShare];
            section.tables.push(table(&format!("Medians{}", class_suffix(class)), &loads, &figures, &[]));
        }
        let row = |target: &Target| {
            let Claim { words, limit, .. } = &CLAIMS[target.claim];
            vec![
                format!("{}{}", target.load, class_suffix(target.class)),
                format!("{} {limit} {}", words[0], words[1]),
                interval_text(&target.ratio, 2),
                target.outcome.to_string(),
            ]
        };
        let rows = self.targets.iter().map(row).collect();
        let claims = Table { names: 2, ..Table::new("", &["load", "claim", "ratio", ""], rows) };
        let mut notes = self.results.notes.clone();
        if self.cores.server == self.cores.client {
            notes.push("both sides share one core: who spins keeps the other one from answering".to_owned());
        }
        if !self.cores_awake {
            notes.push(
                "idle cores may sleep deeply, which a block pays for: /dev/cpu_dma_latency can't be written"
                    .to_owned(),
            );
        }
        let (server, client, driver) = (self.cores.server, self.cores.client, self.config.driver);
        Document {
            title: "Spin or block".to_owned(),
            findings: self.verdict.clone(),
            conditions: vec![format!("{}; cores {server} and {client}, {driver}", self.machine)],
            sections: vec![
                section,
                Section {
                    tables: vec![claims],
                    notes,
                    ..Section::new("claims", "What adaptive waits are to keep")
                },
            ],
        }
    }
}

/// How many of a claim's targets are met.
fn sentence(index: usize, Claim { words: [claim, of], limit, .. }: &Claim, targets: &[Target]) -> String {
    let targets: Vec<&Target> = targets.iter().filter(|target| target.claim == index).collect();
    if targets.is_empty() {
        return format!("{claim} … {of}: not measured, because the machine disturbed every round.");
    }
    let count = |outcome| targets.iter().filter(|target| target.outcome == outcome).count();
    let mut text = format!("{claim} {limit} {of} in {} of {} rows", count(Bound::Kept), targets.len());
    for (outcome, words) in [(Bound::Broken, "above it"), (Bound::Undecided, "not decided")] {
        let rows = count(outcome);
        if rows > 0 {
            text.push_str(&format!("; in {rows} {words}"));
        }
    }
    text + "."
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{LoadKind, Turn, results_of};

    #[test]
    fn the_text_has_the_figures_the_claims_and_how_many_are_met() {
        let loads = [("worker to worker, 1 µs", LoadKind::Closed, 0.0, None)];
        let results = results_of(&loads, &["block", "spin", "adaptive"], &[0, 1], 8, |_, contender, _| {
            let (trip, cpu) = ([12.0, 2.0, 2.1][contender], [16.0, 6.0, 40.0][contender]);
            Turn::new([(Figure::RoundTrip, trip), (Figure::CpuPerRequest, cpu)])
        });
        let cores = CoreAssignment::choose().unwrap();
        let text = WaitingReport::new(cores, true, WaitingConfig::new(true, None), results).document().text();
        for part in [
            "1.05 [1.05, 1.05]    kept",
            "2.50 [2.50, 2.50]  broken",
            "is at most 1.1 of the better of spin and block's in 1 of 1 rows.",
            "is at most 2 of block's in 0 of 1 rows; in 1 above it.",
            "of spin's: not measured",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
    }
}
