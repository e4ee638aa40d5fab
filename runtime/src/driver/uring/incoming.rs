//! Receives and accepts: how they are armed, and what their completions bring.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::rc::Rc;

use io_uring::types::CancelBuilder;
use io_uring::{cqueue, opcode, squeue, types};

use crate::driver::uring::buffers;
use crate::driver::uring::driver::UringDriver;
use crate::driver::uring::operations::{CANCEL, Operation};
use crate::driver::uring::socket_state::{ListenerState, SocketState};
use crate::faults;

/// A receive of a part takes less than this.
const MOST: u32 = 4096;

impl UringDriver {
    /// Arms a socket's receive with the next wait: a connection that ends before needs none.
    pub(super) fn arm_receive(&self, state: &Rc<SocketState>) {
        if !std::mem::replace(&mut state.receive.borrow_mut().listed, true) {
            self.state.to_receive.borrow_mut().push(Rc::clone(state));
        }
    }

    /// Arms the receives that were asked for since the last wait, of the sockets that are still
    /// there.
    pub(super) fn arm_listed(&self) {
        // Mostly, with connections that stay open.
        if self.state.to_receive.borrow().is_empty() {
            return;
        }
        let mut listed = self.state.to_receive.take();
        for state in listed.drain(..) {
            let mut receive = state.receive.borrow_mut();
            let wanted = std::mem::take(&mut receive.listed) && !receive.dropped;
            let arm = wanted && receive.may_arm(self.options.unread_limit);
            drop(receive);
            if arm {
                self.arm_now(&state);
            }
        }
        let mut slot = self.state.to_receive.borrow_mut();
        if slot.is_empty() {
            // Keeps the memory.
            *slot = listed;
        }
    }

    /// Arms a receive, after those that have waited for buffers.
    fn arm_now(&self, state: &Rc<SocketState>) {
        let mut starved = self.state.starved.borrow_mut();
        if starved.is_empty() {
            drop(starved);
            return self.push_receive(state);
        }
        state.receive.borrow_mut().starved = true;
        starved.push_back(Rc::clone(state));
    }

    fn push_receive(&self, state: &Rc<SocketState>) {
        let fd = types::Fd(state.fd().as_raw_fd());
        let id = self.operations.borrow_mut().insert(Operation::Receive(Rc::clone(state)));
        let mut receive = state.receive.borrow_mut();
        receive.operation = NonZeroU64::new(id);
        receive.stopping = false;
        // With a length of 0 it takes what the buffer has room for.
        let length = faults::part_of(MOST) % MOST;
        // The first takes one buffer: a short connection then has none to cancel at its end.
        let is_first = !std::mem::replace(&mut receive.begun, true);
        let entry = match is_first || receive.takes_one() || length > 0 {
            true => opcode::Recv::new(fd, ptr::null_mut(), length)
                .buf_group(buffers::GROUP)
                .build()
                .flags(squeue::Flags::BUFFER_SELECT),
            false => opcode::RecvMulti::new(fd, buffers::GROUP).build(),
        };
        drop(receive);
        let errors = [libc::EINTR, libc::ECANCELED, libc::ENOBUFS];
        let entry = faults::or_fails(entry.user_data(id), &errors);
        // SAFETY: it receives into the pool, which outlives the ring, and the table's entry keeps
        // the descriptor open until the last completion.
        unsafe { self.ring.borrow_mut().push(entry) };
    }

