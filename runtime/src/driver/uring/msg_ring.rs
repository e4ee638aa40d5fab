//! Wake-ups across threads: how this worker is woken, and how it wakes others.
//!
//! A worker that waits in its ring is woken by a message to that ring (`IORING_OP_MSG_RING`), which
//! is submitted with the enter that the waking worker makes anyway. Threads without a ring write
//! the eventfd, which the ring polls.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{opcode, types};

use super::driver::UringDriver;
use super::operations::{Operation, WAKE_MESSAGE, WakeMessage};
use crate::waking::wake_handle::WakeHandle;

impl UringDriver {
    /// Lets other workers wake this one by messages to its ring.
    pub(crate) fn publish_ring(&self) -> io::Result<()> {
        if self.has_msg_ring {
            self.wake.set_ring(Some(self.ring.borrow().duplicate()?));
        }
        Ok(())
    }

    /// Takes on waking another worker with the next enter; `false` if a message can't wake it. The
    /// wake-up is claimed only when the message is submitted, so another thread may wake the worker
    /// before.
    pub(crate) fn defer_wake(&self, worker: &Arc<WakeHandle>) -> bool {
        let takes = self.has_msg_ring && !self.is_closed() && worker.ring().is_some();
        if takes {
            let mut wakes = self.deferred_wakes.borrow_mut();
            if wakes.last().is_none_or(|last| !Arc::ptr_eq(last, worker)) {
                wakes.push(Arc::clone(worker));
            }
        }
        takes
    }

    /// Wakes the deferred workers now, by their eventfds.
    pub(crate) fn flush_wakes(&self) {
        if self.deferred_wakes.borrow().is_empty() {
            return;
        }
        self.deferred_wakes.take().iter().for_each(|worker| worker.wake());
    }

    /// Submits messages to the deferred workers' rings.
    pub(super) fn send_wake_messages(&self) {
        for worker in self.deferred_wakes.borrow_mut().drain(..) {
            // A worker without a ring has stopped meanwhile.
            let Some(ring) = worker.ring() else { continue };
            if !worker.claim_wake() {
                continue;
            }
            let fd = types::Fd(ring.as_raw_fd());
            let message = Operation::WakeMessage(Box::new(WakeMessage { worker, _ring: ring }));
            let id = self.operations.borrow_mut().insert(message);
            let entry = opcode::MsgRingData::new(fd, 0, WAKE_MESSAGE, None).build().user_data(id);
            // SAFETY: the entry has no pointers, and the table's entry keeps the descriptor open.
            unsafe { self.ring.borrow_mut().push(entry) };
        }
    }

    /// Ends the wait when the worker's eventfd is written. Each write completes the multishot poll
    /// once more, so the eventfd need not be read.
    pub(super) fn watch_eventfd(&self) {
        if self.eventfd_watched.replace(true) {
            return;
        }
        let fd = types::Fd(self.wake.eventfd().as_raw_fd());
        let id = self.operations.borrow_mut().insert(Operation::Eventfd);
        let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32).multi(true).build().user_data(id);
        // SAFETY: the entry has no pointers; the eventfd is open as long as `self.wake`.
        unsafe { self.ring.borrow_mut().push(entry) };
    }
}
