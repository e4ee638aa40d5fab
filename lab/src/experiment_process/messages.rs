//! What the lab and its experiment processes tell each other.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use policies::law::LatencyBudget;
use policies::{Cpus, Policy};
use runtime::{DriverKind, WaitStrategy};
use serde::{Deserialize, Serialize};

use crate::fleet::{FleetConfig, FleetMeasurement};
use crate::peers::{EchoLoadSpec, EchoServerSpec};
use crate::polling_config::PollingConfig;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "kebab-case")]
pub enum ProcessRole {
    Server(ServerSpec),
    EchoServer(EchoServerSpec),
    EchoLoad(EchoLoadSpec),
    Fleet(FleetSpec),
    Program(ProgramSpec),
    /// Keeps another process's server under kernel polling, from outside.
    Attach(AttachSpec),
}

/// What is attached, as `policies attach` does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AttachSpec {
    pub pid: u32,
    pub interface: String,
    /// The median delay that kernel polling may cost.
    pub latency_budget: LatencyBudget,
    pub core: u32,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "kebab-case")]
pub(crate) enum AttachMessage {
    Attached,
    Refused { reason: String },
    Status(AttachProgress),
}

/// What an attaching process did since it was last asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct AttachProgress {
    /// The epoll instances that are attached.
    pub(crate) instances: usize,
    /// Why it gave polling up for some seconds, each time that it did.
    pub(crate) stepped_back: Vec<String>,
    /// The modes that the law has chosen for the queue, with the reasons.
    pub(crate) changes: Vec<String>,
}

/// Another program as an experiment process: it ends with the lab.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ProgramSpec {
    pub program: PathBuf,
    pub arguments: Vec<String>,
    pub core: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FleetSpec {
    pub fleet: FleetConfig,
    pub core: u32,
    pub records: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "kebab-case")]
pub(crate) enum FleetMessage {
    Ready,
    Done { measurement: Box<FleetMeasurement> },
    Failed { error: String },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServerSpec {
    pub policy: Policy,
    /// The server's interface on the testbed; `None` on loopback.
    pub interface: Option<String>,
    pub address: IpAddr,
    pub cores: Cpus,
    /// The core that does the network work under packing, and on which the thread of kernel-thread polls.
    pub packing_core: u32,
    pub polling: PollingConfig,
    #[serde(with = "as_text")]
    pub wait: WaitStrategy,
    pub driver: DriverKind,
    /// Memory for items, in bytes; 0 for the server's default.
    pub memory: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServerReady {
    pub address: SocketAddr,
    /// What its first worker runs.
    pub ran: String,
    /// Why its first worker runs something else than the requested policy.
    pub steps_down: Vec<String>,
    /// The runtime's worker reports (`runtime::WorkerReport`), for the report.
    pub reports: serde_json::Value,
    /// The host's knobs with the outcome of each (`policies::Applied`), for the report.
    pub applied: serde_json::Value,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct EchoServerReady {
    pub(crate) address: SocketAddr,
    /// The address of its allocation count, in its memory.
    pub(crate) allocation_count: u64,
    /// What its worker runs, if it is Lull's.
    pub(crate) ran: Option<String>,
    /// Why its worker runs something else than the requested policy.
    pub(crate) steps_down: Vec<String>,
}

/// The message of an echo load at the beginning of the measurement, or when the idle connections are open.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct EchoLoadReady {}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct ServerCounts {
    pub(crate) requests: u64,
    /// System calls of its workers that wait, poll or submit (`epoll_pwait2`, `io_uring_enter`).
    pub(crate) waits: u64,
}

/// The lab's command to a process to say what it did so far.
pub(super) const STATUS: &str = "status";

/// Values that are text on the command line are text in messages.
mod as_text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_server_spec_is_the_same_after_it_was_sent() {
        let spec = ServerSpec {
            policy: Policy::KernelPolling,
            interface: Some("lull-server".to_owned()),
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            cores: Cpus::one(0),
            packing_core: 1,
            polling: PollingConfig::default(),
            wait: WaitStrategy::Adaptive,
            driver: DriverKind::Uring,
            memory: 0,
        };
        let role = ProcessRole::Server(spec);
        let sent = serde_json::to_string(&role).unwrap();
        let received: ProcessRole = serde_json::from_str(&sent).unwrap();
        assert_eq!(format!("{received:?}"), format!("{role:?}"));
    }
}
