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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::net::UnixStream;

    use rustix::event::{Timespec, epoll};

    use super::*;

    /// The data of the events that an epoll instance has now.
    fn events(instance: &OwnedFd) -> Vec<u64> {
        let mut events = Vec::with_capacity(4);
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(instance, rustix::buffer::spare_capacity(&mut events), Some(&zero)).unwrap();
        events.iter().map(|event: &epoll::Event| event.data.u64()).collect()
    }

    #[test]
    fn a_closed_socket_has_events_until_its_duplicate_is_dropped() {
        let instance = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let (socket, mut peer) = UnixStream::pair().unwrap();
        let data = epoll::EventData::new_u64(7);
        epoll::add(&instance, socket.as_fd(), data, epoll::EventFlags::IN).unwrap();
        let duplicate = duplicate(std::process::id(), socket.as_raw_fd()).unwrap();
        drop(socket);
        peer.write_all(b"late").unwrap();
        assert_eq!(events(&instance), [7]);
        drop(duplicate);
        assert!(events(&instance).is_empty());
    }
}
