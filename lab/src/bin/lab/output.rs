//! Where reports go: standard output, and a file.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use lab::report::FleetReport;
use policies::explain::measured::Measured;
use serde::Serialize;

use crate::flags::Format;

/// A failure to be printed; the binary handles none of them.
pub type Failure = Box<dyn std::error::Error>;

/// Creates the file for JSON. Called before the experiment, so that a wrong path doesn't cost a run.
pub fn create_file(path: Option<&Path>) -> Result<Option<File>, Failure> {
    let Some(path) = path else { return Ok(None) };
    Ok(Some(File::create(path).map_err(|error| format!("{}: {error}", path.display()))?))
}

/// Keeps the report for `policies explain`, if it says what a latency budget buys. Its readers can do without it, so
/// a failure is only a warning.
pub fn keep_report(report: &FleetReport) {
    let Some(measured) = report.measured() else { return };
    let Some(path) = Measured::path() else {
        eprintln!("lab: `policies explain` won't show this result: neither XDG_STATE_HOME nor HOME is set");
        return;
    };
    if let Err(error) = measured.write(&path, report) {
        eprintln!("lab: `policies explain` won't show this result: {}: {error}", path.display());
    }
}

/// Prints the report in the requested format, and writes it to `file` as JSON.
pub fn write_report(
    format: Format,
    file: Option<File>,
    report: &impl Serialize,
    text: impl FnOnce() -> String,
) -> Result<(), Failure> {
    let json = serde_json::to_string_pretty(report)?;
    if let Some(mut file) = file {
        writeln!(file, "{json}")?;
    }
    let mut out = io::stdout().lock();
    match format {
        Format::Table => write!(out, "{}", text())?,
        Format::Json => writeln!(out, "{json}")?,
    }
    Ok(())
}
