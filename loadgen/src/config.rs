//! What a run is.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::address::Address;
use crate::distribution::Distribution;
use crate::error::Error;
use crate::workload::{Arrival, Operation, Workload};

/// When the next request goes out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Loop {
    /// When an answer has come.
    Closed,
    /// At its time, so many a second over all connections.
    Open {
        /// Requests a second.
        rate: f64,
        /// The gaps between them.
        arrival: Arrival,
    },
    /// At the times that a file has, a line each, in seconds from its first; those of a trace where the
    /// workload has one.
    Recorded {
        /// The file; `None` is the workload's trace.
        times: Option<PathBuf>,
        /// So many times as fast.
        speed: f64,
    },
}

impl Loop {
    /// Whether requests wait for answers, and not for their time.
    pub fn is_closed(&self) -> bool {
        *self == Self::Closed
    }
}

/// What is left out at a run's beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WarmUp {
    /// So much, before the time that is measured.
    Fixed(Duration),
    /// As much of the time that is measured as is not steady yet, up to half of it.
    UntilSteady,
}

/// How requests are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Protocol {
    /// memcached's text protocol, with its meta commands.
    #[default]
    Text,
    /// memcached's binary protocol.
    Binary,
    /// Text in datagrams, for gets. Records are stored over TCP.
    Udp,
}

/// Who asks.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    /// The user's name.
    pub user: String,
    /// The password.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// TLS, and by what the server is known.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TlsFiles {
    /// Who signs servers' certificates, in PEM; needed unless nothing is verified.
    pub authorities: Option<PathBuf>,
    /// The generator's own certificate, in PEM.
    pub certificate: Option<PathBuf>,
    /// Its key, in PEM.
    pub key: Option<PathBuf>,
    /// The server's name in its certificate; its address unless given.
    pub name: Option<String>,
    /// Takes any certificate.
    pub unverified: bool,
}

/// What the measuring client does where agents do the loading.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Apart {
    /// Connections of each worker to each server, in place of the others'.
    pub connections: Option<usize>,
    /// Requests that a connection may have under way.
    pub depth: Option<usize>,
    /// Requests a second, beside those of the agents; 0 is a closed loop.
    pub rate: Option<f64>,
}

impl Apart {
    /// Whether the measuring client is to differ from the loading ones at all.
    pub fn is_any(&self) -> bool {
        *self != Self::default()
    }
}

/// What a run is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Whom to ask; each has all records.
    pub servers: Vec<Address>,
    /// How to ask.
    pub protocol: Protocol,
    /// Who asks; `None` where the server wants nobody's name.
    pub credentials: Option<Credentials>,
    /// TLS; `None` is none.
    pub tls: Option<TlsFiles>,
    /// Connections of each of the runtime's workers to each server.
    pub connections: usize,
    /// Whether each worker asks only one of the servers, in turns.
    pub round_robin: bool,
    /// Requests that a connection may have under way.
    pub depth: usize,
    /// Closed or open.
    pub pacing: Loop,
    /// In an open loop: leave a request out whose connection is busy. Latencies then are those of the
    /// others.
    pub skip: bool,
    /// In an open loop: leave at least half of the mean gap between requests, also after a delay. What that
    /// puts off counts to the latency, and not as the generator's lateness.
    pub moderate: bool,
    /// In a closed loop: how long, in microseconds, one waits after an answer before the next request.
    pub think: Option<Distribution>,
    /// Share of the connections that are closed and made anew each second.
    pub churn: f64,
    /// Whether small segments are sent at once (`TCP_NODELAY`).
    pub nodelay: bool,
    /// Whether the kernel says when an answer came (`SO_TIMESTAMPING`).
    pub kernel_timestamps: bool,
    /// What to ask.
    pub workload: Workload,
    /// Whether the runtime's workers spin while they wait, so that their CPU time says nothing.
    pub spins: bool,
    /// What to leave out.
    pub warm_up: WarmUp,
    /// Time of measuring.
    pub duration: Duration,
    /// End before the time is over, when the 95 % intervals of rate, median and 99th percentile are within
    /// this share of their middle (0.02: 2 % to both sides).
    pub until_sure: Option<f64>,
    /// Where the random numbers start.
    pub seed: u64,
    /// A file for each request's time and latency; here, not on agents.
    #[serde(skip)]
    pub samples: Option<PathBuf>,
    /// What the measuring client does differently where there are agents.
    pub apart: Apart,
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
            skip: false,
            moderate: false,
            think: None,
            churn: 0.0,
            nodelay: true,
            kernel_timestamps: false,
            workload: Workload::default(),
            spins: false,
            warm_up: WarmUp::Fixed(Duration::from_secs(1)),
            duration: Duration::from_secs(5),
            until_sure: None,
            seed: 1,
            samples: None,
            apart: Apart::default(),
        }
    }
}

