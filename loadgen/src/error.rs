//! Errors of runs.

use std::io;

use crate::transport::address::Address;

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A connection could not be made.
    #[error("cannot connect to {server}: {source}")]
    Connect { server: Address, source: io::Error },
    /// The server rejected the credentials.
    #[error("{server} rejected the credentials of {user:?}: check the password and the protocol")]
    Refused { server: Address, user: String },
    /// An agent can't join the run.
    #[error("agent {agent}: {reason}")]
    Agent { agent: String, reason: String },
    #[error("a connection broke: {0}")]
    Connection(io::Error),
    #[error("protocol error: {0}")]
    Protocol(String),
    /// The server refused to store records.
    #[error("{server} refused {refused} of {records} records (is its memory or item size limit too small?)")]
    NotStored { server: Address, refused: u64, records: u64 },
    /// The sample file can't be written.
    #[error("{}: {}", .0.display(), .1)]
    SampleFile(std::path::PathBuf, io::Error),
    #[error("{0}")]
    Config(String),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// A worker's task panicked or was cancelled.
    #[error("a worker failed: {0}")]
    Worker(#[from] runtime::JoinError),
}
