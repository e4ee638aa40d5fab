//! What an echo server does, on which runtime, and how its process runs.

use std::net::Ipv4Addr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::network::Network;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Peer {
    Lull,
    Tokio,
    Monoio,
    Compio,
    /// A loop on mio without tasks: the lower bound for a runtime that waits for readiness.
    Mio,
}

policies::names!(
    Peer, "runtime":
    Lull = "lull", Tokio = "tokio", Monoio = "monoio", Compio = "compio", Mio = "mio"
);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PeerService {
    /// Answers 40 bytes with 200, without looking at them.
    #[default]
    Echo,
    /// Answers `GET /` with `Hello, World!`, by axum over HTTP/1.1.
    #[cfg(feature = "adapters")]
    Axum,
}

impl PeerService {
    /// The runtimes of others that it is compared on.
    pub fn others(self) -> &'static [Peer] {
        match self {
            Self::Echo => &[Peer::Tokio, Peer::Monoio, Peer::Compio, Peer::Mio],
            #[cfg(feature = "adapters")]
            Self::Axum => &[Peer::Tokio],
        }
    }

    /// The text of its only request; `None` where any bytes are one.
    pub fn text(self) -> Option<&'static str> {
        match self {
            Self::Echo => None,
            #[cfg(feature = "adapters")]
            Self::Axum => Some("GET / HTTP/1.1\r\nhost: lull\r\n\r\n"),
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EchoServerSpec {
    pub peer: Peer,
    pub core: u32,
    pub service: PeerService,
    pub shape: RequestShape,
    pub address: Ipv4Addr,
    /// How Lull's runtime handles the network. Other runtimes have no such choice.
    pub network: Option<Network>,
    pub work: Duration,
}

/// The sizes of requests and replies, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestShape {
    pub request: usize,
    pub reply: usize,
}

impl RequestShape {
    pub const SMALL: Self = Self { request: 40, reply: 200 };
}

/// Bytes of a server's read buffer, if the runtime doesn't provide one.
pub(super) const READ_BUFFER: usize = 4096;

static REPLIES: [u8; 64 << 10] = [b'a'; 64 << 10];

pub(super) struct RequestCounter {
    shape: RequestShape,
    partial: usize,
}

impl RequestCounter {
    pub(super) fn new(shape: RequestShape) -> Self {
        Self { shape, partial: 0 }
    }

    /// The replies to the requests that `received` more bytes complete.
    pub(super) fn replies(&mut self, received: usize) -> &'static [u8] {
        self.partial += received;
        let complete = self.partial / self.shape.request;
        self.partial %= self.shape.request;
        // The largest read: READ_BUFFER / 40 requests with replies of 200 bytes, or one of Lull's
        // buffers.
        &REPLIES[..(complete * self.shape.reply).min(REPLIES.len())]
    }
}
