//! The `lab` command.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use lab::calibration;
use lab::experiment::{Bench, Contestant, Cores, Plan, rows};
use lab::generators;
use lab::party::{self, PARTY};
use lab::peers;
use lab::report::{Machine, Report};
use lab::testbed::Testbed;
use policies::{GraceTime, Settings};
use runtime::{DriverKind, WaitStrategy};

/// Costs all echo servers alike, and nothing where nothing is allocated.
#[global_allocator]
static ALLOCATOR: lab::allocations::Counting = lab::allocations::Counting;

/// Would kernel polling help this machine, and how much?
#[derive(Parser)]
#[command(name = "lab", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    compare: Options,
}

#[derive(Subcommand)]
enum Command {
    /// Compare the four policies (this is what lab does unless told otherwise)
    Compare(Options),
    /// Compare the drivers, under vanilla and under kernel polling, at saturation
    Drivers(Options),
    /// Compare Lull's echo server with those of tokio, monoio, compio and a bare epoll loop
    Peers(Options),
    /// Compare grace times (gro-flush-timeout) under kernel polling, fixed ones and the runtime's own
    Calibrate(Options),
    /// Compare load generators: loadgen, and mutilate and mc-crusher where they have been built
    Generators(GeneratorOptions),
    /// A process of an experiment
    #[command(name = PARTY, hide = true)]
    Party { order: String, namespace: Option<String> },
}

#[derive(Args, Clone)]
struct Options {
    /// Half a minute instead of five
    #[arg(long)]
    quick: bool,
    /// A table for people, or JSON for programs
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Write the JSON to a file, too
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Connections of the load
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    connections: u16,
    /// Rounds at saturation; unless set 7, or 3 with --quick
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=100))]
    rounds: Option<u8>,
    /// Use this grace time (microseconds, or auto:MIN-MAX) rather than look for the best one
    #[arg(long, value_name = "US")]
    gro_flush_timeout: Option<GraceTime>,
    /// How the server's worker waits: block, spin or spin-then-block
    #[arg(long, default_value_t = WaitStrategy::Block)]
    wait: WaitStrategy,
    /// The server's driver: epoll, uring, hybrid or auto; the same for all policies
    #[arg(long, default_value_t = DriverKind::Epoll)]
    driver: DriverKind,
    /// Loopback instead of the testbed
    #[arg(long)]
    loopback: bool,
}

#[derive(Args, Clone)]
struct GeneratorOptions {
    /// memcached's command
    #[arg(long, value_name = "PATH", default_value = "memcached")]
    memcached: PathBuf,
    /// mutilate's command, where it is to take part
    #[arg(long, value_name = "PATH")]
    mutilate: Option<PathBuf>,
    /// mc-crusher's command, likewise
    #[arg(long, value_name = "PATH")]
    mc_crusher: Option<PathBuf>,
    /// Requests under way on each connection
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16], value_parser = clap::value_parser!(u16).range(1..=1000))]
    depths: Vec<u16>,
    /// Connections
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1000))]
    connections: u16,
    /// Turns of each
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u8).range(1..=100))]
    rounds: u8,
    /// Seconds of a turn
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=600))]
    seconds: u16,
    /// A table for people, or JSON for programs
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    #[default]
    Table,
    Json,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match cli.command {
        Some(Command::Party { order, namespace }) => party::run(&order, namespace.as_deref()),
        Some(Command::Calibrate(options)) => calibrate(&options),
        Some(Command::Compare(options)) => compare(&options, Contestant::policies(options.driver)),
        Some(Command::Peers(options)) => compare_peers(&options),
        Some(Command::Generators(options)) => compare_generators(&options),
        Some(Command::Drivers(options)) => compare(&options, Contestant::drivers()),
        None => compare(&cli.compare, Contestant::policies(cli.compare.driver)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lab: {error}");
            ExitCode::FAILURE
        }
    }
}

fn plan(options: &Options, contestants: Vec<Contestant>) -> Plan {
    let quick = options.quick;
    let curve = contestants.iter().all(|one| one.driver == contestants[0].driver);
    let grace_candidates = match options.gro_flush_timeout {
        Some(_) => Vec::new(),
        None => micros(&[50, 100, 200, 400]),
    };
    Plan {
        rounds: options.rounds.map_or(if quick { 3 } else { 7 }, usize::from),
        duration: if quick { 0.8 } else { 2.5 },
        warm_up: if quick { 0.2 } else { 0.5 },
        load_shares: match (curve, quick) {
            (false, _) => Vec::new(),
            (true, true) => vec![0.5],
            (true, false) => vec![0.2, 0.4, 0.6, 0.8],
        },
        load_rounds: if quick { 1 } else { 2 },
        load_duration: if quick { 0.8 } else { 2.0 },
        grace_candidates,
        grace_rounds: if quick { 20 } else { 40 },
        connections: options.connections.into(),
        wait: options.wait.to_string(),
        contestants,
        repeat_budget: if quick { 4.0 } else { 60.0 },
    }
}

fn micros(times: &[u64]) -> Vec<Duration> {
    times.iter().copied().map(Duration::from_micros).collect()
}

fn bench(options: &Options, contestants: Vec<Contestant>) -> io::Result<Bench> {
    let testbed = if options.loopback { None } else { make_testbed()? };
    let grace = options.gro_flush_timeout.unwrap_or(Settings::GRO_FLUSH_TIMEOUT);
    let mut plan = plan(options, contestants);
    if testbed.is_none() {
        // Without a NAPI there is no grace time.
        plan.grace_candidates.clear();
    }
    Ok(Bench::new(testbed, Cores::choose()?, plan, grace))
}

