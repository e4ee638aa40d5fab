//! The configuration of a run.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Parser as _;
use serde::{Deserialize, Serialize};

use crate::address::Address;
use crate::error::Error;
use crate::invalid_value::InvalidValue;
use crate::workload::Workload;
use crate::workload::arrival::Arrival;
use crate::workload::distribution::Distribution;
use crate::workload::mix::Operation;

/// When a request is sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Loop {
    /// When the response to the previous one has arrived.
    Closed,
    /// When it is due, whatever the server does.
    Open {
        /// Requests per second, over all connections.
        rate: f64,
        /// The distribution of the gaps between requests.
        arrival: Arrival,
    },
}

impl Loop {
    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Closed)
    }
}

/// Which connection a request of the open loop is assigned to. It waits while that is busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[non_exhaustive]
pub enum Assign {
    /// The next one in turn, also if it is busy: the load of every connection is the same.
    #[default]
    RoundRobin,
    /// A random one of those that are free, or the first one that becomes free: clients with a pool
    /// of connections.
    RandomFree,
    /// Gaps drawn for each connection, as in mutilate: independent clients.
    PerConnection,
}

/// What is excluded at the beginning of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum WarmUp {
    /// Load for this long before the measurement.
    Fixed(Duration),
    /// The part of the measurement before throughput or latency is steady, up to half of it.
    UntilSteady,
}

impl FromStr for WarmUp {
    type Err = InvalidValue;

    /// Parses seconds or `auto`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::UntilSteady),
            _ => seconds(text).map(Self::Fixed).map_err(|error| InvalidValue(format!("{error}, or auto"))),
        }
    }
}

fn seconds(text: &str) -> Result<Duration, InvalidValue> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let expected = || InvalidValue::new(text, "a number of seconds from 0 to 86400");
    seconds.filter(|time| *time <= LONGEST).ok_or_else(expected)
}

/// A share, from a number of percent.
fn percent(text: &str) -> Result<f64, std::num::ParseFloatError> {
    text.strip_suffix('%').unwrap_or(text).parse::<f64>().map(|percent| percent / 100.0)
}

fn count(range: std::ops::RangeInclusive<u64>) -> clap::builder::RangedU64ValueParser<usize> {
    clap::builder::RangedU64ValueParser::new().range(range)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Protocol {
    /// memcached's text protocol, with its meta commands.
    #[default]
    Text,
    /// memcached's binary protocol.
    Binary,
    /// The text protocol over UDP, for `get` only. Records are stored over TCP.
    Udp,
    /// RESP, the protocol of redis and valkey: `GET` and `SET`.
    Resp,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    pub user: String,
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, clap::Args)]
#[command(next_help_heading = "Connections")]
pub struct TlsFiles {
    /// CA certificates of the servers, PEM. Required unless verification is skipped
    #[arg(long = "cacert", value_name = "FILE", requires = "tls")]
    pub ca_certificates: Option<PathBuf>,
    /// Client certificate, PEM
    #[arg(long = "cert", value_name = "FILE", requires_all = ["tls", "key"])]
    pub certificate: Option<PathBuf>,
    /// Private key of the client certificate, PEM
    #[arg(id = "key", long, value_name = "FILE", requires_all = ["tls", "certificate"])]
    pub key: Option<PathBuf>,
    /// Server name expected in the certificate [default: the server's address]
    #[arg(long = "sni", value_name = "NAME", requires = "tls")]
    pub server_name: Option<String>,
    /// Accept any server certificate
    #[arg(long = "tls-skip-verify", requires = "tls", conflicts_with = "ca_certificates")]
    pub skip_verification: bool,
}

/// Overrides for the coordinator when agents generate the load. If any is set, latencies are
/// measured by the coordinator only.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, clap::Args)]
#[command(next_help_heading = "Agents")]
pub struct MeasurementOverrides {
    /// Measure only on the coordinator, with this many connections per thread and server
    #[arg(id = "measure_connections", short = 'C', long = "measure_connections", alias = "measure-connections", value_parser = count(1..=65_000))]
    pub connections: Option<usize>,
    /// Measure only on the coordinator, with this many requests in flight per connection
    #[arg(id = "measure_depth", short = 'D', long = "measure_depth", alias = "measure-depth", value_parser = count(1..=65_536))]
    pub depth: Option<usize>,
    /// Measure only on the coordinator, with this many requests per second in addition to the
    /// agents'; 0 selects the closed loop
    #[arg(id = "measure_qps", short = 'Q', long = "measure_qps", alias = "measure-qps")]
    pub rate: Option<f64>,
}

