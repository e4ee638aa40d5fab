//! How the server runs, and what it says when it does.

use std::fmt;
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

/// Frames that a user-level server has lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LostFrames {
    /// Frames that were not sent because all were in use.
    pub refused: u64,
    /// Frames that the queue of the other end had no room for.
    pub dropped: u64,
    /// Received packets for which there was no frame, or no room in the ring (`XDP_STATISTICS`). `None` if the kernel doesn't say.
    pub received: Option<u64>,
}

impl fmt::Display for LostFrames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let received = self.received.map_or_else(|| "unknown".to_owned(), |received| received.to_string());
        write!(
            f,
            "frames lost in all turns: {} to be sent for lack of a free one, {} because the fleet's queue was full, {received} \
             received for lack of a free one or of room in the ring",
            self.refused, self.dropped
        )
    }
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
    /// It has ended, at the end of its input.
    Ended(LostFrames),
    /// It can't.
    Refused {
        /// The step that failed, and what would mend it.
        reason: String,
    },
}
