//! The crate's error.

use std::io;
use std::path::{Path, PathBuf};

use crate::cpus::Cpus;
use crate::policy::Policy;

/// An error of reading the host, of a journal, or of applying a plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(
        "no interface {name:?}{}",
        if available.is_empty() { String::new() } else { format!("; available: {available}") }
    )]
    NoInterface {
        /// The requested name, or `#` and the index.
        name: String,
        /// The existing names, separated by commas.
        available: String,
    },
    #[error("cannot {operation}: {source}")]
    Kernel {
        /// What was attempted, for example "read /proc/softirqs".
        operation: String,
        source: io::Error,
    },
    /// A journal could not be read, written or removed, or the directory of journals could not be
    /// locked.
    #[error("journal {path}: {source}")]
    Journal { path: PathBuf, source: io::Error },
    /// A server to attach to can't be found, or can't be attached to.
    #[error("cannot attach to {target}: {reason}")]
    NoTarget {
        /// What was asked for, as `process 812`.
        target: String,
        reason: String,
    },
    /// Another running process has applied a policy to some of the queues.
    #[error(
        "{interface}: queues {queues} are in use by process {pid} ({policy}); stop it, or use other queues{}",
        .free.as_ref().map(|free| format!(" ({free} are free)")).unwrap_or_default()
    )]
    QueuesInUse {
        interface: String,
        policy: Policy,
        pid: u32,
        queues: Cpus,
        /// The requested queues that are free; `None` if there is none.
        free: Option<Cpus>,
    },
}

impl Error {
    pub(crate) fn journal(path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Journal { path, source }
    }

    pub(crate) fn kernel(operation: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let operation = operation.into();
        move |source| Self::Kernel { operation, source }
    }
}
