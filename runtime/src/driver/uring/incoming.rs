//! Receives, armed once per socket, and accepts, armed once per listener: what their completions
//! bring.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;

use io_uring::{cqueue, opcode, types};

use crate::driver::uring::buffers;
use crate::driver::uring::driver::UringDriver;
use crate::driver::uring::operations::Operation;
use crate::driver::uring::socket_state::{ListenerState, SocketState};

impl UringDriver {
    pub(super) fn arm_receive(&self, state: &Rc<SocketState>) {
        let fd = types::Fd(state.fd().as_raw_fd());
        let id = self.operations.borrow_mut().insert(Operation::Receive(Rc::clone(state)));
        let mut receive = state.receive.borrow_mut();
        receive.operation = NonZeroU64::new(id);
        receive.stopping = false;
        drop(receive);
        let entry = opcode::RecvMulti::new(fd, buffers::GROUP).build().user_data(id);
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
        let mut full = false;
        match result {
            1.. => {
                self.state.received.set(self.state.received.get() + 1);
                self.state
                    .received_by_queue
                    .set(self.state.received_by_queue.get() + usize::from(state.in_queue));
                self.state.received_bytes.set(self.state.received_bytes.get() + result as u64);
                if let Some(slice) = slice {
                    receive.push(slice, self.pool.is_low());
                    full = receive.unread() >= self.options.unread_limit
                        && more
                        && !std::mem::replace(&mut receive.cancelled, true);
                }
            }
            0 => receive.end(Ok(())),
            _ => match -result {
                // Armed again when buffers are free. A reader that waits goes on waiting.
                libc::ENOBUFS if !receive.stopping => {
                    receive.starved = true;
                    self.state.starved.borrow_mut().push(Rc::clone(state));
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
        self.state.wakers.borrow_mut().extend(waker);
    }

    /// Arms the receives that ended for lack of buffers, if there are buffers again.
    pub(super) fn arm_starved(&self) {
        if self.state.starved.borrow().is_empty() || self.pool.is_empty() {
            return;
        }
        for state in self.state.starved.take() {
            // Without a waiting reader the next read arms it.
            if state.receive.borrow_mut().end_starving() {
                self.arm_receive(&state);
            }
        }
    }
}

/// The number of accepted connections that nobody has taken above which the accept is cancelled:
/// further connections wait in the backlog, as if nobody had called accept.
const UNTAKEN_LIMIT: usize = 64;

impl UringDriver {
    pub(super) fn arm_accept(&self, state: &Rc<ListenerState>) {
        let fd = types::Fd(state.fd().as_raw_fd());
        let id = self.operations.borrow_mut().insert(Operation::Accept(Rc::clone(state)));
        state.accepts.borrow_mut().operation = NonZeroU64::new(id);
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let entry = opcode::AcceptMulti::new(fd).flags(flags).build().user_data(id);
        // SAFETY: the entry has no pointers, and the table's entry keeps the descriptor open.
        unsafe { self.ring.borrow_mut().push(entry) };
    }

    /// An accept has completed; `more`: it stays armed.
    pub(super) fn accepted(&self, state: &ListenerState, result: i32, more: bool) {
        self.state.progress.set(true);
        let mut accepts = state.accepts.borrow_mut();
        let operation = accepts.operation;
        if !more {
            accepts.operation = None;
            accepts.cancelled = false;
        }
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
        let full = accepts.untaken.len() >= UNTAKEN_LIMIT
            && more
            && !std::mem::replace(&mut accepts.cancelled, true);
        let waker = accepts.waker.take();
        drop(accepts);
        if full && let Some(operation) = operation {
            self.cancel(operation.get());
        }
        let mut wakers = self.state.wakers.borrow_mut();
        wakers.extend(waker);
        wakers.extend(state.waiters.take());
    }
}
