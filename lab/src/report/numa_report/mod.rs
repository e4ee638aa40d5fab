//! The report on servers on one NUMA node and on two.

mod notes;

use std::fmt::Write;

use loadgen::interleaved_rounds::DistanceClass;
use policies::host::Machine;
use serde::Serialize;

use self::notes::notes;
use super::class_tables::{by_class, class_title};
use super::table::{interval_text, plain_table};
use crate::experiments::numa::{NumaConfig, NumaCores, NumaMeasurements, NumaRow, numa_rows};

/// From this busy share on, the load may be the bottleneck.
const BUSY_LOAD: f64 = 0.95;

/// The report on servers on one NUMA node and on two.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct NumaReport {
    /// CPU, cores and kernel of the machine that was measured.
    pub machine: Machine,
    /// Which cores ran what.
    pub cores: NumaCores,
    /// How much was measured.
    pub config: NumaConfig,
    /// What to know before relying on it, a sentence each.
    pub notes: Vec<String>,
    /// The rows of each load's tables, the closed loop's first.
    pub rows: Vec<Vec<NumaRow>>,
    /// Every turn.
    pub measured: NumaMeasurements,
}

impl NumaReport {
    /// Computes the rows. `cores_awake`: idle cores were kept awake.
    pub fn new(
        machine: Machine,
        cores: NumaCores,
        cores_awake: bool,
        config: NumaConfig,
        measured: NumaMeasurements,
    ) -> Self {
        let rows: Vec<Vec<NumaRow>> = measured.loads.iter().map(|load| numa_rows(&config, load)).collect();
        let mut notes = notes(&cores, cores_awake, &measured);
        for row in rows.iter().flatten().filter(|row| row.load_busy > BUSY_LOAD) {
            notes.push(format!(
                "{}: the load's threads were {:.0} % busy, so the server may be capable of more",
                row.contestant,
                row.load_busy * 100.0
            ));
        }
        Self { machine, cores, config, notes, rows, measured }
    }

    /// The report as text.
    pub fn text(&self) -> String {
        let Machine { cpu, cores, kernel, .. } = &self.machine;
        let [first, second, both] = &self.cores.workers;
        let [one, two] = self.cores.nodes;
        let mut text = format!(
            "{cpu}, {cores} cores, Linux {kernel}, {}\n\
             first node: node {one}, workers on cores {first}; second node: node {two}, cores {second}; both nodes: cores {both}; \
             load: cores {}\n",
            self.config.driver, self.cores.load
        );
        for (load, rows) in self.rows.iter().enumerate() {
            let title = match self.measured.rate.filter(|_| load > 0) {
                None => "Closed loop".to_owned(),
                Some(rate) => format!("Open loop, {rate:.0} requests/s"),
            };
            let _ = writeln!(text, "\n{title}");
            if rows.is_empty() {
                text.push_str("not measured: no round was completed\n");
            }
            for (class, rows) in by_class(rows, |row| row.class) {
                text.push_str(&table(class, &rows, load == 0));
            }
        }
        text.push('\n');
        for note in &self.notes {
            let _ = writeln!(text, "note: {note}");
        }
        text
    }
}

fn table(class: DistanceClass, rows: &[&NumaRow], closed: bool) -> String {
    let header = [
        "policy, workers on",
        "requests/s",
        "p50, µs",
        "p99, µs",
        if closed { "requests/s / first node" } else { "p99 / first node" },
        "requests/s / vanilla",
        "CPU, µs",
        "IPQ",
        "IPC",
        "memory on first node, %",
    ];
    let counted = |count: Option<f64>, digits| count.map_or("-".to_owned(), |it| format!("{it:.digits$}"));
    let cells = |row: &&NumaRow| {
        vec![
            row.contestant.to_string(),
            interval_text(&row.qps, 0),
            interval_text(&row.p50_us, 0),
            interval_text(&row.p99_us, 0),
            interval_text(if closed { &row.qps_to_first_node } else { &row.p99_to_first_node }, 2),
            row.qps_to_vanilla.as_ref().map_or("-".to_owned(), |ratio| interval_text(ratio, 2)),
            interval_text(&row.cpu_us, 1),
            counted(row.ipq, 0),
            counted(row.ipc, 2),
            format!("{:.0}", row.on_first_node * 100.0),
        ]
    };
    class_title(class) + &plain_table(header, rows.iter().map(cells), &[0]) + "\n"
}

#[cfg(test)]
mod tests;
