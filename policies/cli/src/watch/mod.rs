//! `policies watch`: rates of an interface, a table or a line of JSON at a time.

mod sample;
mod table;

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::Duration;

use clap::Args;
use policies::JournalDir;

use crate::output::CommandError;
use crate::output::{Format, with_schema, write_error};
use sample::Sampler;
use table::render;

#[derive(Args)]
pub struct WatchArguments {
    /// Interface, for example eth0
    pub interface: String,
    /// Seconds between samples
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = parse_interval)]
    interval: f64,
    /// Number of samples; without it `watch` runs until it is interrupted
    #[arg(long, value_name = "COUNT")]
    count: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
#[error("expected a number of seconds from 0.1 to 3600")]
struct InvalidInterval;

fn parse_interval(text: &str) -> Result<f64, InvalidInterval> {
    text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds)).ok_or(InvalidInterval)
}

/// Prints a table, or a line of JSON, for each sample. A table replaces the one before on a
/// terminal.
pub fn run(arguments: &WatchArguments, journals: &JournalDir, format: Format) -> Result<(), CommandError> {
    /// Moves the cursor to the top left, and clears the screen from there (ECMA-48).
    const CLEAR: &str = "\x1b[H\x1b[J";
    let before = if format == Format::Table && io::stdout().is_terminal() { CLEAR } else { "" };
    let mut sampler = Sampler::new(&arguments.interface, journals)?;
    let mut taken = 0;
    while arguments.count.is_none_or(|count| taken < count) {
        thread::sleep(Duration::from_secs_f64(arguments.interval));
        taken += 1;
        let sample = match sampler.next_sample() {
            Ok(sample) => sample,
            // On a terminal somebody sees it, and the link may be reopened or renamed at this
            // moment.
            Err(error) if !before.is_empty() => {
                write_error(error);
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let text = match format {
            Format::Json => with_schema(serde_json::json!(sample)).to_string(),
            _ => render(&sample),
        };
        // The reader of a pipe may have closed it.
        if writeln!(io::stdout(), "{before}{text}").is_err() {
            break;
        }
    }
    Ok(())
}
