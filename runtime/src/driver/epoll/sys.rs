//! The system calls of the epoll driver for which there is no safe wrapper.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags};

use crate::faults;

/// One event as `epoll_wait` fills it in.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Event(libc::epoll_event);

impl Event {
    pub(crate) const EMPTY: Self = Self(libc::epoll_event { events: 0, u64: 0 });

    pub(crate) fn token(self) -> usize {
        self.0.u64 as usize
    }

    pub(crate) fn is_readable(self) -> bool {
        self.has(libc::EPOLLIN | libc::EPOLLPRI) || self.is_closed()
    }

    pub(crate) fn is_writable(self) -> bool {
        self.has(libc::EPOLLOUT) || self.has(libc::EPOLLHUP | libc::EPOLLERR)
    }

    /// The peer has stopped sending, or the connection is broken: reads will not block again.
    pub(crate) fn is_closed(self) -> bool {
        self.has(libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR)
    }

    fn has(self, flags: i32) -> bool {
        self.0.events & flags as u32 != 0
    }
}

/// Whether `epoll_pwait2` has failed with `ENOSYS` or `EPERM`.
static LACKS_PWAIT2: AtomicBool = AtomicBool::new(false);

/// Whether a wait can be shorter than a millisecond, and a poll pass reaches the NAPI. Asks the
/// kernel.
pub(crate) fn waits_in_nanoseconds() -> bool {
    let asked = epoll::create(CreateFlags::CLOEXEC)
        .map_err(io::Error::from)
        .and_then(|instance| epoll_wait(instance.as_fd(), &mut [Event::EMPTY], Some(Duration::ZERO)));
    asked.is_ok() && !LACKS_PWAIT2.load(Ordering::Relaxed)
}

/// Waits on an epoll instance. Returns how many of `events` were filled in; 0 after a timeout or a
/// signal.
///
/// `None` waits without a limit. Calls `epoll_pwait2` (Linux 5.11), whose timeout is in
/// nanoseconds: 1 ns polls the NAPI once, while 0 returns before any polling (`fs/eventpoll.c`,
/// `ep_poll`).
pub(crate) fn epoll_wait(
    epoll: BorrowedFd<'_>,
    events: &mut [Event],
    timeout: Option<Duration>,
) -> io::Result<usize> {
    if LACKS_PWAIT2.load(Ordering::Relaxed) {
        return epoll_wait_millis(epoll, events, timeout);
    }
    // As if a signal had interrupted it.
    if faults::chance(8) {
        return Ok(0);
    }
    let timespec = timeout.map(|timeout| libc::timespec {
        // 68 years at most: `time_t` has 32 bits on some platforms.
        tv_sec: i32::try_from(timeout.as_secs()).unwrap_or(i32::MAX).into(),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timespec_pointer =
        timespec.as_ref().map_or(std::ptr::null(), |timespec| timespec as *const libc::timespec);
    let capacity = libc::c_int::try_from(events.len()).unwrap_or(libc::c_int::MAX);
    let buffer = events.as_mut_ptr().cast::<libc::epoll_event>();
    // SAFETY: `buffer` points to `capacity` writable `epoll_event`s (`Event` is a transparent
    // wrapper), the timespec pointer is null or points to a live value, and the signal mask is
    // null, for which the size (last argument) is ignored.
    let result = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            epoll.as_raw_fd(),
            buffer,
            capacity,
            timespec_pointer,
            std::ptr::null::<libc::sigset_t>(),
            0usize,
        )
    };
    match event_count(result) {
        // Before Linux 5.11, and under tools that don't implement the call; or it is forbidden by a
        // seccomp filter, as io_uring often is by the same one.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
            LACKS_PWAIT2.store(true, Ordering::Relaxed);
            epoll_wait_millis(epoll, events, timeout)
        }
        result => result.inspect(|&count| faults::reorder(&mut events[..count], |_, _| false)),
    }
}

fn event_count(result: libc::c_long) -> io::Result<usize> {
    match usize::try_from(result) {
        Ok(count) => Ok(count),
        Err(_) => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            error => Err(error),
        },
    }
}

/// The wait of old kernels, which counts in milliseconds: timers fire up to 1 ms late, never early.
fn epoll_wait_millis(
    epoll: BorrowedFd<'_>,
    events: &mut [Event],
    timeout: Option<Duration>,
) -> io::Result<usize> {
    let millis = match timeout {
        None => -1,
        // A poll pass must not wait.
        Some(timeout) if timeout <= Duration::from_nanos(1) => 0,
        Some(timeout) => {
            libc::c_int::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(libc::c_int::MAX)
        }
    };
    let capacity = libc::c_int::try_from(events.len()).unwrap_or(libc::c_int::MAX);
    let buffer = events.as_mut_ptr().cast::<libc::epoll_event>();
    // SAFETY: `buffer` points to `capacity` writable `epoll_event`s (`Event` is a transparent
    // wrapper).
    let result = unsafe { libc::epoll_wait(epoll.as_raw_fd(), buffer, capacity, millis) };
    event_count(result.into())
}
