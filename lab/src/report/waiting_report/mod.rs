//! The report on wait strategies.

mod text;

use loadgen::interleaved_rounds::DistanceClass;
use policies::host::Machine;
use serde::Serialize;

use crate::experiments::CoreAssignment;
use crate::experiments::waiting::{Outcome, Target, WaitingConfig, WaitingMeasurements, WaitingRows};

/// The report on wait strategies.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct WaitingReport {
    /// The machine.
    pub machine: Machine,
    /// Which core ran what.
    pub cores: CoreAssignment,
    /// Whether idle cores were kept awake.
    pub cores_awake: bool,
    /// How much was measured.
    pub config: WaitingConfig,
    /// How adaptive waits compare, in a sentence each.
    pub verdict: Vec<String>,
    /// What to know before relying on it, a sentence each.
    pub notes: Vec<String>,
    /// The rows of the tables.
    pub rows: WaitingRows,
    /// Every turn.
    pub measured: WaitingMeasurements,
}

impl WaitingReport {
    /// Computes the rows, and says what follows from them.
    pub fn new(
        machine: Machine,
        cores: CoreAssignment,
        cores_awake: bool,
        config: WaitingConfig,
        measured: WaitingMeasurements,
    ) -> Self {
        let rows = WaitingRows::new(&config, &measured);
        let (verdict, notes) = (verdict(&rows), notes(cores, cores_awake, &measured));
        Self { machine, cores, cores_awake, config, verdict, notes, rows, measured }
    }

    /// The report as text.
    pub fn text(&self) -> String {
        text::text(self)
    }
}

fn verdict(rows: &WaitingRows) -> Vec<String> {
    let [trips, cpu] = rows.message_targets();
    let p99: Vec<&Target> = rows.server.iter().map(|row| &row.p99).collect();
    let server_cpu: Vec<&Target> = rows.server.iter().map(|row| &row.cpu).collect();
    [
        ("Adaptive's round trip of messages is at most", "of the better of spin and block's", trips),
        ("Adaptive's CPU time for messages is at most", "of block's", cpu),
        ("Adaptive's p99 at the memcached server is at most", "of spin's", p99),
        ("Adaptive's CPU time at the memcached server is at most", "of spin's", server_cpu),
    ]
    .into_iter()
    .map(|(claim, of, targets)| sentence(claim, of, &targets))
    .collect()
}

/// How many of the targets are met.
fn sentence(claim: &str, of: &str, targets: &[&Target]) -> String {
    let Some(first) = targets.first() else {
        return format!("{claim} … {of}: not measured, because the machine disturbed every round.");
    };
    let count = |outcome| targets.iter().filter(|target| target.outcome == outcome).count();
    let mut text =
        format!("{claim} {} {of} in {} of {} rows", first.limit, count(Outcome::Met), targets.len());
    for (outcome, words) in [
        (Outcome::Missed, "above it"),
        (Outcome::Open, "not decided: the interval contains it"),
        (Outcome::NoInterval, "too few rounds to tell"),
    ] {
        let rows = count(outcome);
        if rows > 0 {
            text.push_str(&format!("; in {rows} {words}"));
        }
    }
    text + "."
}

fn notes(cores: CoreAssignment, cores_awake: bool, measured: &WaitingMeasurements) -> Vec<String> {
    let mut notes: Vec<String> = measured.messages.iter().map(|(_, run)| run.summary()).collect();
    notes.push(measured.server.summary());
    if cores.server == cores.client {
        notes.push("both sides share one core: who spins keeps the other one from answering".to_owned());
    }
    if !cores_awake {
        notes.push(
            "idle cores may sleep deeply, which a block pays for: /dev/cpu_dma_latency can't be written"
                .to_owned(),
        );
    }
    notes
}

/// The mark of a target in a table.
fn mark(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Met => "yes",
        Outcome::Missed => "NO",
        Outcome::Open => "open",
        _ => "-",
    }
}

/// The line above a class's table.
fn title(class: DistanceClass, what: &str) -> String {
    match class {
        DistanceClass::Single => format!("\n{what}:\n"),
        class => format!("\n{what}, with the cores {class}:\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::waiting::sample::{config, measurements};

    pub(super) fn report(rounds: usize) -> WaitingReport {
        let cores = CoreAssignment::choose().unwrap();
        WaitingReport::new(Machine::read(), cores, true, config(), measurements(rounds))
    }

    #[test]
    fn the_verdict_counts_what_is_met_and_what_is_not() {
        let verdict = report(8).verdict;
        assert_eq!(
            verdict[..2],
            [
                "Adaptive's round trip of messages is at most 1.1 of the better of spin and block's in 3 of 6 rows; in 3 above it.",
                "Adaptive's CPU time for messages is at most 2 of block's in 3 of 6 rows; in 3 above it.",
            ]
        );
        assert_eq!(
            verdict[2..],
            [
                "Adaptive's p99 at the memcached server is at most 1.1 of spin's in 1 of 1 rows.",
                "Adaptive's CPU time at the memcached server is at most 0.3 of spin's in 0 of 1 rows; in 1 above it.",
            ]
        );
    }

    #[test]
    fn too_few_rounds_are_said() {
        assert!(report(4).verdict[0].ends_with("in 0 of 6 rows; in 6 too few rounds to tell."));
        assert!(report(0).verdict[0].contains("not measured"), "{:?}", report(0).verdict);
    }

    #[test]
    fn the_json_has_every_turn_and_the_targets() {
        let json = serde_json::to_value(report(8)).unwrap();
        assert_eq!(json["config"]["strategies"][2], "adaptive");
        assert_eq!(json["rows"]["messages"][0]["round_trip"]["outcome"], "met");
        assert_eq!(json["rows"]["messages"][1]["gap"], "1000 µs");
        assert_eq!(json["rows"]["messages"][1]["cpu"]["limit"], 2.0);
        let turns = &json["measured"]["messages"][0][1]["classes"][0]["rounds"][0]["turns"];
        assert_eq!(turns.as_array().unwrap().len(), 3);
        assert_eq!(json["measured"]["server"]["classes"][0]["rounds"].as_array().unwrap().len(), 8);
    }
}
