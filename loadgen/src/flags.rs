//! The command's flags: mutilate's under their names, and others.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser, ValueEnum};
use loadgen::{Address, Arrival, Config, Distribution, Goal, Loop, Mix, Popularity, WarmUp, Workload};
use policies::{Cpus, Policy};
use runtime::{Builder, DriverKind, WaitStrategy};

/// Load for memcached-protocol servers, with honest latencies
#[derive(Parser)]
#[command(
    name = "loadgen",
    version,
    disable_version_flag = true,
    after_help = "Exit codes: 0 measured; 1 could not run; 2 wrong flags; 3 the figures are invalid, and why is printed; 4 errors, wrong values or requests without an answer; 5 no rate reaches the goal of --search"
)]
pub struct Flags {
    /// A server: HOST, HOST:PORT, or the path of a Unix socket; repeat for several, among which the records
    /// are divided
    #[arg(short = 's', long = "server", default_value = "127.0.0.1:11211")]
    pub servers: Vec<Address>,
    /// Open loop: so many requests a second in all; 0 or none is a closed loop
    #[arg(short = 'q', long, default_value_t = 0.0, value_parser = parse_rate, help_heading = "Load")]
    pub qps: f64,
    /// Seconds of measuring
    #[arg(short = 't', long, default_value_t = 5.0, value_parser = parse_seconds, help_heading = "Load")]
    pub time: f64,
    /// Seconds of load before that; auto measures at once, and leaves out what is not steady yet
    #[arg(short = 'w', long, default_value = "auto", value_parser = parse_warm_up, help_heading = "Load")]
    pub warmup: WarmUp,
    /// Seconds to wait before all else
    #[arg(short = 'W', long = "wait-before", alias = "wait_before", default_value_t = 0.0, value_parser = parse_seconds, help_heading = "Load")]
    pub wait_before: f64,
    /// Connections of each thread to each server
    #[arg(short = 'c', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_000), help_heading = "Load")]
    pub connections: u32,
    /// Requests that a connection may have under way
    #[arg(short = 'd', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536), help_heading = "Load")]
    pub depth: u32,
    /// Threads
    #[arg(short = 'T', long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024), help_heading = "Load")]
    pub threads: u16,
    /// Each thread asks only one server, in turns
    #[arg(short = 'R', long, help_heading = "Load")]
    pub roundrobin: bool,
    /// Gaps of the open loop: a distribution, scaled to the rate
    #[arg(short = 'i', long, default_value = "exponential", value_parser = parse_gaps, help_heading = "Load")]
    pub iadist: Arrival,
    /// End before the time is over when rate, median and p99 are known within so much, for example 2%
    #[arg(long, value_name = "SHARE", value_parser = parse_percent, help_heading = "Load")]
    pub until_ci: Option<f64>,
    /// Search for the highest rate whose N-th percentile is below X µs; -t is the time of each step
    #[arg(long, value_name = "N:X", conflicts_with_all = ["qps", "scan", "hdr", "series"], help_heading = "Load")]
    pub search: Option<Goal>,
    /// Measure at rates from MIN to MAX in steps, each for -t seconds
    #[arg(long, value_name = "MIN:MAX:STEP", value_parser = parse_scan, conflicts_with_all = ["qps", "hdr", "series"], help_heading = "Load")]
    pub scan: Option<Scan>,
    /// Leave out requests of the open loop whose connection is busy
    #[arg(short = 'S', long, help_heading = "Load")]
    pub skip: bool,
    /// Keep at least half of the mean gap between requests of the open loop, also after a delay
    #[arg(long, help_heading = "Load")]
    pub moderate: bool,
    /// Small requests wait for those before them to be acknowledged (no TCP_NODELAY)
    #[arg(long = "no_nodelay", alias = "no-nodelay", help_heading = "Load")]
    pub no_nodelay: bool,
    // -V is the values' size, as mutilate has it.
    /// Bytes of a key: N, fixed:N, uniform:A,B, normal:M,S, exponential:M, pareto:L,S,K, gev:L,S,K, fb_key
    #[arg(short = 'K', long, default_value = "30", help_heading = "Workload")]
    pub keysize: Distribution,
    /// Bytes of a value: likewise, or fb_value
    #[arg(short = 'V', long, default_value = "200", help_heading = "Workload")]
    pub valuesize: Distribution,
    /// Records, over all servers
    #[arg(short = 'r', long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1 << 40), help_heading = "Workload")]
    pub records: u64,
    /// Share of requests that set, 0 to 1
    #[arg(short = 'u', long, default_value_t = 0.0, value_parser = parse_share, help_heading = "Workload")]
    pub update: f64,
    /// Operations by weight, for example get=90,set=9,delete=1; also touch, cas, incr, mg, ms
    #[arg(long, conflicts_with = "update", help_heading = "Workload")]
    pub mix: Option<Mix>,
    /// Which records are asked for: uniform, zipf:S, hotset:RECORDS,REQUESTS, latest:S, sequential
    #[arg(long, default_value = "uniform", help_heading = "Workload")]
    pub popularity: Popularity,
    /// Keys of one get
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000), help_heading = "Workload")]
    pub multiget: u16,
    /// Seconds after which stored records expire; 0 is never
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=2_592_000), help_heading = "Workload")]
    pub ttl: u64,
    /// Facebook's ETC pool: fb_key, fb_value and, with -q, its gaps
    #[arg(long, help_heading = "Workload")]
    pub etc: bool,
    /// Values carry their key and a checksum, and are compared when they come back
    #[arg(long, help_heading = "Workload")]
    pub verify: bool,
    /// Don't store the records first
    #[arg(long, conflicts_with = "loadonly", help_heading = "Workload")]
    pub noload: bool,
    /// Store the records and stop
    #[arg(long, help_heading = "Workload")]
    pub loadonly: bool,
    /// Where the random numbers start
    #[arg(long, default_value_t = 1, help_heading = "Workload")]
    pub seed: u64,
    /// A table for people, JSON for programs, or a line of CSV under its header
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: Format,
    /// Write the latencies as an HdrHistogram log
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub hdr: Option<PathBuf>,
    /// Write rate and latency of each tenth of a second, as CSV
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub series: Option<PathBuf>,
    /// Show nothing while it runs
    #[arg(long, help_heading = "Output")]
    pub quiet: bool,
    /// The generator's own policy
    #[arg(long, help_heading = "Generator")]
    pub policy: Option<Policy>,
    /// The interface that the server is reached by, for the policy
    #[arg(long, value_name = "NAME", help_heading = "Generator")]
    pub interface: Option<String>,
    /// The generator's driver: auto, epoll, uring or hybrid
    #[arg(long, help_heading = "Generator")]
    pub driver: Option<DriverKind>,
    /// How the generator's threads wait: block, spin or spin-then-block:50us
    #[arg(long, help_heading = "Generator")]
    pub wait: Option<WaitStrategy>,
    /// Taken, without effect: threads block unless --wait says otherwise
    #[arg(short = 'B', long, help_heading = "Generator")]
    pub blocking: bool,
    /// Pin the threads to these cores
    #[arg(long, help_heading = "Generator")]
    pub cores: Option<Cpus>,
    /// Pin the threads to the cores that there are, in turns
    #[arg(long, conflicts_with = "cores", help_heading = "Generator")]
    pub affinity: bool,
    /// Print version
    #[arg(long, action = ArgAction::Version)]
    pub version: Option<bool>,
}

