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

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EchoServerSpec {
    pub peer: Peer,
    pub core: u32,
    pub service: PeerService,
    pub shape: RequestShape,
    pub address: Ipv4Addr,
    /// How Lull's runtime handles the network; `None` leaves everything as it is. Other runtimes have no such choice.
    pub network: Option<EchoServerNetwork>,
    /// Time that the server spends computing for each request.
    pub work: Duration,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EchoServerNetwork {
    pub policy: Policy,
    pub driver: DriverKind,
    pub interface: String,
    /// The core that does the network work under the packing policy.
    pub packing_core: u32,
    pub polling: PollingConfig,
}
