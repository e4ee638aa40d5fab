//! The runtimes that are compared.

use serde::{Deserialize, Serialize};

/// What an echo server is built on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Peer {
    /// Lull on the uring driver.
    LullUring,
    /// Lull on the epoll driver.
    LullEpoll,
    /// tokio, `current_thread`.
    Tokio,
    /// monoio on io_uring.
    Monoio,
    /// compio on io_uring.
    Compio,
    /// An epoll loop without tasks: the lower bound for a runtime that waits for readiness.
    BareEpoll,
    /// A thread for each connection, which blocks in the kernel.
    PlainThreads,
    /// A thread for each connection, on Lull's dispatcher.
    LullThreads,
}

impl Peer {
    /// All peers, in the order of the table.
    pub const ALL: [Self; 8] = [
        Self::PlainThreads,
        Self::LullThreads,
        Self::LullUring,
        Self::LullEpoll,
        Self::Tokio,
        Self::Monoio,
        Self::Compio,
        Self::BareEpoll,
    ];

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::LullUring => "lull uring",
            Self::LullEpoll => "lull epoll",
            Self::Tokio => "tokio",
            Self::Monoio => "monoio",
            Self::Compio => "compio",
            Self::BareEpoll => "bare epoll",
            Self::PlainThreads => "plain threads",
            Self::LullThreads => "lull threads",
        }
    }

    /// Whether it has a thread for each connection.
    pub fn has_threads(self) -> bool {
        matches!(self, Self::PlainThreads | Self::LullThreads)
    }

    /// Whether it is what others offer instead of Lull: the runtime of another project, or the system's threads.
    pub fn is_other_runtime(self) -> bool {
        matches!(self, Self::Tokio | Self::Monoio | Self::Compio | Self::PlainThreads)
    }
}
