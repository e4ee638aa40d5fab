//! Load from several machines: a coordinator configures agents, all start at the same time, and
//! their measurements are merged without loss.
//!
//! An agent generates load on behalf of a coordinator. Unless it listens on the loopback address,
//! both need the same identity, a certificate with its key: they speak TLS, and each accepts only a
//! peer that has that key.

pub(crate) mod agent;
pub(crate) mod channel;
pub(crate) mod coordinator;
#[cfg(fuzzing)]
pub mod fuzzing;

/// The default port of agents; mutilate's port.
pub const AGENT_PORT: u16 = 5556;
