//! How a process with an echo server on one of the runtimes runs.

use std::net::Ipv4Addr;
use std::time::Duration;

use policies::Policy;
use runtime::DriverKind;
use serde::{Deserialize, Serialize};

use super::request_shape::RequestShape;
use super::service::{Peer, PeerService};
use crate::polling_config::PollingConfig;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EchoServerSpec {
    pub peer: Peer,
    pub core: u32,
    pub service: PeerService,
    pub shape: RequestShape,
    pub address: Ipv4Addr,
    /// How Lull's runtime handles the network. Other runtimes have no such choice.
    pub network: Option<EchoServerNetwork>,
    pub work: Duration,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EchoServerNetwork {
    pub policy: Policy,
    pub driver: DriverKind,
    /// `None` on loopback.
    pub interface: Option<String>,
    pub packing_core: u32,
    pub polling: PollingConfig,
}
