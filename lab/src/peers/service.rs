//! What the servers of a comparison do.

use serde::{Deserialize, Serialize};

use super::peer::Peer;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PeerService {
    /// Answers so many bytes with so many bytes, without looking at them.
    #[default]
    Echo,
    Threads,
    /// Answers `GET /` with `Hello, World!`, by axum over HTTP/1.1.
    #[cfg(feature = "adapters")]
    Axum,
}

impl PeerService {
    /// The runtimes of others that it is compared on.
    pub fn others(self) -> &'static [Peer] {
        match self {
            Self::Echo => &[Peer::Tokio, Peer::Monoio, Peer::Compio, Peer::BareEpoll],
            Self::Threads => &[Peer::PlainThreads],
            #[cfg(feature = "adapters")]
            Self::Axum => &[Peer::Tokio],
        }
    }

    /// The text of its only request; `None` where any bytes are one.
    pub fn text(self) -> Option<&'static str> {
        match self {
            Self::Echo | Self::Threads => None,
            #[cfg(feature = "adapters")]
            Self::Axum => Some("GET / HTTP/1.1\r\nhost: lull\r\n\r\n"),
        }
    }
}
