//! The runtimes that are compared.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Peer {
    LullUring,
    LullEpoll,
    Tokio,
    Monoio,
    Compio,
    /// An epoll loop without tasks: the lower bound for a runtime that waits for readiness.
    BareEpoll,
    /// A thread for each connection, which blocks in the kernel.
    PlainThreads,
    LullThreads,
}

impl Peer {
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

    pub fn has_threads(self) -> bool {
        matches!(self, Self::PlainThreads | Self::LullThreads)
    }

    /// Whether it is what others offer instead of Lull: the runtime of another project, or the system's threads.
    pub fn is_other_runtime(self) -> bool {
        matches!(self, Self::Tokio | Self::Monoio | Self::Compio | Self::PlainThreads)
    }
}
