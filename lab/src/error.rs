//! Errors of experiments.

use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Host(#[from] policies::Error),
    #[error(transparent)]
    Runtime(#[from] runtime::BuildError),
    #[error(transparent)]
    Server(#[from] servers::memcached::StartError),
    #[error(transparent)]
    Load(#[from] loadgen::Error),
    #[error("unreadable message between the lab and an experiment process: {0}")]
    Message(#[from] serde_json::Error),
    #[error("an experiment process exited early; its error message is above")]
    ProcessExited,
    #[error(
        "{0}; repeat it when the machine is quieter (`lab check` says what disturbs it), or choose the rates with --rates"
    )]
    NoCapacity(String),
    #[error("server and load need a core each, and this process may use one core only")]
    OneCore,
    #[error(
        "under a fleet the kernel thread of kernel-thread keeps core {core} busy all the time, also while other servers are measured, and {reason}"
    )]
    PollingThread { core: u32, reason: &'static str },
    #[error(transparent)]
    Fleet(#[from] crate::fleet::FleetError),
    #[error("load: {0}")]
    LoadProcess(String),
    #[error("{}: {reason}", .program.display())]
    Program { program: PathBuf, reason: String },
    #[error("{} is not installed: {hint}", .program.display())]
    NotInstalled { program: PathBuf, hint: &'static str },
    #[error("the server can't be attached to: {0}")]
    NotAttached(String),
    #[error("--server: {0}")]
    ServerCommand(String),
    #[error("{}: {reason}", .path.display())]
    SavedReport { path: PathBuf, reason: String },
}

impl Error {
    pub(crate) fn program(program: &Path, reason: impl std::fmt::Display) -> Self {
        Self::Program { program: program.to_owned(), reason: reason.to_string() }
    }
}
