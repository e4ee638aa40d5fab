//! Errors of fleets.

use std::io;
use std::net::SocketAddr;

#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    #[error("cannot {step}: {source} ({needs})")]
    Open { step: &'static str, needs: &'static str, source: io::Error },
    #[error("the fleet's sockets: {0}")]
    Socket(#[from] io::Error),
    #[error("the fleet's interface {0} has no NAPI: a veth has one while GRO is on")]
    NoNapi(String),
    #[error("the fleet's interface: {0}")]
    Queue(#[from] policies::Error),
    #[error("{0}")]
    Config(String),
    #[error("no connection to the server at {server}: {error}")]
    Unreachable { server: SocketAddr, error: io::Error },
    #[error("{missing} of {connections} connections were not established within {seconds} s")]
    NotConnected { missing: usize, connections: usize, seconds: u64 },
    #[error("the server closed {0} connections")]
    Closed(usize),
    #[error("the server sent a reply without a request")]
    OutOfStep,
    #[error(transparent)]
    Reply(#[from] loadgen::Error),
    #[error(
        "a packet of the server is longer than {0} bytes: switch receive merging (GRO) to single packets"
    )]
    LongPacket(usize),
}
