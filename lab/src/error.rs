//! Errors of experiments.

use std::io;
use std::path::{Path, PathBuf};

use policies::Cpus;

/// Why an experiment could not be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The host's network settings could not be read or changed.
    #[error(transparent)]
    Host(#[from] policies::Error),
    /// A runtime could not be started.
    #[error(transparent)]
    Runtime(#[from] runtime::BuildError),
    /// The memcached server could not be started.
    #[error(transparent)]
    Server(#[from] servers::memcached::StartError),
    /// The load could not be generated.
    #[error(transparent)]
    Load(#[from] loadgen::Error),
    /// A message between the lab and an experiment process is not valid JSON, or lacks a field.
    #[error("unreadable message between the lab and an experiment process: {0}")]
    Message(#[from] serde_json::Error),
    /// An experiment process exited before it sent what was expected.
    #[error("an experiment process exited early; its error message is above")]
    ProcessExited,
    /// No contender has a capacity that rates could be shares of.
    #[error(
        "{0}; repeat it when the machine is quieter (`lab check` says what disturbs it), or choose the rates with --rates"
    )]
    NoCapacity(String),
    /// Server and load need a core each.
    #[error("server and load need a core each, and this process may use one core only")]
    OneCore,
    /// A server that spins would take the core from those that are measured.
    #[error(
        "under a fleet all servers share one core, and one that spins would slow the others down: compare one policy with --wait spin, or another way to wait"
    )]
    SpinningContenders,
    /// The thread of kernel-thread would take a core from what is measured.
    #[error(
        "under a fleet the kernel thread of kernel-thread keeps core {core} busy all the time, also while other servers are measured, and {reason}"
    )]
    PollingThread {
        /// The thread's core.
        core: u32,
        /// What it takes the core from, and what to do.
        reason: &'static str,
    },
    /// A fleet could not load its server.
    #[error(transparent)]
    Fleet(#[from] crate::fleet::FleetError),
    /// A load process reported an error.
    #[error("load: {0}")]
    LoadProcess(String),
    /// The network work under packing can't run on these cores.
    #[error("--packing-cores {cores}: {reason}")]
    PackingCores {
        /// The requested cores.
        cores: Cpus,
        /// What is wrong with them, and what to do.
        reason: String,
    },
    /// An external program failed.
    #[error("{}: {reason}", .program.display())]
    Program {
        /// The program's path.
        program: PathBuf,
        /// What happened.
        reason: String,
    },
    /// A program is not installed.
    #[error("{} is not installed: {hint}", .program.display())]
    NotInstalled {
        /// The program, as it was named.
        program: PathBuf,
        /// What the user can do about it, as a sentence.
        hint: &'static str,
    },
    /// A server can't be attached to from outside.
    #[error("the server can't be attached to: {0}")]
    NotAttached(String),
    /// A server that was given by its command is not one that a fleet can load.
    #[error("--server: {0}")]
    ServerCommand(String),
    /// A saved report can't be read.
    #[error("{}: {reason}", .path.display())]
    SavedReport {
        /// The report's file.
        path: PathBuf,
        /// Why it can't be read, and what to do.
        reason: String,
    },
}

impl Error {
    pub(crate) fn program(program: &Path, reason: impl std::fmt::Display) -> Self {
        Self::Program { program: program.to_owned(), reason: reason.to_string() }
    }
}
