//! The flags of the command, besides those of [`Config`]. Those that mutilate has, too, have its
//! names.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::{ArgAction, Parser, ValueEnum};
use loadgen::{
    AGENT_PORT, Arrival, Assign, Config, Credentials, Distribution, Goal, Loop, Mix, Protocol, TlsFiles,
};
use policies::{Cpus, Policy};
use runtime::{Builder, DriverKind, WaitStrategy};

/// Generate load for servers that speak memcached's protocols or redis', and measure latencies
/// without coordinated omission
#[derive(Parser)]
#[command(
    name = "loadgen",
    version,
    disable_version_flag = true,
    // The last occurrence wins, so that flags after those of a script override them.
    args_override_self = true,
    after_help = "Exit codes: 0 success; 1 the run failed; 2 invalid flags; 3 the figures are invalid, for the printed reason; 4 error responses, wrong values or missing responses; 5 no rate reaches the goal of --search"
)]
pub struct Flags {
    #[command(flatten)]
    pub config: Config,
    /// Open loop at this many requests per second in total; 0 selects the closed loop
    #[arg(short = 'q', long, default_value_t = 0.0, help_heading = "Load")]
    pub qps: f64,
    /// Seconds to wait before anything else
    #[arg(short = 'W', long = "wait-before", alias = "wait_before", default_value = "0", value_parser = parse_wait, help_heading = "Load")]
    pub wait_before: Duration,
    /// Number of threads
    #[arg(short = 'T', long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024), help_heading = "Load")]
    pub threads: u16,
    /// Gaps between requests of the open loop, scaled to the rate: exponential, uniform, fixed,
    /// fb_ia, or as --keysize
    #[arg(short = 'i', long, default_value = "exponential", help_heading = "Load")]
    pub iadist: Arrival,
    /// Search for the highest rate whose N-th latency percentile is below X µs; -t is the duration
    /// of each step
    #[arg(long, value_name = "N:X", conflicts_with_all = ["qps", "scan", "save"], help_heading = "Load")]
    pub search: Option<Goal>,
    /// Measure at each rate from MIN to MAX in steps of STEP, for -t seconds each
    #[arg(long, value_name = "MIN:MAX:STEP", conflicts_with_all = ["qps", "save"], help_heading = "Load")]
    pub scan: Option<Scan>,
    /// Use RESP, the protocol of redis and valkey: get and set
    #[arg(long, conflicts_with_all = ["udp", "binary"], help_heading = "Connections")]
    pub resp: bool,
    /// Use the binary protocol
    #[arg(long, conflicts_with = "udp", help_heading = "Connections")]
    pub binary: bool,
    /// Send get requests over UDP; a request without a response within a second counts as
    /// unanswered
    #[arg(long, help_heading = "Connections")]
    pub udp: bool,
    /// User name, for SASL in the binary protocol and for memcached -Y in the text protocol
    #[arg(short = 'U', long, value_name = "NAME", help_heading = "Connections")]
    pub username: Option<String>,
    /// Password of the user
    #[arg(short = 'P', long, requires = "username", help_heading = "Connections")]
    pub password: Option<String>,
    /// File whose first line is the password. Unlike --password it is not visible to other users
    #[arg(
        long,
        value_name = "FILE",
        requires = "username",
        conflicts_with = "password",
        help_heading = "Connections"
    )]
    pub password_file: Option<PathBuf>,
    /// Use TLS
    #[arg(long, help_heading = "Connections")]
    pub tls: bool,
    #[command(flatten)]
    pub tls_files: TlsFiles,
    /// Share of set requests, 0 to 1; the others are get
    #[arg(short = 'u', long, value_parser = parse_update, conflicts_with = "mix", help_heading = "Workload")]
    pub update: Option<Mix>,
    /// Workload of Facebook's ETC pool: fb_key, fb_value and, with -q, fb_ia
    #[arg(long, help_heading = "Workload")]
    pub etc: bool,
    /// Don't store the records before the run
    #[arg(long, help_heading = "Workload")]
    pub noload: bool,
    /// Store the records and exit
    #[arg(long, conflicts_with_all = ["noload", "search", "scan"], help_heading = "Workload")]
    pub loadonly: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: Format,
    /// Don't show a progress bar
    #[arg(long, help_heading = "Output")]
    pub quiet: bool,
    #[arg(
        long,
        help_heading = "Generator",
        help = format!("Policy for the generator's own interrupts and polling: {}", Policy::names())
    )]
    pub policy: Option<Policy>,
    /// Network interface towards the server, for --policy
    #[arg(long, value_name = "NAME", help_heading = "Generator")]
    pub interface: Option<String>,
    /// I/O driver of the generator: auto, epoll or uring
    #[arg(long, help_heading = "Generator")]
    pub driver: Option<DriverKind>,
    /// How the generator's threads wait: block, spin or adaptive
    #[arg(long, help_heading = "Generator")]
    pub wait: Option<WaitStrategy>,
    /// Accepted for compatibility, without effect: threads block unless --wait says otherwise
    #[arg(short = 'B', long, help_heading = "Generator")]
    pub blocking: bool,
    /// Pin the threads to these CPUs
    #[arg(long, help_heading = "Generator")]
    pub cores: Option<Cpus>,
    /// Pin the threads round-robin to all available CPUs
    #[arg(long, conflicts_with = "cores", help_heading = "Generator")]
    pub affinity: bool,
    /// Run as an agent, which generates load on behalf of a coordinator (mutilate's master)
    #[arg(short = 'A', long = "agentmode", conflicts_with_all = ["agents", "search", "scan", "loadonly"], help_heading = "Agents")]
    pub agent_mode: bool,
    /// Agent to use: HOST or HOST:PORT. Repeat it for several agents
    #[arg(short = 'a', long = "agent", value_name = "HOST", help_heading = "Agents")]
    pub agents: Vec<String>,
    /// Port of the agents
    #[arg(short = 'p', long = "agent_port", alias = "agent-port", default_value_t = AGENT_PORT, help_heading = "Agents")]
    pub agent_port: u16,
    /// Address on which an agent listens. Other addresses than the loopback address need
    /// --identity
    #[arg(long, default_value = "127.0.0.1", help_heading = "Agents")]
    pub listen: IpAddr,
    /// Encrypt, and accept only agents or a coordinator with a copy of this file, which
    /// --new-identity has made
    #[arg(long, value_name = "FILE", help_heading = "Agents")]
    pub identity: Option<PathBuf>,
    /// Make a new file for --identity, which only its owner can read, and exit
    #[arg(long, value_name = "FILE", help_heading = "Agents")]
    pub new_identity: Option<PathBuf>,
    /// Weight of this process's connections when the rate is divided; the default of all processes
    /// is 1
    #[arg(short = 'l', long = "lambda_mul", alias = "lambda-mul", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = "Agents")]
    pub lambda_mul: u32,
    /// Print the version
    #[arg(long, action = ArgAction::Version)]
    pub version: Option<bool>,
}