/// Rates to measure at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scan {
    min: f64,
    max: f64,
    step: f64,
}

impl Scan {
    pub fn rates(self) -> impl Iterator<Item = f64> {
        // The last is not lost by rounding.
        let steps = ((self.max - self.min) / self.step + 1e-9) as u64;
        (0..=steps).map(move |step| self.min + self.step * step as f64)
    }
}

#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    #[default]
    Table,
    Json,
    Csv,
}

fn number(text: &str, from: f64, to: f64) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (from..=to).contains(&value) => Ok(value),
        _ => Err(format!("write a number from {from} to {to}")),
    }
}

fn parse_rate(text: &str) -> Result<f64, String> {
    match number(text, 0.0, 1e9)? {
        rate if rate > 0.0 && rate < 0.001 => Err("write 0, or a rate of at least 0.001".to_owned()),
        rate => Ok(rate),
    }
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    number(text, 0.0, 86_400.0)
}

fn parse_share(text: &str) -> Result<f64, String> {
    number(text, 0.0, 1.0)
}

fn parse_warm_up(text: &str) -> Result<WarmUp, String> {
    if text == "auto" {
        return Ok(WarmUp::UntilSteady);
    }
    let seconds = parse_seconds(text).map_err(|error| format!("{error}, or auto"))?;
    Ok(WarmUp::Fixed(Duration::from_secs_f64(seconds)))
}

