//! The report on a comparison of runtimes.

use serde::Serialize;

use super::machine::Machine;
use super::table::{interval_text, plain_table};
use crate::experiments::CoreAssignment;
use crate::experiments::peer_comparison::{PeerComparisonConfig, PeerRow};

/// The report on a comparison of runtimes.
#[derive(Debug, Serialize)]
pub struct PeerReport {
    /// The machine.
    pub machine: Machine,
    /// Which core ran what.
    pub cores: CoreAssignment,
    /// What was measured.
    pub config: PeerComparisonConfig,
    /// A row for each server and load.
    pub rows: Vec<PeerRow>,
    /// Reasons to doubt the results, a sentence each.
    pub notes: Vec<String>,
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
        let rows = self.rows.iter().map(|row| {
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
        });
        let mut text = format!(
            "{cpu}, {cores} cores, Linux {kernel}; loopback, server on core {}, client on core {}\necho, closed loop, medians of {} interleaved rounds; CPU ratio: over the lowest of tokio, monoio and compio\n\n{}\n",
            self.cores.server,
            self.cores.client,
            self.config.rounds,
            plain_table(header, rows, &[0, 2])
        );
        for note in &self.notes {
            text.push_str(&format!("note: {note}\n"));
        }
        text
    }
}
