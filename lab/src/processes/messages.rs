//! What the lab and its experiment processes tell each other.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use policies::controller::PollInterval;
use serde::{Deserialize, Serialize};

use crate::fleet::FleetConfig;
use crate::network::Network;
use crate::peers::EchoServerSpec;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "kebab-case")]
pub enum ProcessRole {
    Server {
        network: Network,
        /// The workers' cores; none for the runtime's own choice.
        cores: Vec<u32>,
        address: IpAddr,
        /// Memory for items, in bytes; the server's default at least.
        memory: u64,
    },
    EchoServer(EchoServerSpec),
    Fleet {
        fleet: FleetConfig,
        core: u32,
        /// Whether it stores what it asks for.
        stores: bool,
    },
    /// Another program as an experiment process: it ends with the lab.
    Program {
        program: PathBuf,
        arguments: Vec<String>,
        cores: Vec<u32>,
    },
    /// Looks at an end of a cable, changes it if asked to, and restores it when the lab ends.
    Card {
        interface: String,
        /// At the server's end, the client's hardware address.
        peer: Option<[u8; 6]>,
        changes: bool,
    },
    /// Keeps another process's server under kernel polling, from outside.
    Attach {
        pid: u32,
        poll_interval: PollInterval,
        core: u32,
    },
}

/// The first message of a server, but of a program of another project.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ServerReady {
    pub(crate) address: SocketAddr,
    /// `None` of another runtime than Lull's.
    pub(crate) policy: Option<RunningPolicy>,
}

/// What a worker of Lull runs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunningPolicy {
    pub ran: String,
    /// Why it is not the requested one.
    pub steps_down: Vec<String>,
}

impl RunningPolicy {
    pub(crate) fn note(&self, contender: &str) -> Option<String> {
        let Self { ran, steps_down } = self;
        (!steps_down.is_empty()).then(|| format!("{contender}: {ran} ran: {}", steps_down.join("; ")))
    }
}

/// The hidden subcommand that makes the `lab` program an experiment process.
pub const SUBCOMMAND: &str = "experiment-process";

/// The lab's command to a process to say what it did so far.
pub(super) const STATUS: &str = "status";

/// Sends a message to the lab: one line of JSON on standard output.
pub(super) fn send(message: &impl Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, message)?;
    writeln!(out)?;
    out.flush()
}
