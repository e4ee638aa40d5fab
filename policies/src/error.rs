//! The crate's error.

use std::io;
use std::path::{Path, PathBuf};

use crate::cpus::Cpus;
use crate::policy::Policy;

/// An error of reading the host, of a journal, or of applying a plan.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    NoInterface {
        /// The requested name, or `#` and the index.
        name: String,
        /// The existing names, separated by commas.
        available: String,
    },
    Kernel {
        /// What was attempted, for example "read /proc/softirqs".
        operation: String,
        source: io::Error,
    },
    /// A journal could not be read, written or removed, or the directory of journals could not be
    /// locked.
    Journal { path: PathBuf, source: io::Error },
    /// A server to attach to can't be found, or can't be attached to.
    NoTarget {
        /// What was asked for, as `process 812`.
        target: String,
        reason: String,
    },
    /// Another running process has applied a policy to some of the queues.
    QueuesInUse {
        interface: String,
        policy: Policy,
        pid: u32,
        queues: Cpus,
        /// The queues of the interface that are free; `None` if there is none.
        free: Option<Cpus>,
    },
}

/// Gives an error its texts, and as its source the field `source` of the variants named.
#[doc(hidden)]
#[macro_export]
macro_rules! error_text {
    ($type:ident $(, source of $($variant:ident),+)?: $($pattern:pat => $text:literal $(, $argument:expr)*);+) => {
        impl ::std::fmt::Display for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                match self {
                    $($pattern => write!(f, $text $(, $argument)*),)+
                }
            }
        }

        impl ::std::error::Error for $type {
            $(fn source(&self) -> Option<&(dyn ::std::error::Error + 'static)> {
                match self {
                    $(Self::$variant { source, .. } => Some(source),)+
                    _ => None,
                }
            })?
        }
    };
}

error_text!(
    Error, source of Kernel, Journal:
    Self::NoInterface { name, available } => "no interface {name:?}{}{available}",
        if available.is_empty() { "" } else { "; available: " };
    Self::Kernel { operation, source } => "cannot {operation}: {source}";
    Self::Journal { path, source } => "journal {}: {source}", path.display();
    Self::NoTarget { target, reason } => "cannot attach to {target}: {reason}";
    Self::QueuesInUse { interface, policy, pid, queues, free } =>
        "{interface}: queues {queues} are in use by process {pid} ({policy}); stop it, or use other queues{}",
        free.as_ref().map(|free| format!(" ({free} are free)")).unwrap_or_default()
);

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
