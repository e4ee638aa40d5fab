//! The report on a comparison of load generators.

use serde::Serialize;

use super::machine::Machine;
use super::table::{interval_text, plain_table};
use crate::experiments::CoreAssignment;
use crate::experiments::generator_comparison::{GeneratorComparisonConfig, GeneratorRow};

/// The report on a comparison of load generators.
#[derive(Debug, Serialize)]
pub struct GeneratorReport {
    /// The machine.
    pub machine: Machine,
    /// Which core ran what.
    pub cores: CoreAssignment,
    /// What was compared.
    pub config: GeneratorComparisonConfig,
    /// A row for each generator and depth.
    pub rows: Vec<GeneratorRow>,
}

impl GeneratorReport {
    /// The report as text.
    pub fn text(&self) -> String {
        let header =
            ["depth", "generator", "requests/s", "CPU µs a request", "requests a CPU second, over the first"];
        let rows = self.rows.iter().map(|row| {
            vec![
                row.depth.to_string(),
                row.generator.clone(),
                interval_text(&row.qps, 0),
                interval_text(&row.cpu_us, 2),
                row.ratio.as_ref().map_or_else(String::new, |ratio| interval_text(ratio, 2)),
            ]
        });
        format!(
            "{} connections, one thread on core {} against one of memcached's on core {}; medians and intervals of {} interleaved rounds\n{}\n",
            self.config.connections,
            self.cores.client,
            self.cores.server,
            self.config.rounds,
            plain_table(header, rows, &[1])
        )
    }
}
