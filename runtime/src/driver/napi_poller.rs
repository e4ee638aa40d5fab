//! Polls a NAPI that the waiting epoll instance has forgotten.
//!
//! The kernel drops an instance's NAPI at each empty poll, and stores it again when a packet wakes
//! one of the instance's sockets (`fs/eventpoll.c`, `ep_busy_loop` and `ep_poll_callback`). So
//! where nobody else polls the queue, an instance can't poll twice. But an instance also stores the
//! NAPI of each socket that is added (`ep_insert`). Here a second instance gets one of the worker's
//! sockets for the time of one poll. What the poll receives wakes the instance that the worker
//! waits in.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use policies::epoll_params::EpollParams;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::epoll_sys::{self, Event};
use super::wait::POLL_PASS;

pub(super) struct NapiPoller {
    instance: OwnedFd,
    sockets: RefCell<Sockets>,
    /// The index, modulo their number, of the socket that the next poll adds.
    next: Cell<usize>,
}

#[derive(Default)]
struct Sockets {
    list: Vec<RawFd>,
    positions: HashMap<RawFd, usize>,
}

impl NapiPoller {
    pub(super) fn new() -> io::Result<Self> {
        let instance = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Self { instance, sockets: RefCell::default(), next: Cell::new(0) })
    }

    /// Sets how the instance busy-polls.
    pub(super) fn set_params(&self, params: EpollParams) -> io::Result<()> {
        params.write(self.instance.as_fd())
    }

    /// Takes in a socket of the NAPI, which has to be [removed](Self::remove) before it is closed.
    pub(super) fn add(&self, socket: BorrowedFd<'_>) {
        let mut sockets = self.sockets.borrow_mut();
        let position = sockets.list.len();
        sockets.list.push(socket.as_raw_fd());
        sockets.positions.insert(socket.as_raw_fd(), position);
    }

    pub(super) fn remove(&self, socket: BorrowedFd<'_>) {
        let mut sockets = self.sockets.borrow_mut();
        let Some(position) = sockets.positions.remove(&socket.as_raw_fd()) else { return };
        sockets.list.swap_remove(position);
        if let Some(&moved) = sockets.list.get(position) {
            sockets.positions.insert(moved, position);
        }
    }

    /// Polls the NAPI once, if there is a socket to learn it from. Returns the number of system
    /// calls.
    pub(super) fn poll(&self) -> io::Result<usize> {
        let sockets = self.sockets.borrow();
        // Another one each time: the flow of one may have moved to another queue.
        let position = self.next.get().checked_rem(sockets.list.len()).unwrap_or(0);
        let Some(&number) = sockets.list.get(position) else { return Ok(0) };
        self.next.set(position + 1);
        // SAFETY: a socket's owner removes it before it closes it. If the number was closed
        // nevertheless, or is another descriptor's by now, the kernel refuses it or polls in vain:
        // it is only added to an epoll instance and removed.
        let socket = unsafe { epoll_sys::borrow(number) };
        let flags = EventFlags::ONESHOT | EventFlags::ET;
        epoll::add(&self.instance, socket, EventData::new_u64(0), flags)?;
        let wait = || epoll_sys::epoll_wait(self.instance.as_fd(), &mut [Event::EMPTY], Some(POLL_PASS));
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
    use super::*;

    fn numbers(poller: &NapiPoller) -> Vec<RawFd> {
        let sockets = poller.sockets.borrow();
        for (position, number) in sockets.list.iter().enumerate() {
            assert_eq!(sockets.positions[number], position);
        }
        assert_eq!(sockets.list.len(), sockets.positions.len());
        sockets.list.clone()
    }

    #[test]
    fn sockets_are_found_after_others_were_removed() {
        let poller = NapiPoller::new().unwrap();
        let pairs: Vec<_> = (0..3).map(|_| std::os::unix::net::UnixStream::pair().unwrap()).collect();
        let [a, b, c] = [&pairs[0].0, &pairs[1].0, &pairs[2].0];
        [a, b, c].iter().for_each(|socket| poller.add(socket.as_fd()));
        poller.remove(a.as_fd());
        assert_eq!(numbers(&poller), [c.as_raw_fd(), b.as_raw_fd()]);
        poller.remove(a.as_fd());
        poller.remove(b.as_fd());
        assert_eq!(numbers(&poller), [c.as_raw_fd()]);
        poller.remove(c.as_fd());
        assert_eq!((numbers(&poller), poller.poll().unwrap()), (Vec::new(), 0));
    }

    #[test]
    fn a_socket_that_is_hung_up_takes_a_second_wait_and_the_next_poll_another_socket() {
        let poller = NapiPoller::new().unwrap();
        let (hung_up, peer) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(peer);
        let (open, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        poller.add(hung_up.as_fd());
        poller.add(open.as_fd());
        let calls: Vec<usize> = (0..4).map(|_| poller.poll().unwrap()).collect();
        assert_eq!(calls, [4, 3, 4, 3]);
    }

    #[test]
    fn a_number_that_was_closed_is_an_error_and_no_more() {
        let poller = NapiPoller::new().unwrap();
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        // A high number, which no other test gets meanwhile.
        let closed = rustix::io::fcntl_dupfd_cloexec(&socket, 200).unwrap();
        poller.add(closed.as_fd());
        drop(closed);
        assert_eq!(poller.poll().unwrap_err().raw_os_error(), Some(libc::EBADF));
    }
}
