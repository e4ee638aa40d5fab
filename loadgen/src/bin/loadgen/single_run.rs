//! A single measurement.

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use loadgen::{Config, Report, WarmUp};

use crate::flags::Flags;
use crate::progress_bar::RunProgressBar;
use crate::session::{check_output, connect_agents, exit_code_of, prepare};
use crate::value_parsers::Format;

pub async fn run(flags: &Flags, config: &Config) -> Result<ExitCode, Box<dyn Error>> {
    check_output(flags.save.as_deref())?;
    let Some(report) = measure(flags, config).await? else { return Ok(ExitCode::SUCCESS) };
    let mut out = std::io::stdout().lock();
    match flags.format {
        Format::Table => write!(out, "{}", report.table())?,
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?,
        Format::Csv => write!(out, "{}", report.csv())?,
    }
    if let Some(invalid) = report.invalid.as_ref().filter(|_| flags.format != Format::Table) {
        eprintln!("loadgen: invalid: {invalid}");
    }
    Ok(ExitCode::from(exit_code_of(&report)))
}

/// Returns `None` if there is nothing to measure.
async fn measure(flags: &Flags, config: &Config) -> Result<Option<Report>, Box<dyn Error>> {
    let mut coordinator = connect_agents(flags).await?;
    let stop = prepare(flags, config).await?;
    if flags.loadonly || stop.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let warm_up = match config.warm_up {
        WarmUp::Fixed(time) => time,
        _ => Duration::ZERO,
    };
    let mut bar = RunProgressBar::new(flags.quiet, warm_up + config.duration);
    let report = coordinator.run(config, &stop, |progress| bar.show(progress)).await;
    bar.finish();
    if stop.load(Ordering::Relaxed) {
        eprintln!("loadgen: interrupted; the figures cover the time until then");
    }
    Ok(Some(report?))
}
