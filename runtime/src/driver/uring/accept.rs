//! Accepts: one multishot operation per listener, which delivers connection after connection.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;

use io_uring::{opcode, types};

use super::driver::UringDriver;
use super::listener_state::ListenerState;
use super::operations::Operation;

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
        self.progress.set(true);
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
        let mut wakers = self.wakers.borrow_mut();
        wakers.extend(waker);
        wakers.extend(state.waiters.take());
    }
}