/// The longest run.
const LONGEST: Duration = Duration::from_secs(86_400);

impl Config {
    /// The servers of a worker.
    pub(crate) fn servers_of(&self, worker: usize) -> &[Address] {
        if self.round_robin && !self.servers.is_empty() {
            std::slice::from_ref(&self.servers[worker % self.servers.len()])
        } else {
            &self.servers
        }
    }

    /// Connections over all workers.
    pub(crate) fn all_connections(&self, workers: usize) -> usize {
        (0..workers).map(|worker| self.servers_of(worker).len() * self.connections).sum()
    }

    pub(crate) fn warm_up(&self) -> Duration {
        match self.warm_up {
            WarmUp::Fixed(time) => time,
            WarmUp::UntilSteady => Duration::ZERO,
        }
    }

    /// What can't be done, whoever asks for it: it may have come over the network.
    ///
    /// # Errors
    /// [`Error::Config`], which names what.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |what: &str| Err(Error::Config(what.to_owned()));
        let positive = |number: f64| number.is_finite() && number > 0.0;
        if self.servers.is_empty() || self.connections == 0 {
            return refuse("there is no server to ask, or no connection to ask by");
        }
        let rate = match self.pacing {
            Loop::Closed => 1.0,
            Loop::Open { rate, .. } => rate,
            Loop::Recorded { speed, .. } => speed,
        };
        if !positive(rate) || rate < 1e-6 {
            return refuse(
                "requests can't be sent at a rate, or a recording at a speed, that is not above 0",
            );
        }
        if self.duration.is_zero() || self.duration > LONGEST || self.warm_up() > LONGEST {
            return refuse("a run takes from a moment to a day");
        }
        if self.churn != 0.0 && !(1e-6..=1000.0).contains(&self.churn) {
            return refuse("connections are made anew up to 1000 times a second, and once in twelve days");
        }
        let recorded = matches!(self.pacing, Loop::Recorded { .. });
        if recorded && self.apart.rate.is_some() {
            return refuse(
                "where agents replay a recording the master does its share: it has no rate of its own",
            );
        }
        if self.workload.trace.is_some() && self.servers.len() > 1 {
            return refuse("a trace is for one server: of several each would have a part of what it stores");
        }
        if self.workload.records == 0 || self.workload.ttl > Duration::from_secs(u32::MAX.into()) {
            return refuse("there must be a record, and none lasts for longer than 136 years");
        }
        if self.think.is_some_and(|think| !think.is_valid()) {
            return refuse("what one thinks for is no time");
        }
        let unix = self.servers.iter().any(|server| matches!(server, Address::Unix(_)));
        let mix = &self.workload.mix;
        match self.protocol {
            Protocol::Binary if mix.has(Operation::MetaGet) || mix.has(Operation::MetaSet) => {
                refuse("mg and ms are commands of the text protocol: leave them, or the binary protocol, out")
            }
            Protocol::Udp if unix || self.tls.is_some() || self.credentials.is_some() || self.churn > 0.0 => {
                refuse("datagrams go to addresses, without TLS, user or connections that are made anew")
            }
            Protocol::Udp if self.kernel_timestamps || self.workload.trace.is_some() => {
                refuse("the kernel's timestamps and traces are for TCP")
            }
            Protocol::Udp if mix.share(Operation::Get) < 1.0 || self.workload.fill => {
                refuse("by UDP there are only gets: what changes something must not get lost")
            }
            _ if self.kernel_timestamps && (self.tls.is_some() || unix) => {
                refuse("the kernel has timestamps for answers over plain TCP only")
            }
            _ if self.workload.fill && self.workload.multiget > 1 => {
                refuse("which of several keys was missing is not known: fill, or ask for several at once")
            }
            _ if self.skip && self.workload.trace.is_some() => {
                refuse("requests of a trace are put off, and not left out: leave skip out")
            }
            _ if self.workload.verify && (mix.has(Operation::Append) || mix.has(Operation::Prepend)) => {
                refuse("what is appended to is not what was stored: verify, or append and prepend")
            }
            _ if matches!(self.pacing, Loop::Recorded { times: None, .. })
                && self.workload.trace.is_none() =>
            {
                refuse("there are no recorded times: name a file of them, or a trace")
            }
            _ if self.think.is_some() && !self.pacing.is_closed() => {
                refuse("thinking is for the closed loop: in an open one requests have their times")
            }
            _ if self.workload.verify && self.workload.trace.is_some() => {
                refuse("others have stored what a trace asks for: there is nothing to verify it by")
            }
            _ => Ok(()),
        }
    }
}
