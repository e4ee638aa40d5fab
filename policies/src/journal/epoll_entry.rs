//! The epoll instances of other processes in a journal.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

use super::restore_outcome::RestoreOutcome;
use crate::descriptors::{EpollParams, duplicate};
use crate::host::identity::{ProcessIdentity, ProcessState};

/// An epoll instance of another process, and its parameters before they were set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EpollEntry {
    pub(crate) process: ProcessIdentity,
    /// The descriptor's number in that process.
    pub(crate) descriptor: i32,
    pub(crate) old: EpollParams,
    /// The budget of the parameters that the journal's writer sets.
    pub(crate) budget: u16,
}

impl EpollEntry {
    /// Whether the journal's writer may have set these parameters. It sets no others. So an instance that has
    /// meanwhile got the number of one that was closed, and has its own parameters, is left alone.
    pub(crate) fn owns(&self, params: EpollParams) -> bool {
        params.prefer_busy_poll == 1 && params.busy_poll_budget == self.budget
    }

    /// Whether the instance has parameters that the journal's writer has set.
    pub(super) fn is_set(&self) -> bool {
        let now = || EpollParams::read(duplicate(self.process.pid, self.descriptor)?);
        self.process.is_alive() && now().is_ok_and(|now| now != self.old && self.owns(now))
    }

    /// Sets the old parameters again.
    pub(crate) fn restore(&self) -> RestoreOutcome {
        match self.process.state() {
            ProcessState::Running => {}
            ProcessState::Ended => return RestoreOutcome::Gone,
            ProcessState::Hidden => return RestoreOutcome::of_hidden_process(),
        }
        match self.try_restore() {
            Ok(outcome) => outcome,
            // It has ended meanwhile.
            Err(_) if !self.process.is_alive() => RestoreOutcome::Gone,
            Err(error) => RestoreOutcome::Failed { reason: error.to_string() },
        }
    }

    fn try_restore(&self) -> io::Result<RestoreOutcome> {
        let epoll = match duplicate(self.process.pid, self.descriptor) {
            Ok(epoll) => epoll,
            // The process has closed it, or this number belongs to something else now.
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => return Ok(RestoreOutcome::Gone),
            Err(error) => return Err(error),
        };
        let Ok(now) = EpollParams::read(&epoll) else { return Ok(RestoreOutcome::Gone) };
        if now == self.old {
            return Ok(RestoreOutcome::Restored);
        }
        if !self.owns(now) {
            return Ok(RestoreOutcome::ChangedMeanwhile { value: format!("{now:?}") });
        }
        self.old.write(&epoll)?;
        Ok(RestoreOutcome::Restored)
    }
}

impl fmt::Display for EpollEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}, epoll instance {}", self.process.pid, self.descriptor)
    }
}
