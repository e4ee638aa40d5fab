//! The parameters with which an epoll instance busy-polls. The kernel keeps them in the instance,
//! so its owner may be another process.

#![expect(unsafe_code, reason = "neither rustix nor std has these ioctls")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use crate::json::json_object;

/// `struct epoll_params` of `linux/eventpoll.h` (Linux 6.9): how one epoll instance busy-polls.
#[doc(alias = "epoll_params")]
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct EpollParams {
    /// How long a wait busy-polls before it sleeps, in microseconds.
    pub busy_poll_usecs: u32,
    /// How many packets one poll takes at most; more than 64 needs `CAP_NET_ADMIN`. The kernel
    /// takes 0 for 8.
    pub busy_poll_budget: u16,
    /// 1: the interrupt stays masked while the application polls.
    pub prefer_busy_poll: u8,
    pad: u8,
}

json_object!(EpollParams: busy_poll_usecs, busy_poll_budget, prefer_busy_poll; optional pad);

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
