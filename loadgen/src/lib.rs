//! Load for servers that speak memcached's protocols.
//!
//! ```
//! use std::time::Duration;
//! use loadgen::{Config, WarmUp, Workload};
//!
//! let mut runtime = runtime::Builder::new().workers(1).build()?;
//! let report = runtime.block_on(async {
//!     let server = servers::memcached::Server::start(&servers::memcached::Config {
//!         port: Some(0),
//!         ..Default::default()
//!     })?;
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
//! In a closed loop each connection sends its next request when an answer has come, so a slow server
//! is asked less. In an open loop requests go out at their times, and latency counts from the time at
//! which a request *should* have gone out: a server that stalls shows the stall.
//!
//! [`run`] measures with this process alone, [`Crew::run`] together with agents on other machines, which
//! [`Agent::serve`] is. [`search`] finds the highest rate that keeps a percentile below a bound, and
//! [`compare`] measures servers in turns.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "Lull drives the Linux kernel's NAPI polling: it builds for Linux only (6.13 or later for interrupt suspension)"
);

mod address;
mod agents;
mod answers;
mod batches;
mod binary;
mod by_text;
mod client;
mod collector;
mod compare;
mod config;
mod datagrams;
mod decoder;
mod distribution;
mod error;
mod measures;
mod popularity;
mod progress;
mod records;
mod report;
mod report_text;
mod requests;
mod run;
mod schedule;
mod search;
mod sparse;
mod stamped;
mod stats;
mod steady;
mod taker;
mod tally;
mod text;
mod tls;
mod trace;
mod transport;
mod value;
mod worker;
mod workload;

pub use address::{Address, resolve};
pub use agents::{AGENT_PORT, Agent, AgentOptions, Crew};
pub use batches::Estimate;
pub use compare::{Comparison, Contender, Ratio, Turn, compare};
pub use config::{Apart, Config, Credentials, Loop, Protocol, TlsFiles, WarmUp};
pub use distribution::{Distribution, InvalidDistribution};
pub use error::Error;
pub use popularity::{InvalidPopularity, Popularity};
pub use progress::Progress;
pub use records::{load_records, load_records_with};
pub use report::{AgentReport, Moment, Report, Summary};
pub use run::{run, run_until};
pub use schedule::recorded_length;
pub use search::{Found, Goal, Tried, Verdict, search};
pub use stats::{medians, rounds};
pub use workload::{Arrival, InvalidMix, Mix, Operation, Workload};
