//! The output formats.

use clap::ValueEnum;

use crate::output::print_line;

#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    #[default]
    Table,
    Json,
    /// Prometheus text format, for `watch` only; prints the metrics once
    Prometheus,
}

impl Format {
    /// Prints `json` or calls `print_table`.
    pub fn print(self, json: &serde_json::Value, print_table: impl FnOnce()) {
        match self {
            Format::Json => print_line!("{json:#}"),
            // `main` accepts Prometheus for `watch` only, which does not call this.
            Format::Table | Format::Prometheus => print_table(),
        }
    }
}
