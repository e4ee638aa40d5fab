//! Which driver workers use.

use serde::{Deserialize, Serialize};

/// Which driver workers use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum DriverKind {
    /// Epoll where the values of an interface's queue are fixed and its waits poll (suppression,
    /// kernel polling with a fixed grace time or on a host that was prepared by others), or if
    /// io_uring is not available. Else uring.
    #[default]
    Auto,
    /// Only epoll: readiness, and a system call for each receive and send.
    Epoll,
    /// io_uring: a turn's receives and sends take one system call, which also polls the queue.
    Uring,
}

policies::names!(DriverKind, "driver": Auto = "auto", Epoll = "epoll", Uring = "uring");