/// Output formats.
#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    #[default]
    Table,
    Json,
}

/// The rates of `--scan`, in requests per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scan {
    min: f64,
    max: f64,
    step: f64,
}

impl Scan {
    /// From `min` to `max`.
    pub fn rates(self) -> impl Iterator<Item = f64> {
        // The tolerance keeps rounding errors from dropping the last rate.
        let steps = ((self.max - self.min) / self.step + 1e-9) as u64;
        (0..=steps).map(move |step| self.min + self.step * step as f64)
    }
}

impl FromStr for Scan {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let numbers: Option<Vec<f64>> = text.split(':').map(|number| number.parse().ok()).collect();
        match numbers.as_deref() {
            Some(&[min, max, step])
                if min > 0.0 && step > 0.0 && min <= max && max <= 1e9 && (max - min) / step <= 1000.0 =>
            {
                Ok(Self { min, max, step })
            }
            _ => Err("write MIN:MAX:STEP in requests per second, with at most 1000 steps"),
        }
    }
}

fn parse_update(text: &str) -> Result<Mix, &'static str> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.map(Mix::updates).ok_or("write a number from 0 to 1")
}

fn parse_wait(text: &str) -> Result<Duration, &'static str> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or("write a number of seconds")
}

impl Flags {
    /// The configuration of a run. Reads the files that it needs.
    pub fn config(&self) -> Result<Config, String> {
        let mut config = self.config.clone();
        config.protocol = match (self.binary, self.udp) {
            _ if self.resp => Protocol::Resp,
            (true, _) => Protocol::Binary,
            (_, true) => Protocol::Udp,
            _ => Protocol::Text,
        };
        if let Some(user) = self.username.clone() {
            let password = match &self.password_file {
                Some(path) => first_line(path)?,
                None => self.password.clone().unwrap_or_default(),
            };
            config.credentials = Some(Credentials { user, password });
        }
        config.tls = self.tls.then(|| self.tls_files.clone());
        let workload = &mut config.workload;
        if self.etc {
            (workload.key, workload.value) = (Distribution::EtcKey, Distribution::EtcValue);
        }
        if let Some(mix) = &self.update {
            workload.mix = mix.clone();
        }
        workload.records = (workload.records / config.servers.len() as u64).max(1);
        let arrival = if self.etc { Arrival::etc() } else { self.iadist };
        config.pacing = match self.qps {
            // Search and scan use only the gaps, and set the rate themselves.
            _ if self.search.is_some() || self.scan.is_some() => Loop::Open { rate: 1.0, arrival },
            0.0 => Loop::Closed,
            rate => Loop::Open { rate, arrival },
        };
        config.workers_spin = matches!(self.wait, Some(WaitStrategy::Spin | WaitStrategy::Adaptive));
        if self.loadonly {
            // It doesn't matter, but must be valid.
            config.duration = Duration::from_secs(1);
        }
        Ok(config)
    }

