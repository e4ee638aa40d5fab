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
    /// Another running process has applied a policy to queues that this one wants.
    #[error(
        "{interface}: queues {queues} are taken by process {pid}, which runs {policy} on them; stop it, or \
         take other queues{}",
        .free.as_ref().map(|free| format!(" ({free} are free)")).unwrap_or_default()
    )]
    QueuesInUse {
        /// The interface.
        interface: String,
        /// The policy that it has.
        policy: crate::Policy,
        /// Who applied it.
        pid: u32,
        /// The queues that were asked for and are taken.
        queues: crate::Cpus,
        /// Those that nobody has.
        free: Option<crate::Cpus>,
    },
}

impl Error {
    pub(crate) fn kernel(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Kernel { what, source }
    }
}
