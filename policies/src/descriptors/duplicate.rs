//! Descriptors of other processes.

use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// Duplicates a descriptor of another process into this one (Linux 5.6).
///
/// What it refers to stays open until the duplicate is dropped: a socket that the process closes meanwhile is closed
/// only then, and stays in the process's epoll instances until then. So drop it at once.
///
/// # Errors
/// `ESRCH` if there is no such process, `EBADF` if it has no such descriptor, `EPERM` without `CAP_SYS_PTRACE` over it,
/// `ENOSYS` on older kernels.
pub fn duplicate(pid: u32, descriptor: i32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    Ok(pidfd_getfd(&process, descriptor, PidfdGetfdFlags::empty())?)
}
