//! The listeners of other processes in a journal.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::restore_outcome::RestoreOutcome;
use crate::descriptors::{duplicate, stop_steering};
use crate::host::identity::{ProcessIdentity, ProcessState};

/// A listener of another process, whose reuseport group chooses by a program of the journal's writer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ListenerEntry {
    pub(crate) process: ProcessIdentity,
    /// The descriptor's number in that process.
    pub(crate) descriptor: i32,
}

impl ListenerEntry {
    /// Removes the program. The group chooses by the connection's hash again.
    pub(crate) fn restore(&self) -> RestoreOutcome {
        match self.process.state() {
            ProcessState::Running => {}
            ProcessState::Ended => return RestoreOutcome::Gone,
            ProcessState::Hidden => return RestoreOutcome::of_hidden_process(),
        }
        let result = duplicate(self.process.pid, self.descriptor).and_then(|socket| stop_steering(&socket));
        match result.map_err(|error| (error.raw_os_error(), error)) {
            Ok(()) => RestoreOutcome::Restored,
            // It was not set yet, or removed by somebody else.
            Err((Some(libc::ENOENT), _)) => RestoreOutcome::Restored,
            // The listener was closed, and the number may be that of something else.
            Err((Some(libc::EBADF | libc::ENOTSOCK | libc::EINVAL | libc::ENOPROTOOPT), _)) => {
                RestoreOutcome::Gone
            }
            Err(_) if !self.process.is_alive() => RestoreOutcome::Gone,
            Err((_, error)) => RestoreOutcome::Failed { reason: error.to_string() },
        }
    }
}

impl fmt::Display for ListenerEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}, listener {}", self.process.pid, self.descriptor)
    }
}