    /// Why the flags can't be combined, if neither clap nor [`Config::validate`] says so.
    pub fn conflict(&self) -> Option<&'static str> {
        let open = self.qps != 0.0
            || self.search.is_some()
            || self.scan.is_some()
            || self.config.measurement_overrides.rate.is_some();
        let Config { skip, moderate, assign, measurement_overrides, .. } = self.config;
        if measurement_overrides.is_any() && self.agents.is_empty() {
            return Some("-C, -D and -Q need agents; use -a");
        }
        let for_open_loop = skip || moderate || assign != Assign::default();
        (for_open_loop && !open && !self.agent_mode)
            .then_some("--skip, --moderate and --assign apply to the open loop only; use -q")
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

fn first_line(path: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    match text.lines().next().map(str::trim) {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => Err(format!("{}: the first line is empty", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use loadgen::{MeasurementOverrides, WarmUp};

    use super::*;

    #[test]
    fn no_option_is_defined_twice() {
        Flags::command().debug_assert();
    }

    #[test]
    fn a_scan_includes_both_ends() {
        let rates = |text: &str| text.parse::<Scan>().unwrap().rates().collect::<Vec<_>>();
        assert_eq!(rates("1000:3000:1000"), [1000.0, 2000.0, 3000.0]);
        assert_eq!(rates("0.1:0.3:0.1").len(), 3);
        assert_eq!(rates("5:5:1"), [5.0]);
    }

    #[test]
    fn a_command_line_of_mutilate_keeps_its_meaning() {
        let line = "loadgen -s 127.0.0.1 -s 127.0.0.2:7 -q 5000 -t 10 -K fb_key -V fb_value -r 1000 -u 0.1 \
                    -T 4 --affinity -c 8 -d 2 -R -i fb_ia -S --moderate --noload -B --no_nodelay -w 2 -W 0 \
                    -a 127.0.0.1 -a 127.0.0.1:7 -p 5557 -l 2 -C 1 -Q 1000 -D 1 --binary -U me -P it --save /tmp/x";
        let flags = Flags::try_parse_from(line.split_whitespace()).unwrap();
        assert!(flags.conflict().is_none() && flags.affinity && flags.noload && flags.blocking);
        let config = flags.config().unwrap();
        assert_eq!(config.servers[0].to_string(), "127.0.0.1:11211");
        assert_eq!((config.connections, config.depth, config.workload.records), (8, 2, 500));
        assert_eq!(config.pacing, Loop::Open { rate: 5000.0, arrival: Arrival::etc() });
        assert_eq!(config.warm_up, WarmUp::Fixed(Duration::from_secs(2)));
        assert_eq!((flags.agents.len(), flags.agent_port, flags.lambda_mul), (2, 5557, 2));
        assert_eq!(
            config.measurement_overrides,
            MeasurementOverrides { connections: Some(1), depth: Some(1), rate: Some(1000.0) }
        );
        assert_eq!(
            (config.protocol, config.credentials.unwrap().password),
            (Protocol::Binary, "it".to_owned())
        );
        assert!(config.round_robin && config.skip && config.moderate && !config.nodelay);
        assert_eq!(config.workload.mix, Mix::updates(0.1));
        assert_eq!(
            (config.workload.key, config.workload.value),
            (Distribution::EtcKey, Distribution::EtcValue)
        );
        let plain = Flags::try_parse_from(["loadgen"]).unwrap().config().unwrap();
        assert_eq!((plain.connections, plain.depth, plain.pacing), (1, 1, Loop::Closed));
    }

    #[test]
    fn invalid_flags_are_rejected_with_a_reason() {
        for line in [
            "-q -1",
            "-w soon",
            "-u 2",
            "-s nobody:x",
            "--mix get=1 -u 0.5",
            "--noload --loadonly",
            "--loadonly --search 9:9",
            "--loadonly --scan 1:2:1",
            "-c 0",
            "--multiget 0",
            "--scan 5:1:1",
            "--scan 1:5",
            "--scan 1:5:0",
            "--search 99:5 -q 5",
            "--churn -1",
            "-P secret",
            "--cacert x",
            "--binary --udp",
            "-A -a host",
        ] {
            let arguments = std::iter::once("loadgen").chain(line.split(' '));
            let error = Flags::try_parse_from(arguments).err().expect(line).to_string();
            assert!(error.contains("error:"), "{line}: {error}");
        }
        for (line, word) in [
            ("-t 0", "duration"),
            ("-q 1e-20", "rate"),
            ("--until-ci 0", "precision"),
            ("--churn 2000", "churn"),
            ("--skip", "-q"),
            ("-C 4", "-a"),
            ("--tls", "--cacert"),
        ] {
            let arguments = std::iter::once("loadgen").chain(line.split(' '));
            let flags = Flags::try_parse_from(arguments).unwrap();
            let invalid = || flags.config().unwrap().validate().unwrap_err().to_string();
            assert!(flags.conflict().map_or_else(invalid, str::to_owned).contains(word), "{line}");
        }
    }
}
