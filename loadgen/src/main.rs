//! The `loadgen` command.

mod curve;
mod flags;
mod live;
mod plot;
mod turns;
mod values;
mod workload_file;

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{CommandFactory, FromArgMatches};
use loadgen::{Agent, AgentOptions, Config, Crew, Report, WarmUp};

use crate::flags::Flags;
use crate::live::Live;
use crate::values::{Format, parse_agent};

/// The figures are not what was asked for.
const INVALID: u8 = 3;
/// Requests failed.
const FAILURES: u8 = 4;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let flags = match parse() {
        Ok(Some(flags)) => flags,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) if is_unread(&error) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("loadgen: {error}");
            return ExitCode::from(2);
        }
    };
    match run(&flags) {
        Ok(code) => code,
        Err(error) if is_unread(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("loadgen: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whoever reads the output has seen enough, as `head` has.
fn is_unread(error: &Failure) -> bool {
    let error = error.downcast_ref::<std::io::Error>();
    error.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// The command line, with the flags of a file before it; `None` where only something was to be printed.
fn parse() -> Result<Option<Flags>, Failure> {
    let mut command = Flags::command();
    let mut line: Vec<OsString> = std::env::args_os().collect();
    let mut matches = command.clone().get_matches_from(&line);
    if let Some(path) = matches.get_one::<std::path::PathBuf>("workload") {
        let at = line.len().min(1);
        line.splice(at..at, workload_file::read(path, &command, &matches)?);
        matches = command.clone().get_matches_from(&line);
    }
    let flags = Flags::from_arg_matches(&matches)?;
    let mut out = std::io::stdout().lock();
    if flags.dump_workload {
        out.write_all(workload_file::dump(&command, &matches)?.as_bytes())?;
    } else if let Some(shell) = flags.completions {
        // Into memory: the crate panics where it can't write.
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut command, "loadgen", &mut script);
        out.write_all(&script)?;
    } else if flags.man {
        clap_mangen::Man::new(command).render(&mut out)?;
    } else {
        return Ok(Some(flags));
    }
    Ok(None)
}

/// Opened before the run, so that a bad path doesn't cost one. What is in it stays until there is something
/// better.
fn create(path: Option<&Path>) -> Result<Option<File>, Failure> {
    let Some(path) = path else { return Ok(None) };
    let opened = OpenOptions::new().write(true).create(true).truncate(false).open(path);
    Ok(Some(opened.map_err(|error| format!("{}: {error}", path.display()))?))
}

/// The file, empty. What is no file can't be emptied, and need not be.
fn emptied(file: File) -> std::io::Result<File> {
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

fn run(flags: &Flags) -> Result<ExitCode, Failure> {
    if flags.agent_mode {
        return be_agent(flags);
    }
    if let Some(contradiction) = flags.contradiction() {
        eprintln!("loadgen: {contradiction}");
        return Ok(ExitCode::from(2));
    }
    let config = flags.config()?;
    if let Err(error) = config.check() {
        eprintln!("loadgen: {error}");
        return Ok(ExitCode::from(2));
    }
    let mut runtime = flags.builder()?.build()?;
    if flags.search.is_some() || flags.scan.is_some() {
        return runtime.block_on(curve::run(flags, &config));
    }
    if !flags.compare.is_empty() {
        return runtime.block_on(turns::run(flags, &config));
    }
    let (hdr, series) = (create(flags.hdr.as_deref())?, create(flags.series.as_deref())?);
    // They are written elsewhere, and later.
    create(flags.save.as_deref())?;
    create(flags.plot.as_deref())?;
    let report = runtime.block_on(measure(flags, &config))?;
    let Some(report) = report else { return Ok(ExitCode::SUCCESS) };
    if let Some(file) = hdr {
        report.write_histogram(emptied(file)?)?;
    }
    if let Some(file) = series {
        report.write_series(std::io::BufWriter::new(emptied(file)?))?;
    }
    if let Some(path) = &flags.plot {
        plot::series(path, &report.series)?;
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

/// Set by an interrupt.
fn interrupt() -> Result<Arc<AtomicBool>, Failure> {
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
    Ok(stop)
}

fn be_agent(flags: &Flags) -> Result<ExitCode, Failure> {
    let options = AgentOptions {
        listen: (flags.listen, flags.agent_port).into(),
        secret: flags.secret()?,
        weight: flags.lambda_mul,
    };
    flags.builder()?.build()?.block_on(async {
        let stop = interrupt()?;
        let agent = Agent::bind(options)?;
        eprintln!("loadgen: agent listens on {}", agent.local_addr()?);
        // Whoever read this may have stopped reading: the agent goes on.
        agent.serve(&stop, |what| drop(writeln!(std::io::stderr(), "loadgen: {what}"))).await;
        Ok(ExitCode::SUCCESS)
    })
}

/// The agents that take part.
async fn call(flags: &Flags) -> Result<Crew, Failure> {
    let agents: Result<Vec<_>, String> = flags
        .agents
        .iter()
        .map(|text| parse_agent(text, flags.agent_port).map(|agent| (agent.name, agent.address)))
        .collect();
    Ok(Crew::call(&agents?, flags.secret()?.as_deref(), flags.lambda_mul).await?)
}

/// Stores the records, as far as that is asked for. The flag is set by an interrupt.
async fn prepare(flags: &Flags, config: &Config) -> Result<Arc<AtomicBool>, Failure> {
    let stop = interrupt()?;
    let begin = Instant::now() + Duration::from_secs_f64(flags.wait_before);
    while Instant::now() < begin && !stop.load(Ordering::Relaxed) {
        runtime::sleep_until(begin.min(Instant::now() + Duration::from_millis(100))).await;
    }
    if stop.load(Ordering::Relaxed) {
        return Err("interrupted before anything was measured".into());
    }
    if !flags.noload && flags.trace.is_none() {
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
    let mut crew = call(flags).await?;
    let stop = prepare(flags, config).await?;
    if flags.loadonly || stop.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let before = match config.warm_up {
        WarmUp::Fixed(time) => time,
        WarmUp::UntilSteady => Duration::ZERO,
    };
    let mut live = Live::new(flags.quiet, before + config.duration);
    let report = crew.run(config, &stop, |progress| live.show(progress)).await;
    live.end();
    if stop.load(Ordering::Relaxed) {
        eprintln!("loadgen: interrupted; what follows was measured until then");
    }
    Ok(Some(report?))
}
