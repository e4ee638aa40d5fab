//! The report on a comparison of load generators.

use policies::host::Machine;
use serde::Serialize;

use super::class_tables::{by_class, class_title};
use super::table::{interval_text, plain_table};
use crate::experiments::generator_comparison::{
    GeneratorComparisonConfig, GeneratorMeasurement, GeneratorRow,
};
use crate::experiments::{CoreAssignment, MeasuredRounds};

/// The report on a comparison of load generators.
#[derive(Debug, Serialize)]
pub struct GeneratorReport {
    /// The machine.
    pub machine: Machine,
    /// Which core ran what.
    pub cores: CoreAssignment,
    /// What was compared.
    pub config: GeneratorComparisonConfig,
    /// A row for each generator and depth, by class of distance; the class with most rounds first.
    pub rows: Vec<GeneratorRow>,
    /// Every turn at each depth.
    pub runs: Vec<MeasuredRounds<GeneratorMeasurement>>,
}

impl GeneratorReport {
    /// The report as text.
    pub fn text(&self) -> String {
        let header =
            ["depth", "generator", "requests/s", "CPU µs a request", "requests a CPU second, over the first"];
        let cells = |row: &GeneratorRow| {
            vec![
                row.depth.to_string(),
                row.generator.clone(),
                interval_text(&row.qps, 0),
                interval_text(&row.cpu_us, 2),
                row.ratio.as_ref().map_or_else(String::new, |ratio| interval_text(ratio, 2)),
            ]
        };
        let mut text = format!(
            "{} connections, one thread on core {} against one of memcached's on core {}; medians and intervals of {} interleaved rounds\n",
            self.config.connections, self.cores.client, self.cores.server, self.config.rounds,
        );
        for (class, rows) in by_class(&self.rows, |row| row.class) {
            text.push_str(&class_title(class));
            text.push_str(&format!("{}\n", plain_table(header, rows.into_iter().map(cells), &[1])));
        }
        for run in &self.runs {
            text.push_str(&format!("{}\n", run.summary()));
        }
        text
    }
}
