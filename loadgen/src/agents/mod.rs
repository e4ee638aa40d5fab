//! Load from several machines: a coordinator configures agents, all start at the same time, and
//! their measurements are merged without loss.
//!
//! An agent generates load on behalf of anybody who can authenticate. Unless it listens on the
//! loopback address, it needs a secret that it shares with its coordinator: both prove that they
//! know it, and every message carries an HMAC (RFC 2104). Messages are not encrypted.

#[cfg(feature = "agents")]
pub(crate) mod agent;
#[cfg(feature = "agents")]
mod agent_group;
#[cfg(feature = "agents")]
mod agent_handle;
#[cfg(feature = "agents")]
mod authenticated_channel;
pub(crate) mod coordinator;
#[cfg(all(fuzzing, feature = "agents"))]
pub mod fuzzing;
#[cfg(feature = "agents")]
mod messages;

/// The default port of agents; mutilate's port.
pub const AGENT_PORT: u16 = 5556;
