//! Wakes across threads: how this worker is woken, and how it wakes others.
//!
//! A worker that waits in its ring is woken by a message to that ring (`IORING_OP_MSG_RING`), which
//! goes out with the enter that the waking worker makes anyway. Threads without a ring write the
//! eventfd, which the ring watches.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{opcode, types};

use super::operations::{Operation, WOKEN, Wake};
use super::{Mode, RingDriver};
use crate::shared::WorkerShared;

impl RingDriver {
    /// Has other workers wake this one by messages.
    pub(crate) fn publish(&self, shared: &WorkerShared) -> io::Result<()> {
        if self.mode == Mode::Uring && self.messages {
            shared.set_ring(Some(self.queue.borrow().duplicate()?));
        }
        Ok(())
    }

    /// Takes over the duty of waking another worker; `false` where no message can. The wake-up is claimed
    /// when it goes out, so that others need not wait for it.
    pub(crate) fn take_wake(&self, worker: &Arc<WorkerShared>) -> bool {
        let takes = self.mode == Mode::Uring && self.messages && !self.is_closed() && worker.ring().is_some();
        if takes {
            let mut wakes = self.wakes.borrow_mut();
            if wakes.last().is_none_or(|last| !Arc::ptr_eq(last, worker)) {
                wakes.push(Arc::clone(worker));
            }
        }
        takes
    }

    /// Wakes by eventfd whom it has taken over to wake.
    pub(crate) fn flush_wakes(&self) {
        if self.wakes.borrow().is_empty() {
            return;
        }
        self.wakes.take().iter().for_each(|worker| worker.wake_up());
    }

    /// Makes submissions of the wakes.
    pub(super) fn send_wakes(&self) {
        for worker in self.wakes.borrow_mut().drain(..) {
            // The worker may have stopped meanwhile, and nobody is to be woken.
            let Some(ring) = worker.ring() else { continue };
            if !worker.claim_wake() {
                continue;
            }
            let fd = types::Fd(ring.as_raw_fd());
            let wake = Operation::Wake(Box::new(Wake { worker, _ring: ring }));
            let id = self.operations.borrow_mut().insert(wake);
            let entry = opcode::MsgRingData::new(fd, 0, WOKEN, None).build().user_data(id);
            // SAFETY: nothing is pointed to, and the table's entry keeps the descriptor open.
            unsafe { self.queue.borrow_mut().push(entry) };
        }
    }

    /// Has the wait end when the worker's eventfd is written. Each write completes the poll once more,
    /// so it need not be read.
    pub(super) fn watch_eventfd(&self, shared: &WorkerShared) {
        if self.eventfd_watched.replace(true) {
            return;
        }
        let fd = types::Fd(shared.wake.as_raw_fd());
        let id = self.operations.borrow_mut().insert(Operation::Eventfd);
        let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32).multi(true).build().user_data(id);
        // SAFETY: nothing is pointed to; the eventfd is open as long as the worker, which owns this.
        unsafe { self.queue.borrow_mut().push(entry) };
    }
}
