//! The crate's error.

use std::io;
use std::path::PathBuf;

/// What can go wrong between a policy and the host.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No interface of that name in this network namespace.
    #[error("no interface {name:?} here; there are: {known}")]
    NoInterface {
        /// The name that was asked for.
        name: String,
        /// The names that exist, with commas between them.
        known: String,
    },
    /// The kernel could not be asked.
    #[error("cannot {what}: {source}")]
    Kernel {
        /// What was tried.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A journal could not be read or written.
    #[error("journal {path}: {source}")]
    Journal {
        /// The file or folder.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// Another running process has applied a policy to this interface.
    #[error(
        "{interface} already has policy {policy} applied by process {pid}, which is still running; stop it first"
    )]
    Taken {
        /// The interface.
        interface: String,
        /// The policy that it has.
        policy: crate::Policy,
        /// Who applied it.
        pid: u32,
    },
}

impl Error {
    pub(crate) fn kernel(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Kernel { what, source }
    }
}
