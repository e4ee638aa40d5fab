//! The bell: an eventfd that the kernel writes when a ring has work, for an epoll instance to hear.

use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use io_uring::{opcode, types};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::operations::WOKEN;
use super::queue::Queue;

/// A bell that is rung sooner than this is rung by the one who brings the work. The end of an RCU grace
/// period takes several ticks of 1 to 10 ms.
const PROMPT: Duration = Duration::from_micros(500);
/// The hypervisor, or another process, may come between the ringing and the hearing.
const ATTEMPTS: u32 = 5;

/// Gives a ring its bell.
///
/// # Errors
/// `Unsupported` where the kernel rings late: Linux 7.3 (as Debian ships it) leaves the writing of the
/// eventfd to an RCU callback (`io_uring/eventfd.c`), some 15 ms after the work has come. A worker that
/// waits for the bell would be that late each time.
pub(super) fn hang(queue: &mut Queue) -> io::Result<OwnedFd> {
    let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
    queue.ring_bell(&bell)?;
    let mut shortest = Duration::MAX;
    for _ in 0..ATTEMPTS {
        shortest = shortest.min(ring_once(queue, &bell)?);
        if shortest < PROMPT {
            return Ok(bell);
        }
    }
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        format!("this kernel tells epoll of work in a ring only after {} ms", shortest.as_millis()),
    ))
}

/// How long after its cause the bell is heard.
fn ring_once(queue: &mut Queue, bell: &OwnedFd) -> io::Result<Duration> {
    let (mut ours, theirs) = UnixStream::pair()?;
    let entry =
        opcode::PollAdd::new(types::Fd(theirs.as_raw_fd()), libc::POLLIN as u32).build().user_data(WOKEN);
    // SAFETY: nothing is pointed to; the socket is open until the completion is in.
    unsafe { queue.push(entry) };
    queue.enter(0, None)?;
    queue.listen();
    let rung = Instant::now();
    ours.write_all(b"!")?;
    let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
    poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&limit))?;
    let heard = rung.elapsed();
    queue.stop_listening();
    queue.enter(1, Some(Duration::from_secs(1)))?;
    queue.completions(&mut Vec::new());
    // Left unread it would be ready already the next time.
    let mut count = [0; 8];
    match rustix::io::read(bell.as_fd(), &mut count) {
        Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(heard),
        Err(error) => Err(error.into()),
    }
}
