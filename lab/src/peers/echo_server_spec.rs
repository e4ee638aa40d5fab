//! How an echo server process runs.

use std::net::Ipv4Addr;
use std::time::Duration;

use policies::Policy;
use runtime::DriverKind;
use serde::{Deserialize, Serialize};

use super::peer::Peer;
use super::request_shape::RequestShape;
use super::service::PeerService;
use crate::polling_config::PollingConfig;

/// What an echo server process runs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EchoServerSpec {
    /// The runtime.
    pub peer: Peer,
    /// The server's core.
    pub core: u32,
    /// What it does with a request.
    pub service: PeerService,
    /// The sizes of requests and replies.
    pub shape: RequestShape,
    /// The address to listen on.
    pub address: Ipv4Addr,
    /// How Lull's runtime handles the network; `None` leaves everything as it is. Other runtimes have no such choice.
    pub network: Option<EchoServerNetwork>,
    /// Time that the server spends computing for each request.
    pub work: Duration,
}

/// How Lull's runtime handles the network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EchoServerNetwork {
    /// The policy.
    pub policy: Policy,
    /// The driver.
    pub driver: DriverKind,
    /// The interface.
    pub interface: String,
    /// The core that does the network work under the packing policy.
    pub packing_core: u32,
    /// How it adapts under kernel polling.
    pub polling: PollingConfig,
}