    /// A receive has completed; `more`: it stays armed.
    pub(super) fn received(&self, state: &Rc<SocketState>, completion: &cqueue::Entry, more: bool) {
        self.state.progress.set(true);
        let result = completion.result();
        let flags = completion.flags();
        let mut receive = state.receive.borrow_mut();
        let operation = receive.operation;
        if !more {
            receive.operation = None;
            receive.cancelled = false;
        }
        let slice = cqueue::buffer_select(flags).and_then(|buffer| {
            let length = usize::try_from(result).unwrap_or(0);
            self.pool.take(buffer, length, cqueue::buffer_more(flags))
        });
        let (mut full, mut goes_on) = (false, None);
        match result {
            1.. => {
                self.count_received(state, result as usize);
                if let Some(slice) = slice {
                    let had_room = self.pool.had_room(flags, slice.len());
                    receive.push(slice, self.pool.is_low());
                    if receive.unread() >= self.options.unread_limit {
                        receive.limit_to_one();
                        full = more && !std::mem::replace(&mut receive.cancelled, true);
                    } else if !more && receive.takes_one() {
                        receive.took_one(had_room);
                    } else {
                        // The first one: the socket receives ahead of its reader from now on.
                        let needs_no_other = more || receive.stopping || receive.dropped || self.is_closed();
                        goes_on = (!needs_no_other).then_some(had_room);
                    }
                }
            }
            0 => receive.end(Ok(())),
            _ => match -result {
                // Armed again when buffers are free. A reader that waits goes on waiting.
                libc::ENOBUFS if !receive.stopping => {
                    receive.starved = true;
                    receive.limit_to_one();
                    self.state.starved.borrow_mut().push_back(Rc::clone(state));
                    return;
                }
                // Cancelled by this driver; the next read arms it again.
                libc::ECANCELED | libc::EINTR | libc::EAGAIN | libc::ENOBUFS => {}
                code => receive.end(Err(io::Error::from_raw_os_error(code))),
            },
        }
        let waker = receive.take_waker();
        drop(receive);
        if full && let Some(operation) = operation {
            self.cancel(operation.get());
        }
        match goes_on {
            Some(true) => self.arm_receive(state),
            // There is more, also if the socket is dropped soon: its close would be a reset.
            Some(false) => self.arm_now(state),
            None => {}
        }
        self.state.wakers.borrow_mut().extend(waker);
    }

    pub(super) fn count_received(&self, state: &SocketState, bytes: usize) {
        let driver = &self.state;
        driver.received.set(driver.received.get() + 1);
        driver.received_by_queue.set(driver.received_by_queue.get() + usize::from(state.in_queue));
        driver.received_bytes.set(driver.received_bytes.get() + bytes as u64);
    }

    /// Arms the receives that wait for buffers, those that have waited longest first, and no more
    /// than there are buffers: each takes one.
    pub(super) fn arm_starved(&self) {
        for _ in 0..self.pool.free() {
            let Some(state) = self.state.starved.borrow_mut().pop_front() else { break };
            // Without a waiting reader the next read arms it.
            if state.receive.borrow_mut().end_starving() {
                self.push_receive(&state);
            }
        }
    }
}

/// How many accepts of a listener are in flight at most, and so how many connections are accepted
/// that no task has asked for. Further ones wait in the backlog.
///
/// A multishot accept would take the whole backlog before it can be cancelled.
const ACCEPTS: usize = 16;

impl UringDriver {
    /// Called when a task waits for a connection.
    pub(super) fn arm_accepts(&self, state: &Rc<ListenerState>) {
        let fd = types::Fd(state.fd().as_raw_fd());
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let armed = std::mem::replace(&mut state.accepts.borrow_mut().armed, ACCEPTS);
        for _ in armed..ACCEPTS {
            let id = self.operations.borrow_mut().insert(Operation::Accept(Rc::clone(state)));
            let entry = opcode::Accept::new(fd, ptr::null_mut(), ptr::null_mut());
            let errors = [libc::EINTR, libc::ECANCELED, libc::EAGAIN];
            let entry = faults::or_fails(entry.flags(flags).build().user_data(id), &errors);
            // SAFETY: the entry's pointers are null, and the table's entry keeps the descriptor open.
            unsafe { self.ring.borrow_mut().push(entry) };
        }
    }

    /// Cancels all accepts of a listener.
    pub(super) fn cancel_accepts(&self, state: &ListenerState) {
        let of_listener = CancelBuilder::fd(types::Fd(state.fd().as_raw_fd())).all();
        let entry = opcode::AsyncCancel2::new(of_listener).build().user_data(CANCEL);
        // SAFETY: the entry has no pointers.
        unsafe { self.ring.borrow_mut().push(entry) };
    }

    /// An accept has completed.
    pub(super) fn accepted(&self, state: &ListenerState, result: i32) {
        self.state.progress.set(true);
        let mut accepts = state.accepts.borrow_mut();
        accepts.armed -= 1;
        match RawFd::from(result) {
            fd @ 0.. => {
                // SAFETY: the kernel has just opened it for this completion, and nobody else knows
                // it.
                let connection = unsafe { OwnedFd::from_raw_fd(fd) };
                // If the listener is dropped, the connection is closed here.
                if !accepts.dropped {
                    accepts.untaken.push_back(connection);
                }
            }
            code if [libc::ECANCELED, libc::EINTR, libc::EAGAIN].contains(&-code) => {}
            code => accepts.failed = Some(io::Error::from_raw_os_error(-code)),
        }
        let waker = accepts.waker.take();
        drop(accepts);
        let mut wakers = self.state.wakers.borrow_mut();
        wakers.extend(waker);
        wakers.extend(state.waiters.take());
    }
}
