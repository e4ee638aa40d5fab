//! The comparison as a table and as JSON.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::{Plan, Row};
use crate::experiment::Cores;
use crate::report::Machine;

/// The comparison with the peers.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Where.
    pub machine: Machine,
    /// Which core did what.
    pub cores: Cores,
    /// What was measured.
    pub plan: Plan,
    /// A row a server and load.
    pub rows: Vec<Row>,
    /// What to know before believing the figures.
    pub notes: Vec<String>,
}

impl Report {
    /// The report for people.
    pub fn text(&self) -> String {
        let machine = &self.machine;
        let mut text = format!(
            "{}, {} cores, Linux {}; loopback, server on core {}, client on core {}\necho, closed loop, medians of {} interleaved rounds; CPU ratio: over the least of tokio, monoio and compio\n\n",
            machine.cpu,
            machine.cores,
            machine.kernel,
            self.cores.server,
            self.cores.client,
            self.plan.rounds
        );
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header([
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
        ]);
        for row in &self.rows {
            let ratio = &row.cpu_ratio_to_best_other;
            table.add_row([
                row.workload.clone(),
                row.connections.to_string(),
                row.name.to_owned(),
                format!("{:.0}", row.qps),
                format!("{:.0}", row.p99_us),
                format!("{:.2}", row.cpu_us_per_request),
                format!("{:.2} [{:.2}, {:.2}]", ratio.median, ratio.low, ratio.high),
                format!("{:.3}", row.allocations_per_request),
                format!("{:.0} %", row.client_busy * 100.0),
                format!("{:.0}", row.bytes_per_idle_connection),
            ]);
        }
        for index in [1, 3, 4, 5, 6, 7, 8, 9] {
            if let Some(column) = table.column_mut(index) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        text.push_str(&format!("{}\n", table.trim_fmt()));
        for note in &self.notes {
            text.push_str(&format!("note: {note}\n"));
        }
        text
    }
}
