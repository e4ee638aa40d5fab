//! The command's flags: mutilate's under their names, and others.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgAction, Parser};
use clap_complete::Shell;
use loadgen::{
    AGENT_PORT, Address, Apart, Arrival, Config, Credentials, Distribution, Goal, Loop, Mix, Popularity,
    Protocol, TlsFiles, WarmUp, Workload,
};
use policies::{Cpus, Policy};
use runtime::{Builder, DriverKind, WaitStrategy};

use crate::values::{
    Format, Scan, parse_churn, parse_percent, parse_rate, parse_scan, parse_seconds, parse_share,
    parse_speed, parse_warm_up,
};

/// Load for memcached-protocol servers, with honest latencies
#[derive(Parser)]
#[command(
    name = "loadgen",
    version,
    disable_version_flag = true,
    // What comes later counts: the command line comes after a file.
    args_override_self = true,
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
    #[arg(short = 'i', long, default_value = "exponential", help_heading = "Load")]
    pub iadist: Arrival,
    /// Send at the times of a file instead: a line each, in seconds
    #[arg(long, value_name = "FILE", conflicts_with_all = ["qps", "search", "scan"], help_heading = "Load")]
    pub replay: Option<PathBuf>,
    /// Send the requests of --trace at its times
    #[arg(long, requires = "trace", conflicts_with_all = ["qps", "search", "scan", "replay"], help_heading = "Load")]
    pub as_recorded: bool,
    /// Replay so many times as fast
    #[arg(long, default_value_t = 1.0, value_parser = parse_speed, help_heading = "Load")]
    pub speed: f64,
    /// Closed loop: microseconds from an answer to the next request, a distribution
    #[arg(long, help_heading = "Load")]
    pub think: Option<Distribution>,
    /// Share of the connections that are closed and made anew each second
    #[arg(long, default_value_t = 0.0, value_parser = parse_churn, help_heading = "Load")]
    pub churn: f64,
    /// End before the time is over when rate, median and p99 are known within so much, for example 2%
    #[arg(long, value_name = "SHARE", value_parser = parse_percent, help_heading = "Load")]
    pub until_ci: Option<f64>,
    /// Search for the highest rate whose N-th percentile is below X µs; -t is the time of each step
    #[arg(long, value_name = "N:X", conflicts_with_all = ["qps", "scan", "hdr", "series", "save", "plot"], help_heading = "Load")]
    pub search: Option<Goal>,
    /// Measure at rates from MIN to MAX in steps, each for -t seconds
    #[arg(long, value_name = "MIN:MAX:STEP", value_parser = parse_scan, conflicts_with_all = ["qps", "hdr", "series", "save"], help_heading = "Load")]
    pub scan: Option<Scan>,
    /// Leave out requests of the open loop whose connection is busy
    #[arg(short = 'S', long, help_heading = "Load")]
    pub skip: bool,
    /// Measure two servers or more in turns, and print their ratios; -t is the time of each turn
    #[arg(long, value_name = "SERVER", num_args = 2.., conflicts_with_all = ["servers", "search", "scan", "hdr", "series", "save", "plot"], help_heading = "Load")]
    pub compare: Vec<Address>,
    /// Rounds of --compare
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(2..=100_000), requires = "compare", help_heading = "Load")]
    pub rounds: u32,
    /// Keep at least half of the mean gap between requests of the open loop, also after a delay
    #[arg(long, help_heading = "Load")]
    pub moderate: bool,
    /// The binary protocol
    #[arg(long, conflicts_with = "udp", help_heading = "Connections")]
    pub binary: bool,
    /// Gets in datagrams; what gets no answer within a second counts as unanswered
    #[arg(long, help_heading = "Connections")]
    pub udp: bool,
    /// Log in as this user: by SASL in the binary protocol, else as to memcached -Y
    #[arg(short = 'U', long, value_name = "NAME", help_heading = "Connections")]
    pub username: Option<String>,
    /// The user's password
    #[arg(short = 'P', long, requires = "username", help_heading = "Connections")]
    pub password: Option<String>,
    /// A file with the password in its first line: others can't see that on the command line
    #[arg(
        long,
        value_name = "FILE",
        requires = "username",
        conflicts_with = "password",
        help_heading = "Connections"
    )]
    pub password_file: Option<PathBuf>,
    /// TLS
    #[arg(long, help_heading = "Connections")]
    pub tls: bool,
    /// Who signs the servers' certificates, PEM
    #[arg(long, value_name = "FILE", requires = "tls", help_heading = "Connections")]
    pub cacert: Option<PathBuf>,
    /// The generator's own certificate, PEM
    #[arg(long, value_name = "FILE", requires_all = ["tls", "key"], help_heading = "Connections")]
    pub cert: Option<PathBuf>,
    /// Its key, PEM
    #[arg(long, value_name = "FILE", requires_all = ["tls", "cert"], help_heading = "Connections")]
    pub key: Option<PathBuf>,
    /// The servers' name in their certificate; unless given their address
    #[arg(long, value_name = "NAME", requires = "tls", help_heading = "Connections")]
    pub sni: Option<String>,
    /// Take any certificate
    #[arg(long, requires = "tls", conflicts_with = "cacert", help_heading = "Connections")]
    pub tls_skip_verify: bool,
    /// Have the kernel tell when requests went and answers came: what of a latency is the generator's own
    #[arg(long, help_heading = "Connections")]
    pub kernel_timestamps: bool,
    /// Small requests wait for those before them to be acknowledged (no TCP_NODELAY)
    #[arg(long = "no_nodelay", alias = "no-nodelay", help_heading = "Connections")]
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
    /// Operations by weight, for example get=90,set=9,delete=1; also add, replace, append, prepend, touch, cas, incr, decr, mg, ms
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
    /// Store what was asked for and not found, as caches are used
    #[arg(long, help_heading = "Workload")]
    pub fill: bool,
    /// Ask what a trace has: lines of TIME,KEY,KEY SIZE,VALUE SIZE,CLIENT,OPERATION,TTL, as Twitter's cache
    /// traces are; nothing is stored before
    #[arg(long, value_name = "FILE", conflicts_with_all = ["mix", "update", "loadonly"], help_heading = "Workload")]
    pub trace: Option<PathBuf>,
    /// Read flags of the load and the workload from a TOML file; the command line's go before
    #[arg(long, value_name = "FILE")]
    pub workload: Option<PathBuf>,
    /// Print the load and the workload as such a file, and stop
    #[arg(long)]
    pub dump_workload: bool,
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
    /// Write each request's time (seconds) and latency (µs), a line each
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub save: Option<PathBuf>,
    /// Draw rate and latency over time, or the curve of --scan, as SVG
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub plot: Option<PathBuf>,
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
    /// Be an agent: wait for a master, and load what it says
    #[arg(short = 'A', long = "agentmode", conflicts_with_all = ["agents", "search", "scan", "compare", "loadonly"], help_heading = "Agents")]
    pub agent_mode: bool,
    /// An agent that takes part: HOST or HOST:PORT; repeat for several
    #[arg(short = 'a', long = "agent", value_name = "HOST", help_heading = "Agents")]
    pub agents: Vec<String>,
    /// The agents' port
    #[arg(short = 'p', long = "agent_port", alias = "agent-port", default_value_t = AGENT_PORT, help_heading = "Agents")]
    pub agent_port: u16,
    /// The address that an agent listens on; others than the loopback's need a secret
    #[arg(long, default_value = "127.0.0.1", help_heading = "Agents")]
    pub listen: IpAddr,
    /// A file with what masters and agents both know, in its first line
    #[arg(long, value_name = "FILE", help_heading = "Agents")]
    pub secret_file: Option<PathBuf>,
    /// Share of the rate for each connection here, where others take 1
    #[arg(short = 'l', long = "lambda_mul", alias = "lambda-mul", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = "Agents")]
    pub lambda_mul: u32,
    /// Only the master measures: connections of each of its threads to each server
    #[arg(short = 'C', long = "measure_connections", alias = "measure-connections", value_parser = clap::value_parser!(u32).range(1..=65_000), requires = "agents", help_heading = "Agents")]
    pub measure_connections: Option<u32>,
    /// Only the master measures: its requests a second, beside those of the agents
    #[arg(short = 'Q', long = "measure_qps", alias = "measure-qps", value_parser = parse_rate, requires = "agents", help_heading = "Agents")]
    pub measure_qps: Option<f64>,
    /// Only the master measures: its depth
    #[arg(short = 'D', long = "measure_depth", alias = "measure-depth", value_parser = clap::value_parser!(u32).range(1..=65_536), requires = "agents", help_heading = "Agents")]
    pub measure_depth: Option<u32>,
    /// Print completions for a shell, and stop
    #[arg(long, value_name = "SHELL")]
    pub completions: Option<Shell>,
    /// Print the man page, and stop
    #[arg(long)]
    pub man: bool,
    /// Print version
    #[arg(long, action = ArgAction::Version)]
    pub version: Option<bool>,
}