impl MeasurementOverrides {
    pub fn is_any(&self) -> bool {
        *self != Self::default()
    }
}

/// What is run, against which servers. Its flags are those of the `loadgen` command; what several
/// flags choose together is set by the command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, clap::Args)]
#[command(next_help_heading = "Load")]
pub struct Config {
    /// Server: HOST, HOST:PORT, or the path of a Unix socket. Repeat it to divide the records among
    /// several servers
    #[arg(short, long = "server", default_value = "127.0.0.1:11211")]
    pub servers: Vec<Address>,
    #[arg(skip)]
    pub protocol: Protocol,
    #[arg(skip)]
    pub credentials: Option<Credentials>,
    #[arg(skip)]
    pub tls: Option<TlsFiles>,
    /// Connections per thread and server
    #[arg(short, long, default_value = "1", value_parser = count(1..=65_000))]
    pub connections: usize,
    /// Connect each thread to only one server, assigned round-robin
    #[arg(short = 'R', long = "roundrobin")]
    pub round_robin: bool,
    /// Requests in flight per connection
    #[arg(short, long, default_value = "1", value_parser = count(1..=65_536))]
    pub depth: usize,
    #[arg(skip = Loop::Closed)]
    pub pacing: Loop,
    /// Connection of a request of the open loop: round-robin, the next one in turn, busy or not;
    /// random-free, a random free one, or the first that becomes free; per-connection, gaps drawn
    /// for each connection, as in mutilate
    #[arg(long, value_enum, default_value_t, hide_possible_values = true)]
    pub assign: Assign,
    /// Skip requests of the open loop whose connection is busy. Latencies then exclude them
    #[arg(short = 'S', long)]
    pub skip: bool,
    /// Keep at least half of the mean gap between requests of the open loop, also when catching up
    /// after a delay. The time that this adds counts as latency, not as send lag
    #[arg(long)]
    pub moderate: bool,
    /// Closed loop: distribution of the think time between a response and the next request, in
    /// microseconds; as --keysize
    #[arg(long)]
    pub think: Option<Distribution>,
    /// Share of the connections that reconnect each second, 0 to 1000
    #[arg(long, default_value_t = 0.0)]
    pub churn: f64,
    /// Don't set TCP_NODELAY: small requests wait until earlier ones are acknowledged
    #[arg(long = "no_nodelay", alias = "no-nodelay", action = clap::ArgAction::SetFalse, help_heading = "Connections")]
    pub nodelay: bool,
    /// Whether the runtime's workers spin while waiting. Their CPU time then doesn't show whether
    /// the generator is the bottleneck.
    #[arg(skip)]
    pub workers_spin: bool,
    /// Seconds of load before the measurement; auto measures at once and excludes what is not
    /// steady yet
    #[arg(short, long = "warmup", value_name = "SECONDS", default_value = "auto")]
    pub warm_up: WarmUp,
    /// Duration of the measurement, in seconds, at most a day
    #[arg(short = 't', long = "time", value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    pub duration: Duration,
    /// Stop early when the 95 % confidence intervals of rate, median and p99 are within this share
    /// of the figure to both sides, for example 2%
    #[arg(long = "until-ci", value_name = "SHARE", value_parser = percent)]
    pub target_precision: Option<f64>,
    /// What is requested.
    #[command(flatten)]
    pub workload: Workload,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1, help_heading = "Workload")]
    pub seed: u64,
    /// Write one line per request: its time in seconds and its latency in µs. Agents don't write
    /// one
    #[arg(id = "save", long, value_name = "FILE", help_heading = "Output")]
    #[serde(skip)]
    pub sample_file: Option<PathBuf>,
    /// What the coordinator does differently from the agents.
    #[command(flatten)]
    pub measurement_overrides: MeasurementOverrides,
}

impl Default for Config {
    /// The settings of a command without flags, and a warm-up of one second.
    fn default() -> Self {
        #[derive(clap::Parser)]
        struct NoFlags {
            #[command(flatten)]
            config: Config,
        }
        let NoFlags { config } = NoFlags::parse_from([""]);
        Self { warm_up: WarmUp::Fixed(Duration::from_secs(1)), ..config }
    }
}

const LONGEST: Duration = Duration::from_secs(86_400);

impl Config {
    pub(crate) fn servers_of(&self, worker: usize) -> &[Address] {
        if self.round_robin && !self.servers.is_empty() {
            std::slice::from_ref(&self.servers[worker % self.servers.len()])
        } else {
            &self.servers
        }
    }

