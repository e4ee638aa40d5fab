//! The `loadgen` command.

mod curve;
mod flags;
mod live;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Parser;
use loadgen::{Config, Report, WarmUp};

use crate::flags::{Flags, Format};
use crate::live::Live;

/// The figures are not what was asked for.
const INVALID: u8 = 3;
/// Requests failed.
const FAILURES: u8 = 4;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match run(&Flags::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("loadgen: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Opened before the run, so that a bad path doesn't cost one.
fn create(path: Option<&Path>) -> Result<Option<File>, Failure> {
    let Some(path) = path else { return Ok(None) };
    Ok(Some(File::create(path).map_err(|error| format!("{}: {error}", path.display()))?))
}

fn run(flags: &Flags) -> Result<ExitCode, Failure> {
    if let Some(contradiction) = flags.contradiction() {
        eprintln!("loadgen: {contradiction}");
        return Ok(ExitCode::from(2));
    }
    if flags.search.is_some() || flags.scan.is_some() {
        return curve::run(flags);
    }
    let (hdr, series) = (create(flags.hdr.as_deref())?, create(flags.series.as_deref())?);
    let config = flags.config();
    let report = flags.builder()?.build()?.block_on(measure(flags, &config))?;
    let Some(report) = report else { return Ok(ExitCode::SUCCESS) };
    if let Some(file) = hdr {
        report.write_histogram(file)?;
    }
    if let Some(file) = series {
        report.write_series(std::io::BufWriter::new(file))?;
    }
    let mut out = std::io::stdout().lock();
    match flags.format {
        Format::Table => write!(out, "{}", report.table())?,
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?,
        Format::Csv => write!(out, "{}", report.csv())?,
    }
    if let Some(invalid) = report.invalid.as_ref().filter(|_| flags.format != Format::Table) {
        eprintln!("loadgen: invalid: {invalid}");
    }
    Ok(ExitCode::from(code(&report)))
}

/// What a report makes of the exit code.
fn code(report: &Report) -> u8 {
    match report {
        Report { invalid: Some(_), .. } => INVALID,
        report if report.has_failures() => FAILURES,
        _ => 0,
    }
}

/// Stores the records, as far as that is asked for. The flag is set by an interrupt.
async fn prepare(flags: &Flags, config: &Config) -> Result<Arc<AtomicBool>, Failure> {
    for report in runtime::reports().iter().filter(|report| !report.steps_down.is_empty()) {
        eprintln!("loadgen: {report}");
    }
    let stop = Arc::new(AtomicBool::new(false));
    let interrupted = Arc::clone(&stop);
    let signal = runtime::signal::terminated()?;
    drop(runtime::spawn(async move {
        signal.await;
        interrupted.store(true, Ordering::Relaxed);
    }));
    runtime::sleep(Duration::from_secs_f64(flags.wait_before)).await;
    if !flags.noload {
        let all = config.workload.records * config.servers.len() as u64;
        let bar = live::records(flags.quiet, all);
        let stored = loadgen::load_records_with(config, &stop, |stored| bar.set_position(stored)).await;
        bar.finish_and_clear();
        stored?;
        if stop.load(Ordering::Relaxed) {
            return Err("interrupted while the records were stored".into());
        }
        if flags.loadonly {
            eprintln!("loadgen: {all} records stored");
        }
    }
    Ok(stop)
}

/// `None` where there was nothing to measure.
async fn measure(flags: &Flags, config: &Config) -> Result<Option<Report>, Failure> {
    let stop = prepare(flags, config).await?;
    if flags.loadonly || stop.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let before = match config.warm_up {
        WarmUp::Fixed(time) => time,
        WarmUp::UntilSteady => Duration::ZERO,
    };
    let mut live = Live::new(flags.quiet, before + config.duration);
    let report = loadgen::run_until(config, &stop, |progress| live.show(progress)).await;
    live.end();
    if stop.load(Ordering::Relaxed) {
        eprintln!("loadgen: interrupted; what follows was measured until then");
    }
    Ok(Some(report?))
}
