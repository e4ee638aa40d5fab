//! Errors of runs, and of values that are written as text in flags.

use std::io;
use std::time::Duration;

use crate::address::Address;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("cannot connect to {server}: {source}")]
    Connect { server: Address, source: io::Error },
    #[error("{server} rejected the credentials of {user:?}: check the password and the protocol")]
    Refused { server: Address, user: String },
    #[error("agent {agent}: {reason}")]
    Agent { agent: String, reason: String },
    #[error("a connection broke: {0}")]
    Connection(io::Error),
    #[error("all connections broke, the last one to {server}: {source}")]
    AllBroken { server: Address, source: io::Error },
    #[error("{server} has not answered for {} s while records were stored (does it speak this protocol?)", .time.as_secs())]
    NoAnswer { server: Address, time: Duration },
    #[error("protocol error: {0}")]
    Protocol(String),
    #[error("{server} refused {refused} of {records} records (is its memory or item size limit too small?)")]
    NotStored { server: Address, refused: u64, records: u64 },
    #[error("{}: {}", .0.display(), .1)]
    SampleFile(std::path::PathBuf, io::Error),
    #[error("{0}")]
    Config(String),
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    #[error("a worker failed: {0}")]
    Worker(#[from] runtime::JoinError),
}
