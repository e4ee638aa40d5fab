//! Why a run fails.

use std::io;

use crate::address::Address;

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A connection could not be made.
    #[error("cannot connect to {server}: {source}")]
    Connect {
        /// Whom.
        server: Address,
        /// Why.
        source: io::Error,
    },
    /// The server does not let the user in.
    #[error("{server} does not let {user:?} in: is the password right, and the protocol the server's?")]
    Refused {
        /// Which server.
        server: Address,
        /// The user's name.
        user: String,
    },
    /// An agent can't take part.
    #[error("agent {agent}: {reason}")]
    Agent {
        /// Which one.
        agent: String,
        /// Why.
        reason: String,
    },
    /// A connection broke.
    #[error("a connection broke: {0}")]
    Connection(io::Error),
    /// The server's answers are not memcached's.
    #[error("the server does not answer as memcached does: {0}")]
    Protocol(String),
    /// Records could not be stored.
    #[error(
        "{refused} of {records} records could not be stored on {server} (is its memory or item limit too small?)"
    )]
    NotStored {
        /// Whom.
        server: Address,
        /// How many were refused.
        refused: u64,
        /// Of how many.
        records: u64,
    },
    /// The file for each request's latency can't be written.
    #[error("{}: {}", .0.display(), .1)]
    Samples(std::path::PathBuf, io::Error),
    /// What is asked for can't be done.
    #[error("{0}")]
    Config(String),
    /// The thread that puts together what is counted could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// A worker's task ended.
    #[error("a worker failed: {0}")]
    Worker(#[from] runtime::JoinError),
}
