//! A process whose end the driver watches.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::driver::readiness::{Direction, SourceKind};
use crate::io::AsyncFd;

/// A child process that has not been reaped, and its pidfd, which is readable once the process has
/// ended.
#[derive(Debug)]
pub(super) struct WatchedProcess {
    child: Child,
    pidfd: AsyncFd<OwnedFd>,
}

impl WatchedProcess {
    /// Registers the child's pidfd with the calling worker's driver. The child must not have been
    /// waited for, as its process id may have been reused then. On an error the child is returned,
    /// too.
    pub(super) fn new(child: Child) -> Result<Self, (io::Error, Child)> {
        let watch = |child: &Child| {
            let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
            AsyncFd::new(pidfd, SourceKind::Other)
        };
        match watch(&child) {
            Ok(pidfd) => Ok(Self { child, pidfd }),
            Err(error) => Err((error, child)),
        }
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// By the pidfd: the number may be another process's by now, if somebody else has reaped the
    /// child.
    pub(super) fn kill(&self) -> io::Result<()> {
        Ok(pidfd_send_signal(self.pidfd.get_ref(), Signal::KILL)?)
    }

    pub(super) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits until the process has ended, and reaps it.
    pub(super) async fn wait(&mut self) -> io::Result<ExitStatus> {
        let Self { child, pidfd } = self;
        let reap = |_: &OwnedFd| -> io::Result<ExitStatus> {
            child.try_wait()?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
        };
        pidfd.io(Direction::Read, reap).await
    }

    pub(super) fn into_child(self) -> Child {
        self.child
    }
}
