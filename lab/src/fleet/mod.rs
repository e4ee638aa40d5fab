//! A load generator that stands in for many client machines. It runs on one core and has its own user-space TCP.
//!
//! A kernel client on one core batches: what it receives in one wait it answers in one burst, and a server is spared
//! interrupts that clients on many machines would cause. A fleet sends each request when it is due, in its own packet, through a packet socket (packet(7)), without the kernel's TCP. Its thread never sleeps.
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
#[non_exhaustive]
pub enum FleetError {
    /// A socket can't be opened.
    #[error("cannot {step}: {source} ({needs})")]
    Open {
        /// What was to be opened.
        step: &'static str,
        /// What it needs.
        needs: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// Sending or receiving failed.
    #[error("the fleet's sockets: {0}")]
    Socket(#[from] io::Error),
    /// The interface has no queue that could be polled.
    #[error("the fleet's interface {0} has no NAPI: a veth has one while GRO is on")]
    NoNapi(String),
    /// The receive queue can't be set to busy polling.
    #[error("the fleet's receive queue: {0}")]
    Queue(#[from] policies::Error),
    /// The interface doesn't exist.
    #[error("the fleet's interface {0} does not exist")]
    NoInterface(String),
    /// A configuration that no fleet can have.
    #[error("{0}")]
    Config(String),
    /// There is no connection to the server.
    #[error("no connection to the server at {server}: {error}")]
    Unreachable {
        /// The server's address.
        server: SocketAddr,
        /// Why there is none.
        error: io::Error,
    },
    /// Connections were not established in time.
    #[error("{missing} of {connections} connections were not established within {seconds} s")]
    NotConnected {
        /// Connections that were not established.
        missing: usize,
        /// All connections.
        connections: usize,
        /// Seconds waited.
        seconds: u64,
    },
    /// The server closed connections.
    #[error("the server closed {0} connections")]
    Closed(usize),
    /// The server does not answer.
    #[error("{0} records could not be stored: the server does not answer")]
    NotStored(u64),
    /// A reply that doesn't fit the request.
    #[error("the server sent a reply without a request")]
    OutOfStep,
    /// The replies are not of the protocol.
    #[error(transparent)]
    Reply(#[from] loadgen::Error),
    /// A packet was longer than a slot of the ring.
    #[error(
        "a packet of the server is longer than {0} bytes: switch receive merging (GRO) to single packets"
    )]
    LongPacket(usize),
    /// The latency histogram can't be made.
    #[error("no memory for the latency histogram")]
    Histogram,
}