    pub(crate) fn total_connections(&self, workers: usize) -> usize {
        (0..workers).map(|worker| self.servers_of(worker).len() * self.connections).sum()
    }

    /// The time before the measurement; 0 if it is a part of the measurement.
    pub fn warm_up(&self) -> Duration {
        match self.warm_up {
            WarmUp::Fixed(time) => time,
            WarmUp::UntilSteady => Duration::ZERO,
        }
    }

    /// Rejects configurations that can't be run. Every run checks its configuration, which may come
    /// from the network.
    ///
    /// # Errors
    /// Returns [`Error::Config`] with the reason.
    pub fn validate(&self) -> Result<(), Error> {
        let reject = |reason: &str| Err(Error::Config(reason.to_owned()));
        if self.servers.is_empty() || self.connections == 0 {
            return reject("at least one server and one connection are required");
        }
        let rate = match self.pacing {
            Loop::Closed => 1.0,
            Loop::Open { rate, .. } => rate,
        };
        if !(1e-6..=1e9).contains(&rate) {
            return reject("the rate must be a number from 0.000001 to 1000000000");
        }
        if self.target_precision.is_some_and(|share| !(1e-4..=10.0).contains(&share)) {
            return reject("the precision must be a share from 0.0001 to 10 (0.01 % to 1000 %)");
        }
        if self.duration.is_zero() || self.duration > LONGEST || self.warm_up() > LONGEST {
            return reject("the duration is zero, or duration or warm-up exceed a day");
        }
        if self.churn != 0.0 && !(1e-6..=1000.0).contains(&self.churn) {
            return reject("churn is neither 0 nor between 0.000001 and 1000");
        }
        if self.workload.records == 0 || self.workload.ttl > Duration::from_secs(u32::MAX.into()) {
            return reject("there are no records, or their TTL exceeds 136 years");
        }
        let Workload { key, value, popularity, mix, .. } = &self.workload;
        let arrival_is_valid = match &self.pacing {
            Loop::Open { arrival, .. } => arrival.is_valid(),
            Loop::Closed => true,
        };
        if !arrival_is_valid
            || ![Some(key), Some(value), self.think.as_ref()]
                .into_iter()
                .flatten()
                .all(Distribution::is_valid)
            || !popularity.is_valid()
            || !mix.is_valid()
        {
            return reject(
                "a distribution, the popularity or the mix has a parameter that is out of its range",
            );
        }
        if self.tls.as_ref().is_some_and(|files| files.ca_certificates.is_none() && !files.skip_verification)
        {
            return reject(
                "TLS needs the CA certificate of the server (--cacert), or verification turned off (--tls-skip-verify)",
            );
        }
        let unix = self.servers.iter().any(|server| matches!(server, Address::Unix(_)));
        match self.protocol {
            Protocol::Binary if mix.contains(Operation::MetaGet) || mix.contains(Operation::MetaSet) => {
                reject("mg and ms are not available in the binary protocol")
            }
            Protocol::Resp if mix.share(Operation::Get) + mix.share(Operation::Set) < 1.0 - 1e-9 => {
                reject("RESP supports only get and set")
            }
            Protocol::Resp
                if self.workload.multiget > 1 || self.workload.verify || self.credentials.is_some() =>
            {
                reject("RESP can't be combined with multiget, verify or authentication")
            }
            Protocol::Udp if unix || self.tls.is_some() || self.credentials.is_some() || self.churn > 0.0 => {
                reject("UDP can't be combined with Unix sockets, TLS, authentication or churn")
            }
            Protocol::Udp if mix.share(Operation::Get) < 1.0 || self.workload.fill => {
                reject("UDP supports only get, because datagrams can be lost")
            }
            _ if self.workload.fill && self.workload.multiget > 1 => {
                reject("fill can't be combined with multiget, because responses don't name the missing keys")
            }
            _ if self.workload.verify
                && (mix.contains(Operation::Append) || mix.contains(Operation::Prepend)) =>
            {
                reject("verify can't be combined with append and prepend, which change values")
            }
            _ if self.assign == Assign::PerConnection && !matches!(self.pacing, Loop::Open { .. }) => {
                reject("gaps per connection need an open loop with a rate")
            }
            _ if self.think.is_some() && !self.pacing.is_closed() => {
                reject("think time applies to the closed loop only")
            }
            _ => Ok(()),
        }
    }
}
