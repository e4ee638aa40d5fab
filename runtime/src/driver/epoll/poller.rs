//! Busy-polls a NAPI once, through a separate epoll instance.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

use policies::epoll_params::EpollParams;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::instance::QueueSockets;
use super::sys::{self, Event};
use crate::driver::wait::POLL_PASS;

/// Polls a NAPI that a wait in epoll has forgotten, or that an enter of a ring does not poll.
///
/// The kernel drops an instance's NAPI at each empty poll, and stores it again when a packet wakes
/// one of the instance's sockets (`fs/eventpoll.c`, `ep_busy_loop` and `ep_poll_callback`). So
/// where nobody else polls the queue, an instance can't poll twice. But an instance also stores the
/// NAPI of each socket that is added (`ep_insert`). Here a second instance gets one of the worker's
/// sockets for the time of one poll. What the poll receives wakes what the worker waits in.
pub(in crate::driver) struct Poller {
    instance: OwnedFd,
    /// The socket that the last poll has added.
    last: Cell<RawFd>,
    /// How many polls in a row have failed.
    failures: Cell<u32>,
}

/// The number of consecutive failed polls after which polling is given up. A single poll may fail for
/// lack of memory, or because its socket was closed; the next poll uses another socket.
const MOST_FAILURES: u32 = 3;

impl Poller {
    pub(in crate::driver) fn new() -> io::Result<Self> {
        let instance = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Self { instance, last: Cell::new(0), failures: Cell::new(0) })
    }

    /// Sets how the instance busy-polls.
    pub(in crate::driver) fn set_params(&self, params: EpollParams) -> io::Result<()> {
        params.write(self.instance.as_fd())
    }

    pub(in crate::driver) fn has_failed(&self) -> bool {
        self.failures.get() >= MOST_FAILURES
    }

    /// Polls the NAPI once, if there is a socket to learn it from. Returns the number of system
    /// calls. If it can't poll, the watchdog does.
    pub(in crate::driver) fn poll(&self, sockets: &RefCell<QueueSockets>) -> usize {
        match self.try_poll(&sockets.borrow()) {
            Ok(calls) => {
                self.failures.set(0);
                calls
            }
            Err(error) => {
                self.failures.set(self.failures.get().saturating_add(1));
                if self.failures.get() == MOST_FAILURES {
                    tracing::warn!(%error, "a worker can't poll its queue by its own timer");
                }
                0
            }
        }
    }

    fn try_poll(&self, sockets: &QueueSockets) -> io::Result<usize> {
        // Another one each time: the flow of one may have moved to another queue.
        let next = sockets.range(self.last.get() + 1..).next();
        let Some(&number) = next.or_else(|| sockets.first()) else { return Ok(0) };
        self.last.set(number);
        // SAFETY: a socket's owner removes it before it closes it. If the number was closed
        // nevertheless, or is another descriptor's by now, the kernel refuses it or polls in vain:
        // it is only added to an epoll instance and removed.
        let socket = unsafe { BorrowedFd::borrow_raw(number) };
        let flags = EventFlags::ONESHOT | EventFlags::ET;
        epoll::add(&self.instance, socket, EventData::new_u64(0), flags)?;
        let wait = || sys::epoll_wait(self.instance.as_fd(), &mut [Event::EMPTY], Some(POLL_PASS));
        let mut calls = 3;
        let mut polled = wait();
        if matches!(polled, Ok(1..)) {
            // It is hung up, so the instance returned before it polled. Now it is disarmed.
            polled = wait();
            calls += 1;
        }
        epoll::delete(&self.instance, socket)?;
        polled.map(|_| calls)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_socket_that_is_hung_up_takes_a_second_wait_and_the_next_poll_another_socket() {
        let poller = Poller::new().unwrap();
        let (hung_up, peer) = UnixStream::pair().unwrap();
        drop(peer);
        let (open, _peer) = UnixStream::pair().unwrap();
        let mut sockets = QueueSockets::default();
        assert_eq!(poller.try_poll(&sockets).unwrap(), 0, "there is nothing to learn the NAPI from");
        sockets.extend([hung_up.as_raw_fd(), open.as_raw_fd()]);
        let calls: Vec<usize> = (0..4).map(|_| poller.try_poll(&sockets).unwrap()).collect();
        // By their numbers, of which another test may have freed a low one meanwhile.
        let is_first = hung_up.as_raw_fd() < open.as_raw_fd();
        assert_eq!(calls, if is_first { [4, 3, 4, 3] } else { [3, 4, 3, 4] });
    }

    #[test]
    fn a_number_that_was_closed_is_an_error_and_no_more() {
        let poller = Poller::new().unwrap();
        let (socket, _peer) = UnixStream::pair().unwrap();
        // A high number, which no other test gets meanwhile.
        let closed = rustix::io::fcntl_dupfd_cloexec(&socket, 200).unwrap();
        let sockets = QueueSockets::from([closed.as_raw_fd()]);
        drop(closed);
        assert_eq!(poller.try_poll(&sockets).unwrap_err().raw_os_error(), Some(libc::EBADF));
    }

    #[test]
    fn polling_has_failed_after_some_failures_in_a_row() {
        let poller = Poller::new().unwrap();
        let (socket, _peer) = UnixStream::pair().unwrap();
        let closed = rustix::io::fcntl_dupfd_cloexec(&socket, 210).unwrap();
        let sockets = RefCell::new(QueueSockets::from([socket.as_raw_fd(), closed.as_raw_fd()]));
        drop(closed);
        for _ in 0..20 {
            poller.poll(&sockets);
            assert!(!poller.has_failed(), "every other poll succeeds");
        }
        sockets.borrow_mut().remove(&socket.as_raw_fd());
        (0..MOST_FAILURES).for_each(|_| assert!(poller.poll(&sockets) == 0));
        assert!(poller.has_failed());
    }
}
