//! The `loadgen` command.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use loadgen::{Arrival, Config, Distribution, Loop, Workload};
use policies::{Cpus, Policy};
use runtime::{Builder, DriverKind, WaitStrategy};

/// Load for a memcached-protocol server, with honest latencies
#[derive(Parser)]
#[command(name = "loadgen", version, disable_version_flag = true)]
struct Flags {
    /// The server, as HOST or HOST:PORT
    #[arg(short = 's', long = "server", default_value = "127.0.0.1:11211", value_parser = parse_server)]
    server: SocketAddr,
    /// Connections, over all threads
    #[arg(short = 'c', long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_000))]
    connections: u32,
    // -V is the values' size, as mutilate has it.
    /// Print version
    #[arg(long, action = clap::ArgAction::Version)]
    version: Option<bool>,
    /// Requests that a connection may have under way
    #[arg(short = 'd', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    depth: u32,
    /// Threads
    #[arg(short = 'T', long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Open loop: so many requests a second; closed loop where it is not given
    #[arg(short = 'q', long, value_parser = parse_rate)]
    qps: Option<f64>,
    /// Gaps of the open loop
    #[arg(short = 'i', long, value_enum, default_value_t = Gaps::Exponential)]
    iadist: Gaps,
    /// Seconds of measuring
    #[arg(short = 't', long = "time", default_value_t = 5.0, value_parser = parse_seconds)]
    time: f64,
    /// Seconds of load before that
    #[arg(short = 'w', long, default_value_t = 1.0, value_parser = parse_seconds)]
    warmup: f64,
    /// Bytes of a key: N, fixed:N, uniform:A,B, normal:M,S, exponential:M, pareto:L,S,K, gev:L,S,K, fb_key
    #[arg(short = 'K', long, default_value = "30")]
    keysize: Distribution,
    /// Bytes of a value: likewise, or fb_value
    #[arg(short = 'V', long, default_value = "200")]
    valuesize: Distribution,
    /// Facebook's ETC pool: fb_key, fb_value and, with -q, its gaps
    #[arg(long)]
    etc: bool,
    /// Records
    #[arg(short = 'r', long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    records: u64,
    /// Share of requests that set, 0 to 1
    #[arg(short = 'u', long, default_value_t = 0.0, value_parser = parse_share)]
    update: f64,
    /// Don't store the records first
    #[arg(long, conflicts_with = "loadonly")]
    noload: bool,
    /// Store the records and stop
    #[arg(long)]
    loadonly: bool,
    /// A table for people, or JSON for programs
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Write the latencies as an HdrHistogram log
    #[arg(long, value_name = "FILE")]
    hdr: Option<PathBuf>,
    /// Where the random numbers start
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The generator's own policy
    #[arg(long)]
    policy: Option<Policy>,
    /// The interface that the server is reached by, for the policy
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// The generator's driver: auto, epoll, uring or hybrid
    #[arg(long)]
    driver: Option<DriverKind>,
    /// How the generator's threads wait
    #[arg(long)]
    wait: Option<WaitStrategy>,
    /// Pin the threads to these cores
    #[arg(long)]
    cores: Option<Cpus>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    #[default]
    Table,
    Json,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Gaps {
    Exponential,
    #[value(name = "fb_ia")]
    Etc,
}

fn parse_server(text: &str) -> Result<SocketAddr, String> {
    let hint = "write HOST or HOST:PORT, for example 127.0.0.1:11211";
    let found = text.to_socket_addrs().or_else(|_| (text, 11211).to_socket_addrs());
    match found {
        Ok(mut addresses) => addresses.next().ok_or_else(|| hint.to_owned()),
        Err(error) => Err(format!("{error}; {hint}")),
    }
}

fn number(text: &str, from: f64, to: f64) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (from..=to).contains(&value) => Ok(value),
        _ => Err(format!("write a number from {from} to {to}")),
    }
}

fn parse_rate(text: &str) -> Result<f64, String> {
    number(text, 1.0, 1e9)
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    number(text, 0.0, 86_400.0)
}

fn parse_share(text: &str) -> Result<f64, String> {
    number(text, 0.0, 1.0)
}

fn main() -> ExitCode {
    match run(&Flags::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("loadgen: {error}");
            ExitCode::FAILURE
        }
    }
}

fn config(flags: &Flags) -> Config {
    let arrival = match flags.iadist {
        Gaps::Exponential if !flags.etc => Arrival::Exponential,
        _ => Arrival::Etc,
    };
    let (key, value) = if flags.etc {
        (Distribution::EtcKey, Distribution::EtcValue)
    } else {
        (flags.keysize, flags.valuesize)
    };
    Config {
        server: flags.server,
        connections: flags.connections as usize,
        depth: flags.depth as usize,
        pacing: flags.qps.map_or(Loop::Closed, |rate| Loop::Open { rate, arrival }),
        workload: Workload { key, value, records: flags.records, update: flags.update },
        warm_up: Duration::from_secs_f64(flags.warmup),
        duration: Duration::from_secs_f64(flags.time),
        seed: flags.seed,
    }
}

fn run(flags: &Flags) -> Result<(), Box<dyn std::error::Error>> {
    if flags.time <= 0.0 && !flags.loadonly {
        return Err("there is nothing to measure in 0 seconds; give -t".into());
    }
    // Opened before the run, so that a bad path doesn't cost one.
    let mut hdr = match &flags.hdr {
        Some(path) => Some(File::create(path).map_err(|error| format!("{}: {error}", path.display()))?),
        None => None,
    };
    let mut builder = Builder::new().workers(flags.threads.into());
    if let Some(policy) = flags.policy {
        builder = builder.policy(policy);
    }
    if let Some(name) = &flags.interface {
        builder = builder.interface(name);
    }
    if let Some(wait) = flags.wait {
        builder = builder.wait(wait);
    }
    if let Some(driver) = flags.driver {
        builder = builder.driver(driver);
    }
    if let Some(cores) = flags.cores.clone() {
        builder = builder.cores(cores);
    }
    let config = config(flags);
    let mut runtime = builder.build()?;
    let report = runtime.block_on(async {
        for report in runtime::reports().iter().filter(|report| !report.steps_down.is_empty()) {
            eprintln!("loadgen: {report}");
        }
        if !flags.noload {
            loadgen::load_records(&config).await?;
        }
        if flags.loadonly {
            return Ok(None);
        }
        let bar = progress_bar(&config);
        let mut last = (Duration::ZERO, 0);
        let report = loadgen::run_with_progress(&config, |elapsed, completed| {
            let rate = (completed - last.1) as f64 / (elapsed - last.0).as_secs_f64().max(1e-9);
            last = (elapsed, completed);
            bar.set_position(elapsed.as_millis() as u64);
            bar.set_message(format!("{rate:.0} requests/s"));
        })
        .await;
        bar.finish_and_clear();
        report.map(Some)
    })?;
    let Some(report) = report else {
        eprintln!("loadgen: {} records stored", config.workload.records);
        return Ok(());
    };
    if let Some(file) = &mut hdr {
        report.write_histogram(file)?;
    }
    let mut out = std::io::stdout().lock();
    match flags.format {
        Format::Table => write!(out, "{}", report.table())?,
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?,
    }
    Ok(())
}

fn progress_bar(config: &Config) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let total = config.warm_up + config.duration;
    let bar = ProgressBar::new(total.as_millis() as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {msg}") {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn no_option_has_two_meanings() {
        super::Flags::command().debug_assert();
    }
}
