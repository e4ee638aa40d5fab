//! The configuration of a run.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::transport::address::Address;
use crate::workload::arrival::Arrival;
use crate::workload::definition::Workload;
use crate::workload::distribution::Distribution;
use crate::workload::operation::Operation;

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
        *self == Self::Closed
    }
}

/// Which connection a request of the open loop is assigned to. It waits there while the connection
/// is busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Assign {
    /// The next one in turn, also if it is busy: the load of every connection is the same.
    #[default]
    RoundRobin,
    /// A random one of those that are free, or of all if none is: clients with a pool of
    /// connections.
    RandomFree,
    /// Each connection has gaps of its own, as in mutilate: independent clients.
    PerConnection,
}

impl fmt::Display for Assign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RoundRobin => "round-robin",
            Self::RandomFree => "random-free",
            Self::PerConnection => "per-connection",
        })
    }
}

impl FromStr for Assign {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [Self::RoundRobin, Self::RandomFree, Self::PerConnection];
        let found = all.into_iter().find(|assign| assign.to_string() == text);
        found.ok_or_else(|| "expected round-robin, random-free or per-connection".to_owned())
    }
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

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TlsFiles {
    /// CA certificates of the servers, PEM. Required unless verification is skipped.
    pub ca_certificates: Option<PathBuf>,
    /// Client certificate, PEM.
    pub certificate: Option<PathBuf>,
    /// Private key of the client certificate, PEM.
    pub key: Option<PathBuf>,
    /// The name in the server's certificate; by default its address.
    pub server_name: Option<String>,
    pub skip_verification: bool,
}

/// Overrides for the coordinator when agents generate the load. If any is set, latencies are
/// measured by the coordinator only.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct MeasurementOverrides {
    pub connections: Option<usize>,
    pub depth: Option<usize>,
    /// Requests per second, in addition to those of the agents; 0 selects the closed loop.
    pub rate: Option<f64>,
}

impl MeasurementOverrides {
    pub fn is_any(&self) -> bool {
        *self != Self::default()
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// The servers. Each holds all records.
    pub servers: Vec<Address>,
    pub protocol: Protocol,
    pub credentials: Option<Credentials>,
    pub tls: Option<TlsFiles>,
    pub connections: usize,
    /// Whether each worker connects to only one server, assigned round-robin.
    pub round_robin: bool,
    pub depth: usize,
    pub pacing: Loop,
    /// Open loop: which connection a request is assigned to.
    pub assign: Assign,
    /// Open loop: skip a request whose connection is busy. Latencies then exclude the skipped
    /// requests.
    pub skip: bool,
    /// Open loop: keep at least half of the mean gap between requests, also when catching up after
    /// a delay. The time that this adds counts as latency, not as send lag.
    pub moderate: bool,
    /// Closed loop: think time between a response and the next request, in microseconds.
    pub think: Option<Distribution>,
    /// Share of the connections that reconnect each second, 0 to 1000.
    pub churn: f64,
    /// Whether to set `TCP_NODELAY`.
    pub nodelay: bool,
    pub workload: Workload,
    /// Whether the runtime's workers spin while waiting. Their CPU time then doesn't show whether
    /// the generator is the bottleneck.
    pub workers_spin: bool,
    pub warm_up: WarmUp,
    /// Duration of the measurement, at most a day.
    pub duration: Duration,
    /// Stop early when the 95 % confidence intervals of rate, median and 99th percentile are within
    /// this share of the estimate (0.02: 2 % to both sides).
    pub target_precision: Option<f64>,
    pub seed: u64,
    /// Output file with one line per request: its time in seconds and its latency in µs. Agents
    /// don't write one.
    #[serde(skip)]
    pub sample_file: Option<PathBuf>,
    /// What the coordinator does differently from the agents.
    pub measurement_overrides: MeasurementOverrides,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            servers: vec![Address::Tcp(([127, 0, 0, 1], 11211).into())],
            protocol: Protocol::Text,
            credentials: None,
            tls: None,
            connections: 1,
            round_robin: false,
            depth: 1,
            pacing: Loop::Closed,
            assign: Assign::RoundRobin,
            skip: false,
            moderate: false,
            think: None,
            churn: 0.0,
            nodelay: true,
            workload: Workload::default(),
            workers_spin: false,
            warm_up: WarmUp::Fixed(Duration::from_secs(1)),
            duration: Duration::from_secs(5),
            target_precision: None,
            seed: 1,
            sample_file: None,
            measurement_overrides: MeasurementOverrides::default(),
        }
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

    pub(crate) fn warm_up(&self) -> Duration {
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
        let positive = |number: f64| number.is_finite() && number > 0.0;
        if self.servers.is_empty() || self.connections == 0 {
            return reject("at least one server and one connection are required");
        }
        let rate = match self.pacing {
            Loop::Closed => 1.0,
            Loop::Open { rate, .. } => rate,
        };
        if !positive(rate) || rate < 1e-6 {
            return reject("the rate must be a finite number of at least 0.000001");
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
        if self.think.is_some_and(|think| !think.is_valid()) {
            return reject("think time is not a valid duration");
        }
        if !cfg!(feature = "tls") && self.tls.is_some() {
            return reject("TLS is not available: loadgen was built without the `tls` feature");
        }
        let unix = self.servers.iter().any(|server| matches!(server, Address::Unix(_)));
        let mix = &self.workload.mix;
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
