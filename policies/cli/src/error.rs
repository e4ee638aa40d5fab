//! Errors of the command.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error(transparent)]
    Host(#[from] policies::Error),
    #[error(transparent)]
    Recording(#[from] policies::host::UnusableRecording),
    #[error("cannot read this process's CPU affinity: {0}")]
    Affinity(io::Error),
    #[error("cannot watch for signals or processes: {0}")]
    Signals(io::Error),
    #[error("no command to run")]
    NoCommand,
    #[error("cannot run {program}: {source}")]
    Run { program: String, source: io::Error },
}
