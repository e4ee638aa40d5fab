//! What the kernel keeps about polling in descriptors: the parameters of an epoll instance, and the
//! options of a socket. Their owner may be another process.

#![expect(unsafe_code, reason = "neither rustix nor std has these ioctls and socket options")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use serde::{Deserialize, Serialize};

use crate::host::identity::ProcessIdentity;

/// `struct epoll_params` of `linux/eventpoll.h` (Linux 6.9): how one epoll instance busy-polls.
#[doc(alias = "epoll_params")]
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EpollParams {
    /// How long a wait busy-polls before it sleeps, in microseconds.
    pub busy_poll_usecs: u32,
    /// How many packets one poll takes at most; more than 64 needs `CAP_NET_ADMIN`. The kernel
    /// takes 0 for 8.
    pub busy_poll_budget: u16,
    /// 1: the interrupt stays masked while the application polls.
    pub prefer_busy_poll: u8,
    #[serde(skip)]
    pad: u8,
}

const EPIOCSPARAMS: libc::Ioctl = 0x4008_8a01;
const EPIOCGPARAMS: libc::Ioctl = 0x8008_8a02_u32 as libc::Ioctl;

impl EpollParams {
    /// The parameters of an instance whose waits poll, and suspend the interrupt while they find
    /// events.
    pub fn polling(busy_poll_usecs: u32, busy_poll_budget: u16) -> Self {
        Self { busy_poll_usecs, busy_poll_budget, prefer_busy_poll: 1, pad: 0 }
    }

    /// Reads an epoll instance's parameters (`EPIOCGPARAMS`).
    ///
    /// # Errors
    /// `ENOTTY` before Linux 6.9, `EINVAL` or `ENOTTY` if the descriptor is none of an epoll
    /// instance.
    #[doc(alias = "EPIOCGPARAMS")]
    pub fn read(epoll: impl AsFd) -> io::Result<Self> {
        let mut params = Self::default();
        // SAFETY: EPIOCGPARAMS writes one `struct epoll_params` through a pointer to a live value
        // of that layout; every bit pattern is valid for its integer fields.
        let result = unsafe { libc::ioctl(epoll.as_fd().as_raw_fd(), EPIOCGPARAMS, &raw mut params) };
        if result == 0 { Ok(params) } else { Err(io::Error::last_os_error()) }
    }

    /// Sets an epoll instance's parameters (`EPIOCSPARAMS`). They hold for every process that has
    /// the instance.
    ///
    /// # Errors
    /// As [`EpollParams::read`]; `EPERM` for a budget above 64 without `CAP_NET_ADMIN`, `EINVAL`
    /// for `busy_poll_usecs` above `i32::MAX`.
    #[doc(alias = "EPIOCSPARAMS")]
    pub fn write(self, epoll: impl AsFd) -> io::Result<()> {
        // SAFETY: EPIOCSPARAMS reads one `struct epoll_params`, which `EpollParams` mirrors
        // (`repr(C)`, 8 bytes), through a pointer that is valid for the call.
        let result = unsafe { libc::ioctl(epoll.as_fd().as_raw_fd(), EPIOCSPARAMS, &raw const self) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

const SO_ATTACH_REUSEPORT_CBPF: libc::c_int = 51;
const SO_INCOMING_NAPI_ID: libc::c_int = 56;
const SO_DETACH_REUSEPORT_BPF: libc::c_int = 68;

/// The id of the NAPI that a socket's packets come from; 0 if it has none (loopback, Unix sockets,
/// listeners, kernels without busy polling, descriptors that are no sockets).
#[doc(alias = "SO_INCOMING_NAPI_ID")]
pub fn incoming_napi_id(socket: &impl AsFd) -> u32 {
    let mut id: libc::c_uint = 0;
    let mut length = size_of::<libc::c_uint>() as libc::socklen_t;
    // SAFETY: the option's value is one `unsigned int`; both pointers are to live values, and
    // `length` holds the size of the first.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_INCOMING_NAPI_ID,
            (&raw mut id).cast(),
            &raw mut length,
        )
    };
    if result == 0 { id } else { 0 }
}

/// The most entries of a steering table: a program has at most 4096 instructions
/// (`linux/bpf_common.h`, BPF_MAXINSNS).
const MAX_STEERED: usize = 2000;

/// Makes a reuseport group choose the listener by what the packet has as its receive queue: by the
/// table of such numbers and the positions of listeners, in the order in which they joined the
/// group. A number that is not in the table gives listener `number % listeners`. What comes by
/// loopback, which has no queues, has number 0; with `hashes_loopback` the kernel chooses for it by
/// hash, as without a program.
///
/// # Errors
/// `InvalidInput` for a table of more than 2000 entries, or the error of the system call: `EINVAL`
/// if the socket is not in a reuseport group.
#[doc(alias = "SO_ATTACH_REUSEPORT_CBPF")]
pub fn steer_by_queue(
    socket: &impl AsFd,
    table: &[(u32, u32)],
    listeners: u32,
    hashes_loopback: bool,
) -> io::Result<()> {
    // Classic BPF (`linux/filter.h`). An absolute load from SKF_AD_OFF + SKF_AD_QUEUE gives the
    // packet's queue. On hardware and tun that is the queue plus one, on veth the queue. SKF_AD_OFF +
    // SKF_AD_HATYPE gives the type of its interface.
    const LOAD_ABSOLUTE: u16 = 0x20;
    const MODULO: u16 = 0x94;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const RETURN_A: u16 = 0x16;
    const QUEUE: u32 = 0xffff_f000 + 24;
    const INTERFACE_TYPE: u32 = 0xffff_f000 + 28;
    if table.len() > MAX_STEERED {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let instruction = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
    let mut program = Vec::new();
    if hashes_loopback {
        program.extend([
            instruction(LOAD_ABSOLUTE, 0, INTERFACE_TYPE),
            instruction(JUMP_IF_EQUAL, 1, libc::ARPHRD_LOOPBACK.into()),
            // Out of the group's range (`net/core/sock_reuseport.c`, `run_bpf_filter`).
            instruction(RETURN, 0, u32::MAX),
        ]);
    }
    program.push(instruction(LOAD_ABSOLUTE, 0, QUEUE));
    for &(queue, listener) in table {
        program.extend([instruction(JUMP_IF_EQUAL, 1, queue), instruction(RETURN, 0, listener)]);
    }
    program.extend([instruction(MODULO, 0, listeners.max(1)), instruction(RETURN_A, 0, 0)]);
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the pointer and the length describe one live `sock_fprog` whose `filter` points to
    // `len` instructions that live in this frame, and which the kernel copies during the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Removes a reuseport group's program: it chooses the listener by the connection's hash again.
///
/// # Errors
/// `ENOENT` if the group has no program, `EINVAL` if the socket is in no group.
#[doc(alias = "SO_DETACH_REUSEPORT_BPF")]
pub fn stop_steering(socket: &impl AsFd) -> io::Result<()> {
    let unused: libc::c_int = 0;
    // SAFETY: the pointer and the length describe one live `int`, which the kernel requires and
    // ignores.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_DETACH_REUSEPORT_BPF,
            (&raw const unused).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

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
        let mut earlier = serde_json::to_value(&own).unwrap();
        earlier["start"] = 1.into();
        let earlier: ProcessIdentity = serde_json::from_value(earlier).unwrap();
        let error = Descriptors::of(&earlier).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::SRCH.raw_os_error()));
    }
}
