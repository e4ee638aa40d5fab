//! Helpers for the tests that cross crates: policies on the testbed, clients against the server,
//! the load generator against fake servers.
//!
//! A test that needs root, a kernel feature or another program asks for it with [`require`] and
//! returns where it is missing; with `LULL_REQUIRE_ALL` in the environment it fails instead.
//!
//! ```
//! let able = tests::require("arithmetic", Some(2 + 2).filter(|sum| *sum == 4));
//! assert_eq!(able, Some(4));
//! ```
#![forbid(unsafe_code)]
// A helper panics where it can't do what it is for: that fails the test.
#![allow(missing_docs, clippy::missing_panics_doc)]

mod book;
pub mod capture;
pub mod closed_loop;
pub mod control_group;
pub mod fake_server;
pub mod isolated;
pub mod kill_at_call;
pub mod load;
pub mod poll_trace;
mod processes;
pub mod random;
mod requirements;
pub mod seccomp;
pub mod testbed;

pub use processes::{KillOnDrop, memcached};
pub use requirements::{descriptors, drivers, own_program, policies_command, program, require, root};
pub use tests_macros::{isolated, testbed_test};
