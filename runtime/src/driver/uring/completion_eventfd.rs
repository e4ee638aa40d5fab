//! The eventfd that the kernel writes when a ring has work, for an epoll instance to watch.

use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use io_uring::{opcode, types};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::operations::WAKE_MESSAGE;
use super::ring::Ring;

/// Below this delay the kernel signals the eventfd directly, not from an RCU callback: the end of an RCU
/// grace period takes several ticks of 1 to 10 ms.
const DIRECT_SIGNAL: Duration = Duration::from_micros(500);
/// The hypervisor, or another process, may run between the signal and its measurement.
const ATTEMPTS: u32 = 5;

/// Registers an eventfd with a ring.
///
/// # Errors
/// `Unsupported` if the kernel signals late: Linux 7.3 (as Debian ships it) writes the eventfd from an RCU
/// callback (`io_uring/eventfd.c`), some 15 ms after the work has come. A worker that waits for the eventfd
/// would be that late each time.
pub(super) fn register(ring: &mut Ring) -> io::Result<OwnedFd> {
    let eventfd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
    ring.register_eventfd(&eventfd)?;
    let mut shortest = Duration::MAX;
    for _ in 0..ATTEMPTS {
        shortest = shortest.min(signal_delay(ring, &eventfd)?);
        if shortest < DIRECT_SIGNAL {
            return Ok(eventfd);
        }
    }
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        format!("this kernel signals epoll only {} ms after a ring has work", shortest.as_millis()),
    ))
}

/// The time from a completion's cause to the eventfd's signal.
fn signal_delay(ring: &mut Ring, eventfd: &OwnedFd) -> io::Result<Duration> {
    let (mut ours, theirs) = UnixStream::pair()?;
    let entry = opcode::PollAdd::new(types::Fd(theirs.as_raw_fd()), libc::POLLIN as u32)
        .build()
        .user_data(WAKE_MESSAGE);
    // SAFETY: the entry has no pointers; the socket is open until the completion is taken.
    unsafe { ring.push(entry) };
    ring.enter(0, None)?;
    ring.arm_eventfd();
    let caused = Instant::now();
    ours.write_all(b"!")?;
    let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
    poll(&mut [PollFd::new(eventfd, PollFlags::IN)], Some(&limit))?;
    let delay = caused.elapsed();
    ring.disarm_eventfd();
    ring.enter(1, Some(Duration::from_secs(1)))?;
    ring.take_completions(&mut Vec::new());
    // Unread, the eventfd would be ready already at the next attempt.
    let mut count = [0; 8];
    match rustix::io::read(eventfd.as_fd(), &mut count) {
        Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(delay),
        Err(error) => Err(error.into()),
    }
}