/// Loopback is for those who may not make namespaces; any other failure is one.
fn make_testbed() -> io::Result<Option<Testbed>> {
    match Testbed::new(1) {
        Ok(testbed) => Ok(Some(testbed)),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            eprintln!(
                "lab: {error}; on loopback instead, which can't show what the policies do (it has no queue to poll)"
            );
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn progress(steps: usize) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(steps as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} ({eta} left)") {
        bar.set_style(style);
    }
    bar
}

fn compare(options: &Options, contestants: Vec<Contestant>) -> Result<(), Box<dyn std::error::Error>> {
    let mut output = open_output(options)?;
    let mut bench = bench(options, contestants)?;
    let plan = bench.plan.clone();
    let bar =
        progress(1 + plan.contestants.len() * (plan.rounds + plan.load_shares.len() * plan.load_rounds));
    let tick = |message: &str| {
        bar.inc(1);
        bar.set_message(message.to_owned());
    };
    tick("grace times");
    let candidates = &plan.grace_candidates;
    let tried = calibration::calibrate(&bench, candidates, false, plan.grace_rounds, COMPARED_FOR)?;
    if let Some(best) = tried.as_ref().and_then(|tried| tried.best) {
        bench.grace_time = GraceTime::Fixed(best);
    }
    let rounds = bench.compare(None, plan.rounds, plan.duration, tick)?;
    let best = rows(&plan.contestants, &rounds).iter().map(|row| row.qps).fold(0.0, f64::max);
    let (mut curve, mut curve_rounds) = (Vec::new(), Vec::new());
    for share in &plan.load_shares {
        // A round rate reads better, and is the same for all policies.
        let rate = ((best * share / 1000.0).round() * 1000.0).max(1000.0);
        let at_rate = bench.compare(Some(rate), plan.load_rounds, plan.load_duration, tick)?;
        curve.extend(rows(&plan.contestants, &at_rate));
        curve_rounds.extend(at_rate);
    }
    bar.finish_and_clear();
    let report = Report::new(&bench, tried, rounds, curve_rounds, curve);
    print(options.format, output.as_mut(), &serde_json::to_string_pretty(&report)?, || report.text())
}

fn compare_peers(options: &Options) -> Result<(), Box<dyn std::error::Error>> {
    let mut output = open_output(options)?;
    let mut plan = peers::Plan::new(options.quick);
    plan.rounds = options.rounds.map_or(plan.rounds, usize::from);
    let cores = Cores::choose()?;
    let bar = progress(plan.steps());
    let (rows, notes) = peers::run(&plan, cores, |message| {
        bar.inc(1);
        bar.set_message(message.to_owned());
    })?;
    bar.finish_and_clear();
    let report = peers::Report { machine: Machine::read(), cores, plan, rows, notes };
    print(options.format, output.as_mut(), &serde_json::to_string_pretty(&report)?, || report.text())
}

fn compare_generators(options: &GeneratorOptions) -> Result<(), Box<dyn std::error::Error>> {
    let loadgen = std::env::current_exe()?.with_file_name("loadgen");
    if !loadgen.is_file() {
        return Err(format!("{} is not there: build it with cargo build --release", loadgen.display()).into());
    }
    let plan = generators::Plan {
        memcached: options.memcached.clone(),
        loadgen,
        mutilate: options.mutilate.clone(),
        mc_crusher: options.mc_crusher.clone(),
        depths: options.depths.clone(),
        connections: options.connections,
        seconds: options.seconds,
        rounds: options.rounds.into(),
    };
    let others = usize::from(plan.mutilate.is_some()) + usize::from(plan.mc_crusher.is_some());
    let bar = progress(plan.depths.len() * plan.rounds * (1 + others));
    let cores = Cores::choose()?;
    let rows = generators::run(&plan, cores, |message| {
        bar.inc(1);
        bar.set_message(message.to_owned());
    })?;
    bar.finish_and_clear();
    let report = generators::Report { machine: Machine::read(), cores, plan, rows };
    print(options.format, None, &serde_json::to_string_pretty(&report)?, || report.text())
}

/// Opened first, so that a bad path doesn't cost a run.
fn open_output(options: &Options) -> Result<Option<File>, Box<dyn std::error::Error>> {
    let Some(path) = &options.output else { return Ok(None) };
    Ok(Some(File::create(path).map_err(|error| format!("{}: {error}", path.display()))?))
}

fn print(
    format: Format,
    output: Option<&mut File>,
    json: &str,
    text: impl FnOnce() -> String,
) -> Result<(), Box<dyn std::error::Error>> {
    if let Some(file) = output {
        writeln!(file, "{json}")?;
    }
    let mut out = io::stdout().lock();
    match format {
        Format::Table => write!(out, "{}", text())?,
        Format::Json => writeln!(out, "{json}")?,
    }
    Ok(())
}

fn calibrate(options: &Options) -> Result<(), Box<dyn std::error::Error>> {
    let bench = bench(options, Contestant::policies(options.driver))?;
    if !bench.has_testbed() {
        return Err("the grace time is a setting of a NAPI, and loopback has none; run it as root".into());
    }
    let mut output = open_output(options)?;
    let quick = options.quick;
    let fixed = micros(if quick { &[50, 200] } else { &[10, 20, 50, 100, 200, 400] });
    let rounds = options.rounds.map_or(if quick { 10 } else { 40 }, usize::from);
    let tried = calibration::calibrate(&bench, &fixed, true, rounds, CALIBRATED_FOR)?;
    let tried = tried.ok_or("kernel polling is not among what is compared")?;
    print(options.format, output.as_mut(), &serde_json::to_string_pretty(&tried)?, || tried.text())
}

/// How long a grace time is in force at once: beside others, and beside the runtime's own.
const COMPARED_FOR: Duration = Duration::from_millis(25);
const CALIBRATED_FOR: Duration = Duration::from_millis(250);
