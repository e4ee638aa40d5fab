//! The configuration of a fleet.

use std::net::{Ipv4Addr, SocketAddrV4};

use serde::{Deserialize, Serialize};

use super::requests::FleetRequests;
use crate::testbed::{CLIENT_INTERFACE, FLEET_MAC, SERVER_MAC};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FleetConfig {
    pub server: SocketAddrV4,
    pub link: FleetLink,
    /// The fleet's own address, which no other fleet has.
    pub address: Ipv4Addr,
    /// The number of connections, 1 to 20,000.
    pub connections: usize,
    pub requests: FleetRequests,
    pub seed: u64,
}

/// How a fleet reaches the server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FleetLink {
    pub interface: String,
    /// The hardware addresses of the fleet and of the server.
    pub mac: [u8; 6],
    pub server_mac: [u8; 6],
    /// Whether the fleet polls the interface's only queue. Otherwise interrupts of its machine receive.
    pub polls: bool,
}

impl Default for FleetLink {
    /// That of the testbed.
    fn default() -> Self {
        let interface = CLIENT_INTERFACE.to_owned();
        Self { interface, mac: FLEET_MAC, server_mac: SERVER_MAC, polls: true }
    }
}
