//! Load for servers that speak memcached's protocols.
//!
//! ```
//! use std::time::Duration;
//! use loadgen::{Config, WarmUp, Workload};
//!
//! let runtime = runtime::Builder::new().workers(1).build()?;
//! let report = runtime.block_on(async {
//!     let server = servers::memcached::Server::start(&servers::memcached::Config {
//!         port: Some(0),
//!         ..Default::default()
//!     })
//!     .await?;
//!     let config = Config {
//!         servers: vec![server.addresses()[0].into()],
//!         connections: 4,
//!         warm_up: WarmUp::Fixed(Duration::ZERO),
//!         duration: Duration::from_millis(50),
//!         workload: Workload { records: 100, ..Workload::default() },
//!         ..Config::default()
//!     };
//!     loadgen::load_records(&config).await?;
//!     Ok::<_, Box<dyn std::error::Error>>(loadgen::run(&config).await?)
//! })?;
//! assert!(report.requests > 0 && report.misses == 0);
//! println!("{}", report.table());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! In the closed loop each connection sends its next request when a response has arrived, so a slow
//! server receives fewer requests. In the open loop requests are sent on a schedule, and latency is
//! measured from the time at which a request *should* have been sent: a server that stalls shows
//! the stall.
//!
//! [`run`] measures with this process alone. [`Coordinator::run`] also uses [agents](Agent) on
//! other machines. [`search`] finds the highest rate that keeps a percentile below a bound.
//!
//! # What it is not for
//!
//! It is not a client library: keys and values are generated, and responses are only counted. It
//! doesn't replay traces, and speaks neither HTTP nor other commands of redis than `GET` and `SET`.
//! Of several servers each gets all records and the same load: keys are not hashed to servers.
//!
//! The feature `cli`, which is on by default, is what only the `loadgen` command needs.

#![forbid(unsafe_code)]
#![allow(missing_docs)]
#![cfg_attr(fuzzing, allow(private_interfaces))]

#[cfg(not(target_os = "linux"))]
compile_error!(
    "Lull drives the Linux kernel's NAPI polling: it builds for Linux only (6.13 or later for interrupt suspension)"
);

mod address;
mod agents;
mod config;
mod connection;
mod error;
mod invalid_value;
mod protocol;
mod report;
mod run;
mod search;
mod stats;
pub mod stream;
mod transport;
mod workload;

pub use address::{Address, resolve};
pub use agents::agent::{Agent, AgentOptions};
/// What the fuzz target drives: how coordinator and agents read each other's messages.
#[cfg(fuzzing)]
pub mod fuzzing {
    pub use crate::agents::channel::{
        AgentResponse, ChannelError, CoordinatorRequest, GREETING, LONGEST_REQUEST, LONGEST_RESPONSE,
        MessageReader, check_greeting, frame,
    };
}
pub use agents::{AGENT_PORT, Coordinator, channel::IDENTITY_NAME};
pub use config::{Assign, Config, Credentials, Loop, MeasurementOverrides, Protocol, TlsFiles, WarmUp};
pub use error::Error;
pub use invalid_value::InvalidValue;
pub use report::{AgentReport, Report, SeriesPoint, Summary};
pub use run::preload::{load_records, load_records_with};
pub use run::{run, run_until};
pub use search::{Goal, RateTrial, SearchResult, Verdict, search};
pub use stats::batch_means::Estimate;
pub use stats::medians;
pub use stats::timeline::Progress;
pub use workload::Workload;
pub use workload::arrival::Arrival;
pub use workload::distribution::Distribution;
pub use workload::mix::{Mix, Operation};
pub use workload::popularity::Popularity;

// Types of other crates in public signatures.
pub use rand::Rng;
pub use runtime::JoinError;
