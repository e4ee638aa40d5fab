//! The report on wait strategies.

use loadgen::medians::Interval;
use policies::host::Machine;
use serde::Serialize;

use super::document::{Document, Section, Table};
use super::figures::{class_suffix, classes, table};
use super::table::interval_text;
use crate::engine::{Bound, CoreAssignment, DistanceClass, Figure, LoadKind, LoadResult, Results};
use crate::experiments::waiting::{ADAPTIVE, WaitingConfig};

/// What adaptive waits are to keep: a figure under loads of a kind, and what it is at most of the
/// better of spin and block's.
const CLAIMS: [(&str, LoadKind, Figure, f64); 4] = [
    ("round trip of messages", LoadKind::Closed, Figure::RoundTrip, 1.1),
    ("CPU time for messages", LoadKind::Closed, Figure::CpuPerRequest, 2.0),
    ("p99 at the memcached server", LoadKind::Open, Figure::P99, 1.1),
    ("CPU time at the memcached server", LoadKind::Open, Figure::CpuShare, 2.0),
];

/// A claim under one load.
#[derive(Debug, Serialize)]
pub struct Target {
    claim: usize,
    load: String,
    class: DistanceClass,
    ratio: Interval,
    /// How the ratio's interval lies to the limit.
    outcome: Bound,
}

fn targets(results: &Results) -> Vec<Target> {
    let mut targets = Vec::new();
    for (claim, (_, kind, figure, limit)) in CLAIMS.iter().enumerate() {
        for load in results.loads.iter().filter(|load| load.kind == *kind) {
            let Some(&ratio) = load.rows[ADAPTIVE].ratio(*figure) else { continue };
            let (load, class, outcome) = (load.name.clone(), load.class, Bound::of(&ratio, *limit));
            targets.push(Target { claim, load, class, ratio, outcome });
        }
    }
    targets
}

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
        let verdict = (0..CLAIMS.len()).map(|claim| sentence(claim, &targets)).collect();
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
            let (what, _, _, limit) = CLAIMS[target.claim];
            vec![
                format!("{}{}", target.load, class_suffix(target.class)),
                format!("{what}: at most {limit} of the better's"),
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
fn sentence(claim: usize, targets: &[Target]) -> String {
    let (what, _, _, limit) = CLAIMS[claim];
    let targets: Vec<&Target> = targets.iter().filter(|target| target.claim == claim).collect();
    if targets.is_empty() {
        return format!("Adaptive's {what}: not measured, because the machine disturbed every round.");
    }
    let count = |outcome| targets.iter().filter(|target| target.outcome == outcome).count();
    let mut text = format!(
        "Adaptive's {what} is at most {limit} of the better of spin and block's in {} of {} rows",
        count(Bound::Kept),
        targets.len()
    );
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
    use crate::engine::{Turn, results_of};

    #[test]
    fn adaptive_is_compared_with_the_better_one_of_spin_and_block_in_each_figure() {
        let loads = ["1 µs", "1000 µs"].map(|name| (name, LoadKind::Closed, 0.0, None));
        let of = |rounds| {
            let names = ["block", "spin", "adaptive"];
            let results = results_of(&loads, &names, &[0, 1], rounds, |load, contender, _| {
                let (trip, cpu) = match load {
                    "1 µs" => ([12.0, 2.0, 2.1][contender], [16.0, 6.0, 8.0][contender]),
                    _ => ([15.0, 30.0, 18.0][contender], [20.0, 1000.0, 50.0][contender]),
                };
                Turn::new([(Figure::RoundTrip, trip), (Figure::CpuPerRequest, cpu)])
            });
            let cores = CoreAssignment::choose().unwrap();
            WaitingReport::new(cores, true, WaitingConfig::new(true, None), results)
        };
        let outcomes = |report: &WaitingReport| -> Vec<Bound> {
            report.targets.iter().map(|target| target.outcome).collect()
        };
        let report = of(8);
        assert_eq!(outcomes(&report), [Bound::Kept, Bound::Broken, Bound::Kept, Bound::Broken]);
        assert_eq!(outcomes(&of(5)), [Bound::Undecided; 4]);
        let text = report.document().text();
        for part in [
            "1.05 [1.05, 1.05] |   kept |",
            "2.50 [2.50, 2.50] | broken |",
            "round trip of messages is at most 1.1 of the better of spin and block's in 1 of 2 rows; in 1 above it.",
            "CPU time at the memcached server: not measured",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
    }
}