fn parse_percent(text: &str) -> Result<f64, String> {
    let share = number(text.strip_suffix('%').unwrap_or(text), 0.01, 100.0);
    share.map(|percent| percent / 100.0).map_err(|error| format!("{error}, in percent"))
}

fn parse_scan(text: &str) -> Result<Scan, String> {
    let numbers: Option<Vec<f64>> = text.split(':').map(|number| number.parse().ok()).collect();
    match numbers.as_deref() {
        Some(&[min, max, step])
            if min > 0.0 && step > 0.0 && min <= max && max <= 1e9 && (max - min) / step <= 1000.0 =>
        {
            Ok(Scan { min, max, step })
        }
        _ => Err("write MIN:MAX:STEP, requests a second, in at most 1000 steps".to_owned()),
    }
}

fn parse_gaps(text: &str) -> Result<Arrival, String> {
    // mutilate's names without parameters: the rate gives the mean.
    let text = match text {
        "exponential" => "exponential:1",
        "uniform" => "uniform:0,2",
        "fixed" => "fixed:1",
        text => text,
    };
    let distribution: Distribution =
        text.parse().map_err(|error: loadgen::InvalidDistribution| error.to_string())?;
    Arrival::new(distribution).ok_or_else(|| format!("{text:?} has a mean of 0, and no rate comes of that"))
}

impl Flags {
    pub fn config(&self) -> Config {
        let servers = self.servers.len() as u64;
        let (key, value, arrival) = if self.etc {
            (Distribution::EtcKey, Distribution::EtcValue, Arrival::etc())
        } else {
            (self.keysize, self.valuesize, self.iadist)
        };
        Config {
            servers: self.servers.clone(),
            connections: self.connections as usize,
            round_robin: self.roundrobin,
            depth: self.depth as usize,
            pacing: match self.qps {
                // The gaps are what a search and a scan take from it.
                _ if self.search.is_some() || self.scan.is_some() => Loop::Open { rate: 1.0, arrival },
                0.0 => Loop::Closed,
                rate => Loop::Open { rate, arrival },
            },
            skip: self.skip,
            moderate: self.moderate,
            nodelay: !self.no_nodelay,
            workload: Workload {
                key,
                value,
                records: (self.records / servers.max(1)).max(1),
                popularity: self.popularity,
                mix: self.mix.clone().unwrap_or_else(|| Mix::updates(self.update)),
                multiget: self.multiget,
                ttl: Duration::from_secs(self.ttl),
                verify: self.verify,
            },
            spins: matches!(self.wait, Some(WaitStrategy::Spin | WaitStrategy::SpinThenBlock(_))),
            warm_up: self.warmup,
            duration: Duration::from_secs_f64(self.time),
            until_sure: self.until_ci,
            seed: self.seed,
        }
    }

