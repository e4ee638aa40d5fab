//! Load from several machines: a master tells agents what to do, all begin at the same time, and what they
//! count is put together without loss.
//!
//! Whoever can reach an agent could have it load anything: an agent listens on the loopback address unless it
//! shares a secret with its master, each proves to know it, and each message carries a code that only the
//! two can make (HMAC, RFC 2104). Nothing is encrypted.

mod agent;
mod channel;
mod crew;
mod messages;

pub use agent::{Agent, AgentOptions};
pub use crew::Crew;
pub(crate) use crew::Part;

/// Where an agent listens unless told otherwise; mutilate's port.
pub const AGENT_PORT: u16 = 5556;
