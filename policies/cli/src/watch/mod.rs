//! `policies watch`: rates of an interface, on a screen or in lines.

mod sample;
mod screen;
mod table;

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::Duration;

use clap::Args;
use policies::JournalDir;

use crate::error::CommandError;
use crate::output::with_schema;
use sample::Sampler;
use table::{SortKey, render, sort};

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
    /// Order of the queues
    #[arg(long, value_enum, default_value_t)]
    sort: SortKey,
}

#[derive(Debug, thiserror::Error)]
#[error("expected a number of seconds from 0.1 to 3600")]
struct InvalidInterval;

fn parse_interval(text: &str) -> Result<f64, InvalidInterval> {
    text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds)).ok_or(InvalidInterval)
}

/// Shows a screen if input and output are terminals, and prints tables otherwise.
pub fn run(arguments: &WatchArguments, journals: &JournalDir) -> Result<(), CommandError> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return print_samples(arguments, journals, false);
    }
    let sampler = Sampler::new(&arguments.interface, journals)?;
    let interval = Duration::from_secs_f64(arguments.interval);
    screen::show(sampler, interval, arguments.count, arguments.sort).map_err(CommandError::Terminal)
}

/// Prints a table, or a line of JSON, for each sample.
pub fn print_samples(
    arguments: &WatchArguments,
    journals: &JournalDir,
    json: bool,
) -> Result<(), CommandError> {
    let mut sampler = Sampler::new(&arguments.interface, journals)?;
    let mut printed = 0;
    while arguments.count.is_none_or(|count| printed < count) {
        thread::sleep(Duration::from_secs_f64(arguments.interval));
        let mut sample = sampler.next_sample()?;
        sort(&mut sample, arguments.sort);
        let text = if json { with_schema(serde_json::json!(sample)).to_string() } else { render(&sample) };
        // The reader of a pipe may have closed it.
        if writeln!(io::stdout(), "{text}").is_err() {
            return Ok(());
        }
        printed += 1;
    }
    Ok(())
}