    /// What is asked for that can't be had.
    pub fn contradiction(&self) -> Option<&'static str> {
        if self.loadonly && (self.search.is_some() || self.scan.is_some()) {
            return Some("--loadonly measures nothing: leave it, or --search and --scan, out");
        }
        if self.time <= 0.0 && !self.loadonly {
            return Some("there is nothing to measure in 0 seconds; give -t");
        }
        let open = self.qps > 0.0 || self.search.is_some() || self.scan.is_some();
        if (self.skip || self.moderate) && !open {
            return Some("--skip and --moderate are for the open loop; give -q");
        }
        None
    }

    pub fn builder(&self) -> std::io::Result<Builder> {
        let mut builder = Builder::new().workers(self.threads.into());
        if let Some(policy) = self.policy {
            builder = builder.policy(policy);
        }
        if let Some(name) = &self.interface {
            builder = builder.interface(name);
        }
        if let Some(wait) = self.wait {
            builder = builder.wait(wait);
        }
        if let Some(driver) = self.driver {
            builder = builder.driver(driver);
        }
        let all = if self.affinity { Some(Cpus::allowed()?) } else { None };
        if let Some(cores) = self.cores.clone().or(all) {
            builder = builder.cores(cores);
        }
        Ok(builder)
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[test]
    fn no_option_has_two_meanings() {
        Flags::command().debug_assert();
    }

    #[test]
    fn a_command_line_of_mutilate_means_what_it_meant() {
        let line = "loadgen -s 127.0.0.1 -s 127.0.0.2:7 -q 5000 -t 10 -K fb_key -V fb_value -r 1000 -u 0.1 \
                    -T 4 --affinity -c 8 -d 2 -R -i fb_ia -S --moderate --noload -B --no_nodelay -w 2 -W 0";
        let flags = Flags::try_parse_from(line.split_whitespace()).unwrap();
        assert!(flags.contradiction().is_none() && flags.affinity && flags.noload && flags.blocking);
        let config = flags.config();
        assert_eq!(config.servers[0].to_string(), "127.0.0.1:11211");
        assert_eq!((config.connections, config.depth, config.workload.records), (8, 2, 500));
        assert_eq!(config.pacing, Loop::Open { rate: 5000.0, arrival: Arrival::etc() });
        assert_eq!(config.warm_up, WarmUp::Fixed(Duration::from_secs(2)));
        assert!(config.round_robin && config.skip && config.moderate && !config.nodelay);
        assert_eq!(config.workload.mix, Mix::updates(0.1));
        assert_eq!(
            (config.workload.key, config.workload.value),
            (Distribution::EtcKey, Distribution::EtcValue)
        );
        let plain = Flags::try_parse_from(["loadgen"]).unwrap().config();
        assert_eq!((plain.connections, plain.depth, plain.pacing), (1, 1, Loop::Closed));
    }

    #[test]
    fn a_scan_has_its_ends_and_its_steps() {
        let rates = |text: &str| parse_scan(text).unwrap().rates().collect::<Vec<_>>();
        assert_eq!(rates("1000:3000:1000"), [1000.0, 2000.0, 3000.0]);
        assert_eq!(rates("0.1:0.3:0.1").len(), 3);
        assert_eq!(rates("5:5:1"), [5.0]);
        assert_eq!(parse_percent("2%"), Ok(0.02));
        assert_eq!(parse_percent("2"), Ok(0.02));
    }

    #[test]
    fn what_can_not_be_had_is_refused_with_a_reason() {
        for line in [
            "-q -1",
            "-q x",
            "-q 1e-20",
            "-i fixed:0",
            "-w soon",
            "-u 2",
            "--mix get",
            "--popularity zipf",
            "-K x",
            "-s nobody:x",
            "--mix get=1 -u 0.5",
            "--noload --loadonly",
            "-c 0",
            "--multiget 0",
            "--search 99",
            "--scan 5:1:1",
            "--scan 1:5",
            "--scan 1:5:0",
            "--until-ci 0",
            "--search 99:5 -q 5",
        ] {
            let arguments = std::iter::once("loadgen").chain(line.split(' '));
            let error = Flags::try_parse_from(arguments).err().expect(line).to_string();
            assert!(error.contains("error:"), "{line}: {error}");
        }
        for (line, word) in [("-t 0", "-t"), ("--skip", "-q"), ("--loadonly --search 9:9", "--loadonly")] {
            let arguments = std::iter::once("loadgen").chain(line.split(' '));
            let flags = Flags::try_parse_from(arguments).unwrap();
            assert!(flags.contradiction().unwrap().contains(word), "{line}");
        }
    }
}
