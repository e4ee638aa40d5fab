//! Measurements at one rate, at several, and the search of the highest one.

use std::error::Error;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use loadgen::{Config, Coordinator, Estimate, Goal, Loop, Report, SearchResult, Verdict};

use crate::flags::{Flags, Format, Scan};
use crate::progress_bar;

pub const USAGE: u8 = 2;
const INVALID: u8 = 3;
const FAILURES: u8 = 4;
/// No rate reaches the goal of a search.
const UNREACHED: u8 = 5;

/// Connects to the agents, stores the records, and measures what the flags say.
pub async fn run(flags: &Flags, config: &Config) -> Result<ExitCode, Box<dyn Error>> {
    check_output(config.sample_file.as_deref())?;
    let mut coordinator = connect_agents(flags).await?;
    let stop = &*prepare(flags, config).await?;
    if flags.loadonly || stop.load(Ordering::Relaxed) {
        return Ok(ExitCode::SUCCESS);
    }
    let session = Session { flags, config, coordinator: &mut coordinator, stop };
    match (flags.search, flags.scan) {
        (Some(goal), _) => search_rate(session, goal).await,
        (None, Some(scan)) => measure_rates(session, scan).await,
        (None, None) => measure(session).await,
    }
}

/// What measures: the records are stored, and the agents connected.
struct Session<'a> {
    flags: &'a Flags,
    config: &'a Config,
    coordinator: &'a mut Coordinator,
    /// Set by an interrupt.
    stop: &'a AtomicBool,
}

/// Prints what the runtime could not do, and returns a flag that an interrupt sets.
pub fn watch_interrupt() -> Result<Arc<AtomicBool>, Box<dyn Error>> {
    for report in
        runtime::reports().iter().filter(|report| !(report.steps_down.is_empty() && report.notes.is_empty()))
    {
        eprintln!("loadgen: {report}");
    }
    let stop = Arc::new(AtomicBool::new(false));
    let interrupted = Arc::clone(&stop);
    let signal = runtime::signal::terminated();
    drop(runtime::spawn(async move {
        match signal.await {
            Ok(()) => interrupted.store(true, Ordering::Relaxed),
            Err(error) => eprintln!("loadgen: a signal ends the run without a report: {error}"),
        }
    }));
    Ok(stop)
}

async fn connect_agents(flags: &Flags) -> Result<Coordinator, Box<dyn Error>> {
    let mut agents = Vec::new();
    for name in &flags.agents {
        let address = loadgen::resolve(name, flags.agent_port)
            .map_err(|_| format!("cannot resolve {name:?}; write HOST or HOST:PORT"))?;
        agents.push((name.clone(), address));
    }
    Ok(Coordinator::connect(&agents, flags.identity.as_deref(), flags.lambda_mul).await?)
}

