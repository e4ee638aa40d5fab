//! How the server runs, and what it says when it does.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

/// The server's port. No other packets than TCP's for this port leave the kernel's way.
pub const PORT: u16 = 11211;

/// How a user-level server runs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct UserLevelServerSpec {
    /// The interface, of which queue 0 is taken.
    pub interface: String,
    /// The interface's hardware address.
    pub hardware: [u8; 6],
    /// The interface's address.
    pub address: Ipv4Addr,
    /// Bits of the network's part of the address.
    pub prefix_length: u8,
    /// The core of its thread, which it keeps busy.
    pub core: u32,
    /// Memory for items, in bytes; 0 for the bundled server's default.
    pub memory: u64,
}

/// A user-level server's messages.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum UserLevelServerReady {
    /// It awaits a datagram from the other end of its link, to its address and [`PORT`], by which it learns of its queue.
    Listens,
    /// It serves.
    Serves,
    /// It can't.
    Refused {
        /// The step that failed, and what would mend it.
        reason: String,
    },
}
