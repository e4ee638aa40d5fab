//! A server that takes part.

use std::str::FromStr;
use std::time::Duration;

use policies::controller::PollInterval;
use policies::{GraceTime, Policy};
use runtime::DriverKind;
use serde::Serialize;

use super::server_command::ServerCommand;
use crate::fleet::FleetRequests;
use crate::network::PollingConfig;
use crate::peers::{Peer, PeerService, RequestShape};

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// This project's memcached server.
    Lull { policy: Policy, driver: DriverKind, polling: PollingConfig },
    /// The same service on a runtime.
    Echo {
        service: PeerService,
        peer: Peer,
        /// Lull's policy and driver; `None` for the other runtimes, which run as they are.
        policy: Option<(Policy, DriverKind)>,
        work: Duration,
    },
    /// A server of another project, as it is.
    Program {
        server: ServerCommand,
        /// The poll interval with which it is attached to from outside, as `policies attach` does.
        /// `None`: not at all.
        attached: Option<PollInterval>,
    },
}

impl Contender {
    pub fn lull(policy: Policy, driver: DriverKind, polling: PollingConfig) -> Self {
        Self::Lull { policy, driver, polling }
    }

    /// Under kernel polling, once with each poll interval.
    pub fn with_intervals(driver: DriverKind, intervals: &[PollInterval]) -> impl Iterator<Item = Self> {
        intervals.iter().map(move |&poll_interval| {
            let polling = PollingConfig { poll_interval, ..PollingConfig::default() };
            Self::lull(Policy::KernelPolling, driver, polling)
        })
    }

    /// The echo server on Lull under vanilla, which computes for some time before it replies.
    pub fn working(work: Duration) -> Self {
        let policy = Some((Policy::Vanilla, DriverKind::Epoll));
        Self::Echo { service: PeerService::Echo, peer: Peer::Lull, policy, work }
    }

    /// A service on the other runtimes that have it, as they run, and on Lull under each policy, on
    /// the driver that `auto` chooses for it and on epoll.
    pub fn peers(service: PeerService) -> Vec<Self> {
        let of = |(peer, policy)| Self::Echo { service, peer, policy, work: Duration::ZERO };
        let others = service.others().iter().map(|&peer| (peer, None));
        let runs = [
            (Policy::Vanilla, DriverKind::Uring),
            (Policy::Vanilla, DriverKind::Epoll),
            (Policy::Packing, DriverKind::Uring),
            (Policy::Suppression, DriverKind::Epoll),
            (Policy::KernelPolling, DriverKind::Uring),
            (Policy::KernelPolling, DriverKind::Epoll),
        ];
        others.chain(runs.map(|policy| (Peer::Lull, Some(policy)))).map(of).collect()
    }

    /// A server as it runs, and the same under kernel polling from outside, once for each poll
    /// interval.
    pub fn attached(server: &ServerCommand, intervals: &[PollInterval]) -> Vec<Self> {
        let attached = std::iter::once(None).chain(intervals.iter().copied().map(Some));
        attached.map(|attached| Self::Program { server: server.clone(), attached }).collect()
    }

    pub fn name(&self) -> String {
        match self {
            Self::Lull { policy: policy @ Policy::KernelPolling, driver, polling } => {
                format!("{policy}, {driver}{polling}")
            }
            Self::Lull { policy, driver, .. } => format!("{policy}, {driver}"),
            Self::Echo { policy: Some((policy, driver)), work, .. } => {
                let work = match work.as_micros() {
                    0 => String::new(),
                    micros => format!(", {micros} µs of work"),
                };
                format!("lull, {policy}, {driver}{work}")
            }
            Self::Echo { peer, .. } => peer.name().to_owned(),
            Self::Program { server, attached: None } => server.name.clone(),
            Self::Program { server, attached: Some(interval) } => {
                format!("{}, attached, {interval} µs", server.name)
            }
        }
    }

    /// The same with this grace time, if it is this project's memcached server.
    pub fn with_grace_time(mut self, grace: GraceTime) -> Self {
        if let Self::Lull { polling, .. } = &mut self {
            polling.grace_time = grace;
        }
        self
    }

    /// Whether it is Lull's under this policy.
    pub fn runs(&self, policy: Policy) -> bool {
        self.policy().is_some_and(|(it, _)| it == policy)
    }

    pub fn polls(&self) -> bool {
        self.is_attached() || self.runs(Policy::KernelPolling)
    }

    pub fn is_attached(&self) -> bool {
        matches!(self, Self::Program { attached: Some(_), .. })
    }

    pub fn policy(&self) -> Option<(Policy, DriverKind)> {
        match self {
            Self::Lull { policy, driver, .. } => Some((*policy, *driver)),
            Self::Echo { policy, .. } => *policy,
            Self::Program { .. } => None,
        }
    }
}

/// This project's memcached server by name: `POLICY[:DRIVER[:I]]`, with a poll interval I in
/// microseconds, for example `kernel-polling:auto:50`.
impl FromStr for Contender {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        fn parsed<T: FromStr<Err: ToString>>(part: Option<&str>, default: T) -> Result<T, String> {
            part.map_or(Ok(default), |part| part.parse().map_err(|error: T::Err| error.to_string()))
        }
        let mut parts = text.split(':');
        let policy = parsed(parts.next(), Policy::default())?;
        let driver = parsed(parts.next(), DriverKind::Auto)?;
        let poll_interval = parsed(parts.next(), PollInterval::default())?;
        let polling = PollingConfig { poll_interval, ..PollingConfig::default() };
        match parts.next() {
            None => Ok(Self::lull(policy, driver, polling)),
            Some(more) => Err(format!("{more:?} follows POLICY:DRIVER:I")),
        }
    }
}

pub fn requests_for(service: PeerService) -> FleetRequests {
    let RequestShape { request, reply } = RequestShape::SMALL;
    match service.text() {
        Some(text) => FleetRequests::Text { request: text.to_owned(), reply: None },
        None => FleetRequests::Text { request: "r".repeat(request), reply: Some(reply) },
    }
}
