//! What all measurements share: interrupts, agents, records and output files before, the exit code
//! after.

use std::error::Error;
use std::fs::OpenOptions;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use loadgen::{Config, Coordinator, Report};

use crate::flags::Flags;
use crate::progress_bar;

/// Prints what the runtime could not do, and returns a flag that an interrupt sets.
pub fn watch_interrupt() -> Result<Arc<AtomicBool>, Box<dyn Error>> {
    for report in
        runtime::reports().iter().filter(|report| !(report.steps_down.is_empty() && report.notes.is_empty()))
    {
        eprintln!("loadgen: {report}");
    }
    let stop = Arc::new(AtomicBool::new(false));
    let interrupted = Arc::clone(&stop);
    let signal = runtime::signal::terminated()?;
    drop(runtime::spawn(async move {
        signal.await;
        interrupted.store(true, Ordering::Relaxed);
    }));
    Ok(stop)
}

#[cfg(feature = "agents")]
pub async fn connect_agents(flags: &Flags) -> Result<Coordinator, Box<dyn Error>> {
    let agents: Result<Vec<_>, String> = flags
        .agents
        .iter()
        .map(|text| crate::value_parsers::parse_agent(text, flags.agent_port))
        .map(|parsed| parsed.map(|agent| (agent.name, agent.address)))
        .collect();
    Ok(Coordinator::connect(&agents?, flags.identity.as_deref(), flags.lambda_mul).await?)
}

#[cfg(not(feature = "agents"))]
pub async fn connect_agents(_: &Flags) -> Result<Coordinator, Box<dyn Error>> {
    Ok(Coordinator::local())
}

/// Stores the records, unless the flags say otherwise. Returns a flag that an interrupt sets.
pub async fn prepare(flags: &Flags, config: &Config) -> Result<Arc<AtomicBool>, Box<dyn Error>> {
    let stop = watch_interrupt()?;
    let begin = Instant::now() + Duration::from_secs_f64(flags.wait_before);
    while Instant::now() < begin && !stop.load(Ordering::Relaxed) {
        runtime::sleep_until(begin.min(Instant::now() + Duration::from_millis(100))).await;
    }
    if stop.load(Ordering::Relaxed) {
        return Err("interrupted before the measurement".into());
    }
    if !flags.noload {
        let records = config.workload.records * config.servers.len() as u64;
        let bar = progress_bar::for_records(flags.quiet, records);
        let stored = loadgen::load_records_with(config, &stop, |stored| bar.set_position(stored)).await;
        bar.finish_and_clear();
        stored?;
        if stop.load(Ordering::Relaxed) {
            return Err("interrupted while storing the records".into());
        }
        if flags.loadonly {
            eprintln!("loadgen: {records} records stored");
        }
    }
    Ok(stop)
}

pub const USAGE: u8 = 2;
pub const INVALID: u8 = 3;
pub const FAILURES: u8 = 4;
/// No rate reaches the goal of a search.
pub const UNREACHED: u8 = 5;

pub fn exit_code_of(report: &Report) -> u8 {
    if report.invalid.is_some() {
        INVALID
    } else if report.has_failures() {
        FAILURES
    } else {
        0
    }
}

/// Opens an output file before the run, so that a wrong path is reported at once. The previous
/// contents remain until the run begins.
pub fn check_output(path: Option<&Path>) -> Result<(), String> {
    let Some(path) = path else { return Ok(()) };
    let opened = OpenOptions::new().write(true).create(true).truncate(false).open(path);
    opened.map(drop).map_err(|error| format!("{}: {error}", path.display()))
}
