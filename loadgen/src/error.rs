//! Errors of runs.

use std::io;

use crate::address::Address;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A server can't be reached, or doesn't respond in time.
    #[error("cannot connect to {server}: {source}")]
    Connect { server: Address, source: io::Error },
    /// A server doesn't accept the user's password.
    #[error("{server} rejected the credentials of {user:?}: check the password and the protocol")]
    Refused { server: Address, user: String },
    /// An agent can't join the run.
    #[error("agent {agent}: {reason}")]
    Agent { agent: String, reason: String },
    /// A connection was closed or reset during the run.
    #[error("a connection broke: {0}")]
    Connection(io::Error),
    /// A response is not of the protocol, or doesn't belong to its request.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// Records could not be stored before the run.
    #[error("{server} refused {refused} of {records} records (is its memory or item size limit too small?)")]
    NotStored { server: Address, refused: u64, records: u64 },
    /// The file with one line per request can't be written.
    #[error("{}: {}", .0.display(), .1)]
    SampleFile(std::path::PathBuf, io::Error),
    /// The configuration can't be run.
    #[error("{0}")]
    Config(String),
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// A worker's task panicked or was cancelled.
    #[error("a worker failed: {0}")]
    Worker(#[from] runtime::JoinError),
}
