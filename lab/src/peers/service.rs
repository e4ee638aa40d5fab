//! The runtimes that are compared, and what the servers on them do.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Peer {
    Lull,
    Tokio,
    Monoio,
    Compio,
    /// An epoll loop without tasks: the lower bound for a runtime that waits for readiness.
    BareEpoll,
}

policies::names!(
    Peer, "runtime":
    Lull = "lull", Tokio = "tokio", Monoio = "monoio", Compio = "compio", BareEpoll = "bare epoll"
);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PeerService {
    /// Answers so many bytes with so many bytes, without looking at them.
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
            Self::Echo => &[Peer::Tokio, Peer::Monoio, Peer::Compio, Peer::BareEpoll],
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
