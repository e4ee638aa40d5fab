//! A load generator that stands in for many client machines. It runs on one core and has its own
//! user-space TCP.
//!
//! A kernel client on one core batches: what it receives in one wait it answers in one burst, and a
//! server is spared interrupts that clients on many machines would cause. A fleet sends each
//! request when it is due, in its own packet, through a packet socket (packet(7)), without the
//! kernel's TCP. Its thread never sleeps.
//!
//! - [`Fleet`]: connections to one server, and runs of load on them.
//! - [`FleetPacing`]: when requests are due; [`AlternatingRate`] steps up and down.
//! - [`FleetRequests`]: what is asked.
//! - [`FleetMeasurement`]: what a run measured.

mod alternating_rate;
mod connection;
mod engine;
mod latency;
mod link;
mod measurement;
mod pacing;
mod packet_socket;
mod polled_queue;
mod requests;
mod run;
mod segment;
mod windows;

use std::io;
use std::net::SocketAddr;

pub use alternating_rate::{AlternatingRate, Step};
pub use engine::{Fleet, FleetConfig};
pub use latency::FleetLatency;
pub use measurement::FleetMeasurement;
pub use pacing::FleetPacing;
pub use requests::FleetRequests;
pub use run::FleetLoad;
pub use windows::FleetWindow;

/// Why a fleet can't load a server.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    #[error("cannot {step}: {source} ({needs})")]
    Open { step: &'static str, needs: &'static str, source: io::Error },
    #[error("the fleet's sockets: {0}")]
    Socket(#[from] io::Error),
    #[error("the fleet's interface {0} has no NAPI: a veth has one while GRO is on")]
    NoNapi(String),
    #[error("the fleet's receive queue: {0}")]
    Queue(#[from] policies::Error),
    #[error("the fleet's interface {0} does not exist")]
    NoInterface(String),
    #[error("{0}")]
    Config(String),
    #[error("no connection to the server at {server}: {error}")]
    Unreachable { server: SocketAddr, error: io::Error },
    #[error("{missing} of {connections} connections were not established within {seconds} s")]
    NotConnected { missing: usize, connections: usize, seconds: u64 },
    #[error("the server closed {0} connections")]
    Closed(usize),
    #[error("{0} records could not be stored: the server does not answer")]
    NotStored(u64),
    #[error("the server sent a reply without a request")]
    OutOfStep,
    #[error(transparent)]
    Reply(#[from] loadgen::Error),
    #[error(
        "a packet of the server is longer than {0} bytes: switch receive merging (GRO) to single packets"
    )]
    LongPacket(usize),
    #[error("no memory for the latency histogram")]
    Histogram,
}