impl Flags {
    /// # Errors
    /// Where a file that is named can't be read.
    pub fn config(&self) -> Result<Config, String> {
        let to_ask = if self.compare.is_empty() { &self.servers } else { &self.compare };
        // Of a comparison each has all records: it is asked alone.
        let servers = if self.compare.is_empty() { self.servers.len() as u64 } else { 1 };
        let (key, value, arrival) = if self.etc {
            (Distribution::EtcKey, Distribution::EtcValue, Arrival::etc())
        } else {
            (self.keysize, self.valuesize, self.iadist)
        };
        let credentials = self.username.clone().map(|user| {
            let password = match &self.password_file {
                Some(path) => first_line(path)?,
                None => self.password.clone().unwrap_or_default(),
            };
            Ok::<_, String>(Credentials { user, password })
        });
        // Where nothing is measured any time will do.
        let time = if self.loadonly { self.time.max(1.0) } else { self.time };
        let mut duration = Duration::from_secs_f64(time);
        if let Some(path) = &self.replay {
            let length = loadgen::recorded_length(path).map_err(|error| error.to_string())?;
            // A last one that is due at the very end would not count.
            duration = duration.min(length.div_f64(self.speed) + Duration::from_millis(1));
        }
        Ok(Config {
            servers: to_ask.clone(),
            protocol: match (self.binary, self.udp) {
                (true, _) => Protocol::Binary,
                (_, true) => Protocol::Udp,
                _ => Protocol::Text,
            },
            credentials: credentials.transpose()?,
            tls: self.tls.then(|| TlsFiles {
                authorities: self.cacert.clone(),
                certificate: self.cert.clone(),
                key: self.key.clone(),
                name: self.sni.clone(),
                unverified: self.tls_skip_verify,
            }),
            connections: self.connections as usize,
            round_robin: self.roundrobin,
            depth: self.depth as usize,
            pacing: match self.qps {
                _ if self.replay.is_some() || self.as_recorded => {
                    Loop::Recorded { times: self.replay.clone(), speed: self.speed }
                }
                // The gaps are what a search and a scan take from it.
                _ if self.search.is_some() || self.scan.is_some() => Loop::Open { rate: 1.0, arrival },
                0.0 => Loop::Closed,
                rate => Loop::Open { rate, arrival },
            },
            skip: self.skip,
            moderate: self.moderate,
            think: self.think,
            churn: self.churn,
            nodelay: !self.no_nodelay,
            kernel_timestamps: self.kernel_timestamps,
            workload: Workload {
                key,
                value,
                records: (self.records / servers.max(1)).max(1),
                popularity: self.popularity,
                mix: self.mix.clone().unwrap_or_else(|| Mix::updates(self.update)),
                multiget: self.multiget,
                ttl: Duration::from_secs(self.ttl),
                verify: self.verify,
                fill: self.fill,
                trace: self.trace.clone(),
            },
            spins: matches!(self.wait, Some(WaitStrategy::Spin | WaitStrategy::SpinThenBlock(_))),
            warm_up: self.warmup,
            duration,
            until_sure: self.until_ci,
            seed: self.seed,
            samples: self.save.clone(),
            apart: Apart {
                connections: self.measure_connections.map(|connections| connections as usize),
                depth: self.measure_depth.map(|depth| depth as usize),
                rate: self.measure_qps,
            },
        })
    }

