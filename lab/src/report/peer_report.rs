//! The report on a comparison of runtimes.

use policies::host::Machine;
use serde::Serialize;

use super::class_tables::{by_class, class_title};
use super::table::{interval_text, plain_table};
use crate::experiments::peer_comparison::{PeerComparisonConfig, PeerMeasurement, PeerRow};
use crate::experiments::{CoreAssignment, MeasuredRounds};

/// The report on a comparison of runtimes.
#[derive(Debug, Serialize)]
pub struct PeerReport {
    /// The machine.
    pub machine: Machine,
    /// Which core ran what.
    pub cores: CoreAssignment,
    /// What was measured.
    pub config: PeerComparisonConfig,
    /// A row for each server and load, by class of distance; the class with most rounds first.
    pub rows: Vec<PeerRow>,
    /// Every turn under each load.
    pub runs: Vec<MeasuredRounds<PeerMeasurement>>,
}

impl PeerReport {
    /// The report as text.
    pub fn text(&self) -> String {
        let Machine { cpu, cores, kernel, .. } = &self.machine;
        let header = [
            "workload",
            "connections",
            "server",
            "QPS",
            "p99 µs",
            "CPU µs/req",
            "CPU ratio",
            "allocs/req",
            "client busy",
            "B/idle conn",
        ];
        let cells = |row: &PeerRow| {
            vec![
                row.workload.clone(),
                row.connections.to_string(),
                row.name.to_owned(),
                format!("{:.0}", row.qps),
                format!("{:.0}", row.p99_us),
                format!("{:.2}", row.cpu_us_per_request),
                interval_text(&row.cpu_ratio_to_best_other, 2),
                format!("{:.3}", row.allocations_per_request),
                format!("{:.0} %", row.client_busy * 100.0),
                format!("{:.0}", row.bytes_per_idle_connection),
            ]
        };
        let mut text = format!(
            "{cpu}, {cores} cores, Linux {kernel}; loopback, server on core {}, client on core {}\n{}, closed loop, medians of {} interleaved rounds; CPU ratio: over the lowest of the other runtimes\n",
            self.cores.server, self.cores.client, self.config.service, self.config.rounds,
        );
        for (class, rows) in by_class(&self.rows, |row| row.class) {
            text.push_str(&class_title(class));
            text.push_str(&format!("\n{}\n", plain_table(header, rows.into_iter().map(cells), &[0, 2])));
        }
        text.push('\n');
        for run in &self.runs {
            text.push_str(&format!("{}\n", run.summary()));
        }
        text
    }
}
