//! Descriptors of other processes (`pidfd_getfd(2)`).

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::host::process::ProcessIdentity;

/// Duplicates a descriptor of another process into this one (Linux 5.6).
///
/// What it refers to stays open until the duplicate is dropped: a socket that the process closes
/// meanwhile is closed only then, and stays in the process's epoll instances until then. So drop it
/// at once.
///
/// # Errors
/// `ESRCH` if there is no such process, `EBADF` if it has no such descriptor, `EPERM` without
/// `CAP_SYS_PTRACE` over it, `ENOSYS` on older kernels.
pub fn duplicate(pid: u32, descriptor: i32) -> io::Result<OwnedFd> {
    Descriptors(open_process(pid)?).duplicate(descriptor)
}

fn open_process(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// The descriptors of one process, and never of a later one with its id.
#[derive(Debug)]
pub(crate) struct Descriptors(OwnedFd);

impl Descriptors {
    /// # Errors
    /// `ESRCH` if the process has ended.
    pub(crate) fn of(process: &ProcessIdentity) -> io::Result<Self> {
        let opened = open_process(process.pid)?;
        // Looked at after it was opened: what was opened is the process, or had ended before.
        match process.is_alive() {
            true => Ok(Self(opened)),
            false => Err(Errno::SRCH.into()),
        }
    }

    pub(crate) fn duplicate(&self, descriptor: i32) -> io::Result<OwnedFd> {
        Ok(pidfd_getfd(&self.0, descriptor, PidfdGetfdFlags::empty())?)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

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
        // A process that another test starts has both until it runs its program.
        let end = Instant::now() + Duration::from_secs(10);
        while !events(&instance).is_empty() {
            assert!(Instant::now() < end, "the closed socket still has events");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_later_process_with_the_same_id_is_not_the_one_whose_descriptors_were_meant() {
        let (socket, _peer) = UnixStream::pair().unwrap();
        let own = ProcessIdentity::current();
        assert!(Descriptors::of(&own).unwrap().duplicate(socket.as_raw_fd()).is_ok());
        let mut earlier = own;
        earlier.start = 1;
        let error = Descriptors::of(&earlier).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::SRCH.raw_os_error()));
    }
}
