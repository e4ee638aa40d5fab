//! Experiments: would kernel polling help this machine, and how much?
//!
//! ```
//! // How sure five rounds can make one of a median.
//! let interval = loadgen::medians::median_interval(&[1.7, 1.9, 1.8, 1.6, 2.0]);
//! assert_eq!((interval.median, interval.low, interval.high), (1.8, 1.6, 2.0));
//! assert!(interval.confidence > 0.93);
//! ```
//!
//! The `lab` command makes two network namespaces joined by a veth pair, puts a memcached-protocol
//! server into one and the load into the other, and compares the policies in interleaved rounds.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "Lull drives the Linux kernel's NAPI polling: it builds for Linux only (6.13 or later for interrupt suspension)"
);

pub mod allocations;
pub mod calibration;
pub mod experiment;
pub mod generators;
pub mod grace_blocks;
pub mod namespace;
pub mod party;
pub mod peers;
pub mod report;
pub mod testbed;