    /// What masters and agents both know.
    ///
    /// # Errors
    /// Where its file can't be read, or is empty.
    pub fn secret(&self) -> Result<Option<String>, String> {
        self.secret_file.as_deref().map(first_line).transpose()
    }

    /// What is asked for that can't be had.
    pub fn contradiction(&self) -> Option<&'static str> {
        if self.loadonly && (self.search.is_some() || self.scan.is_some() || !self.compare.is_empty()) {
            return Some("--loadonly measures nothing: leave it, or --search, --scan and --compare, out");
        }
        if self.time <= 0.0 && !self.loadonly {
            return Some("there is nothing to measure in 0 seconds; give -t");
        }
        let open = self.qps > 0.0 || self.search.is_some() || self.scan.is_some();
        let open = open || self.replay.is_some() || self.as_recorded || self.measure_qps.is_some();
        if (self.skip || self.moderate) && !open {
            return Some("--skip and --moderate are for the open loop; give -q");
        }
        if self.tls && self.cacert.is_none() && !self.tls_skip_verify {
            return Some("--tls needs --cacert FILE to know the server by, or --tls-skip-verify to take any");
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

fn first_line(path: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    match text.lines().next().map(str::trim) {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => Err(format!("{}: its first line is empty", path.display())),
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
                    -T 4 --affinity -c 8 -d 2 -R -i fb_ia -S --moderate --noload -B --no_nodelay -w 2 -W 0 \
                    -a 127.0.0.1 -a 127.0.0.1:7 -p 5557 -l 2 -C 1 -Q 1000 -D 1 --binary -U me -P it --save /tmp/x";
        let flags = Flags::try_parse_from(line.split_whitespace()).unwrap();
        assert!(flags.contradiction().is_none() && flags.affinity && flags.noload && flags.blocking);
        let config = flags.config().unwrap();
        assert_eq!(config.servers[0].to_string(), "127.0.0.1:11211");
        assert_eq!((config.connections, config.depth, config.workload.records), (8, 2, 500));
        assert_eq!(config.pacing, Loop::Open { rate: 5000.0, arrival: Arrival::etc() });
        assert_eq!(config.warm_up, WarmUp::Fixed(Duration::from_secs(2)));
        assert_eq!((flags.agents.len(), flags.agent_port, flags.lambda_mul), (2, 5557, 2));
        assert_eq!(config.apart, Apart { connections: Some(1), depth: Some(1), rate: Some(1000.0) });
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
            "--as-recorded",
            "--churn -1",
            "--speed 0",
            "--compare 127.0.0.1:1",
            "-P secret",
            "--cacert x",
            "--binary --udp",
            "-A -a host",
            "-C 4",
        ] {
            let arguments = std::iter::once("loadgen").chain(line.split(' '));
            let error = Flags::try_parse_from(arguments).err().expect(line).to_string();
            assert!(error.contains("error:"), "{line}: {error}");
        }
        for (line, word) in [
            ("-t 0", "-t"),
            ("--skip", "-q"),
            ("--loadonly --search 9:9", "--loadonly"),
            ("--tls", "--cacert"),
        ] {
            let arguments = std::iter::once("loadgen").chain(line.split(' '));
            let flags = Flags::try_parse_from(arguments).unwrap();
            assert!(flags.contradiction().unwrap().contains(word), "{line}");
        }
    }
}
