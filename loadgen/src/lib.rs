//! Load for servers that speak memcached's ASCII protocol.
//!
//! ```
//! use std::time::Duration;
//! use loadgen::{Config, Workload};
//!
//! let mut runtime = runtime::Builder::new().workers(1).build()?;
//! let report = runtime.block_on(async {
//!     let server = servers::memcached::Server::start(&servers::memcached::Config {
//!         port: Some(0),
//!         ..Default::default()
//!     })?;
//!     let config = Config {
//!         server: server.addresses()[0],
//!         connections: 4,
//!         warm_up: Duration::ZERO,
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

#[cfg(not(target_os = "linux"))]
compile_error!(
    "Lull drives the Linux kernel's NAPI polling: it builds for Linux only (6.13 or later for interrupt suspension)"
);

mod client;
mod distribution;
mod report;
mod run;
mod workload;

pub use distribution::{Distribution, InvalidDistribution};
pub use report::{Report, Summary};
pub use run::{Config, Error, Loop, load_records, run, run_with_progress};
pub use workload::{Arrival, Workload};