/// Stores the records, unless the flags say otherwise. Returns a flag that an interrupt sets.
async fn prepare(flags: &Flags, config: &Config) -> Result<Arc<AtomicBool>, Box<dyn Error>> {
    let stop = watch_interrupt()?;
    let begin = Instant::now() + flags.wait_before;
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

fn exit_code_of(report: &Report) -> u8 {
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
fn check_output(path: Option<&Path>) -> Result<(), String> {
    let Some(path) = path else { return Ok(()) };
    let opened = OpenOptions::new().write(true).create(true).truncate(false).open(path);
    opened.map(drop).map_err(|error| format!("{}: {error}", path.display()))
}

async fn measure(session: Session<'_>) -> Result<ExitCode, Box<dyn Error>> {
    let Session { flags, config, coordinator, stop } = session;
    let bar = progress_bar::for_run(flags.quiet, config.warm_up() + config.duration);
    let report = coordinator.run(config, stop, |progress| progress_bar::show(&bar, "", progress)).await;
    bar.finish_and_clear();
    if stop.load(Ordering::Relaxed) {
        eprintln!("loadgen: interrupted; the figures cover the time until then");
    }
    let report = report?;
    let mut out = std::io::stdout().lock();
    match flags.format {
        Format::Table => write!(out, "{}", report.table())?,
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?,
    }
    if let Some(invalid) = report.invalid.as_ref().filter(|_| flags.format != Format::Table) {
        eprintln!("loadgen: invalid: {invalid}");
    }
    Ok(ExitCode::from(exit_code_of(&report)))
}

/// Measures at several rates, one after the other.
async fn measure_rates(session: Session<'_>, scan: Scan) -> Result<ExitCode, Box<dyn Error>> {
    let Session { flags, config, coordinator, stop } = session;
    let (mut worst, mut failed, mut first) = (0, None, true);
    let mut reports = Vec::new();
    for rate in scan.rates() {
        let Loop::Open { arrival, .. } = config.pacing else { break };
        let config = Config { pacing: Loop::Open { rate, arrival }, ..config.clone() };
        let bar = progress_bar::for_run(flags.quiet, Duration::ZERO);
        let name = format!("{rate:.0}/s");
        let show = |progress| progress_bar::show(&bar, &name, progress);
        let report = coordinator.run(&config, stop, show).await;
        bar.finish_and_clear();
        let report = match report {
            Ok(report) => report,
            Err(error) => {
                failed = Some(error);
                break;
            }
        };
        worst = worst.max(exit_code_of(&report));
        match flags.format {
            Format::Table => print_line(rate, &report, std::mem::take(&mut first))?,
            // Printed as one array at the end.
            Format::Json => reports.push(report),
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    let mut out = std::io::stdout().lock();
    if flags.format == Format::Json {
        writeln!(out, "{}", serde_json::to_string_pretty(&reports)?)?;
    }
    // Report the error after the results of the rates before it.
    failed.map_or(Ok(ExitCode::from(worst)), |error| Err(error.into()))
}

/// Prints the result of one rate, the first one after a header.
fn print_line(rate: f64, report: &Report, first: bool) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    if first {
        writeln!(
            out,
            "{:>10} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "target", "QPS", "avg", "50th", "95th", "99th", "99.9th", "max"
        )?;
    }
    let latency = &report.latency;
    let note = report.invalid.as_ref().map_or("", |_| "  INVALID");
    writeln!(
        out,
        "{rate:>10.0} {:>10.1} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>9.1}{note}",
        report.qps, latency.avg, latency.p50, latency.p95, latency.p99, latency.p999, latency.max
    )
}

/// Searches the highest rate that keeps a latency percentile below a bound.
async fn search_rate(session: Session<'_>, goal: Goal) -> Result<ExitCode, Box<dyn Error>> {
    let Session { flags, config, coordinator, stop } = session;
    let bar = progress_bar::for_run(flags.quiet, Duration::ZERO);
    let show = |name: &str, progress| progress_bar::show(&bar, name, progress);
    let result = loadgen::search(coordinator, config, goal, stop, show).await;
    bar.finish_and_clear();
    print_result(flags, &result?, stop.load(Ordering::Relaxed))
}

fn print_result(flags: &Flags, result: &SearchResult, interrupted: bool) -> Result<ExitCode, Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    match flags.format {
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(result)?)?,
        Format::Table => print_trials(&mut out, result)?,
    }
    let (percentile, bound) = (result.goal.percentile, result.goal.bound_us);
    let too_few = result.tried.last().is_some_and(|trial| trial.verdict == Verdict::TooFew);
    if interrupted {
        eprintln!("loadgen: interrupted; the search is incomplete");
        return Ok(ExitCode::FAILURE);
    }
    if too_few {
        eprintln!(
            "loadgen: too few requests in {} s for p{percentile}: use a longer -t",
            flags.config.duration.as_secs_f64()
        );
        return Ok(ExitCode::FAILURE);
    }
    let Some(rate) = result.rate else {
        if result.tried.iter().all(|trial| trial.verdict == Verdict::Invalid) {
            eprintln!("loadgen: the generator is too slow for each of these rates");
            return Ok(ExitCode::from(INVALID));
        }
        eprintln!(
            "loadgen: no rate keeps p{percentile} below {bound} µs (a closed loop reaches {:.0}/s)",
            result.peak
        );
        return Ok(ExitCode::from(UNREACHED));
    };
    if flags.format == Format::Table {
        let next = result.failed.map_or_else(
            || " (the peak of a closed loop)".to_owned(),
            |failed| format!(", and {failed:.0}/s does not"),
        );
        writeln!(out, "{rate:.0} requests/s keep p{percentile} below {bound} µs{next}")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print_trials(out: &mut impl Write, result: &SearchResult) -> Result<(), Box<dyn Error>> {
    let percentile = format!("p{}", result.goal.percentile);
    let mut print_row = |[target, qps, latency, low, high, verdict]: [&str; 6]| {
        writeln!(out, "{target:>10} {qps:>10} {latency:>9} {low:>9} {high:>9}  {verdict}")
    };
    print_row(["target", "QPS", &percentile, "low", "high", "verdict"])?;
    for trial in &result.tried {
        let figure = |of: fn(Estimate) -> f64| {
            trial.latency.map_or("-".to_owned(), |latency| format!("{:.1}", of(latency)))
        };
        print_row([
            &format!("{:.0}", trial.rate),
            &format!("{:.1}", trial.qps),
            &figure(|latency| latency.mean),
            &figure(|latency| latency.low),
            &figure(|latency| latency.high),
            serde_json::to_value(trial.verdict)?.as_str().unwrap_or_default(),
        ])?;
    }
    Ok(())
}
