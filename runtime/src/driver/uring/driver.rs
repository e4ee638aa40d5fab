//! A worker's ring, its operations, and the epoll instance beside it; and wake-ups across threads.
//!
//! A worker that waits in its ring is woken by a message to that ring (`IORING_OP_MSG_RING`), which
//! is submitted with the enter that the waking worker makes anyway. Threads without a ring write
//! the eventfd, which the ring polls.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use io_uring::{cqueue, opcode, squeue, types};

use crate::driver::epoll::instance::Instance;
use crate::driver::uring::buffers::BufferPool;
use crate::driver::uring::operations::{
    ApplicationOperation, CANCEL, Operation, Operations, WAKE_MESSAGE, WakeMessage,
};
use crate::driver::uring::polling::Polling;
use crate::driver::uring::ring::{Ring, RingOptions};
use crate::driver::uring::socket_state::{InFlightSend, SocketState};
use crate::driver::wait::POLLING_TASK_BUDGET;
use crate::wake_handle::WakeHandle;

/// How many receives are gathered before their tasks run, and how many tasks run before what they
/// send goes out, if the kernel takes packets in by itself. The kernel runs 20 items of deferred
/// work per enter (`io_uring.c`, IO_LOCAL_TW_DEFAULT_MAX), and with many connections it is cheaper
/// to do more of the same in a row.
pub(super) const TASK_BUDGET: usize = 512;

/// A ring for a worker that has not started, and the memory that it shares with the kernel.
pub(crate) struct PreparedRing {
    // Fields are dropped in order: the ring first.
    ring: Ring,
    pool: BufferPool,
    features: Vec<&'static str>,
    options: RingOptions,
}

impl PreparedRing {
    pub(crate) fn new(options: RingOptions) -> io::Result<Self> {
        let (ring, features) = Ring::new(options.submissions)?;
        // SAFETY: here and in the driver the ring is dropped before the pool. Others that send the
        // ring messages may keep it open for a while, but with receives left over the pool is not
        // freed (`Drop`).
        let pool = unsafe { BufferPool::register(&ring.submitter()) }?;
        Ok(Self { ring, pool, features, options })
    }
}

/// A worker's ring, and the epoll instance beside it.
pub(crate) struct UringDriver {
    // Fields are dropped in order: the ring first, then what its operations point to.
    pub(super) ring: RefCell<Ring>,
    pub(super) operations: RefCell<Operations>,
    pub(super) pool: Rc<BufferPool>,
    pub(crate) features: Vec<&'static str>,
    pub(super) options: RingOptions,
    /// Whether rings can send each other messages.
    pub(super) has_msg_ring: bool,
    pub(crate) instance: Instance,
    pub(super) wake: Arc<WakeHandle>,
    pub(crate) polling: Polling,
    pub(super) state: DriverState,
}

/// What a driver has at hand: sockets to look at, memory that is used again, and what the present
/// wait has brought.
#[derive(Default)]
pub(super) struct DriverState {
    pub(super) to_send: RefCell<Vec<Rc<SocketState>>>,
    /// Sockets whose receive is to be armed.
    pub(super) to_receive: RefCell<Vec<Rc<SocketState>>>,
    /// The bytes that were written since sends were last submitted.
    pub(super) written_bytes: Cell<usize>,
    /// Sends that were submitted, and post no completion if they succeed.
    pub(super) submitted_sends: RefCell<Vec<u64>>,
    /// Receives that ended for lack of buffers.
    pub(super) starved: RefCell<VecDeque<Rc<SocketState>>>,
    pub(super) spare_buffers: RefCell<Vec<Vec<u8>>>,
    /// The total capacity of `spare_buffers`.
    pub(super) spare_bytes: Cell<usize>,
    #[expect(clippy::vec_box, reason = "the boxes are what is reused")]
    pub(super) spare_sends: RefCell<Vec<Box<InFlightSend>>>,
    pub(super) completions: RefCell<Vec<cqueue::Entry>>,
    /// Dropped after a batch of completions: their owners' drops may be foreign code, which may enter
    /// the ring again.
    pub(super) released: RefCell<Vec<bytes::Bytes>>,
    /// Completed operations, dropped as those: they may be the last that hold a descriptor.
    pub(super) released_operations: RefCell<Vec<Operation>>,
    /// Woken after a batch of completions: wakers may be foreign code.
    pub(super) wakers: RefCell<Vec<Waker>>,
    /// Whether an enter has taken a completion since this was reset.
    pub(super) has_completed: Cell<bool>,
    pub(super) epoll_ready: Cell<bool>,
    pub(super) epoll_watched: Cell<bool>,
    pub(super) eventfd_watched: Cell<bool>,
    /// Workers to wake with the next wait.
    pub(super) deferred_wakes: RefCell<Vec<Arc<WakeHandle>>>,
    /// Receives since the last wait has ended, and those of them by the worker's queue.
    pub(super) received: Cell<usize>,
    pub(super) received_by_queue: Cell<usize>,
    pub(super) received_bytes: Cell<u64>,
    pub(super) sent_bytes: Cell<u64>,
    /// Something has come that a task or the next turn has to process, so the worker must not
    /// sleep.
    pub(super) progress: Cell<bool>,
    /// Completions that come with the next enter.
    #[cfg(feature = "fault-injection")]
    pub(super) late: RefCell<Vec<cqueue::Entry>>,
    /// Sends that have not completed by now are given up.
    pub(super) closing: Cell<bool>,
    pub(super) closed: Cell<bool>,
}

impl UringDriver {
    /// `polls`: whether the policy busy-polls a queue.
    pub(crate) fn new(
        polls: bool,
        instance: Instance,
        wake: Arc<WakeHandle>,
        mut prepared: PreparedRing,
    ) -> io::Result<Rc<Self>> {
        let polling = Polling::new(polls)?;
        let registered = prepared.ring.enable()?;
        // From here on nothing fails.
        let PreparedRing { ring, pool, mut features, options } = prepared;
        if registered {
            features.push("REGISTERED_RING");
        }
        let has_msg_ring = ring.supports(opcode::MsgRingData::CODE);
        if has_msg_ring {
            features.push("MSG_RING");
        }
        // `Ring::new` has checked for SEND_ZC.
        features.extend(["RECV_MULTISHOT", "SEND_ZC"]);
        features.push(if pool.incremental { "PBUF_RING_INC" } else { "PBUF_RING" });
        Ok(Rc::new(Self {
            ring: RefCell::new(ring),
            operations: RefCell::default(),
            pool: Rc::new(pool),
            features,
            options,
            has_msg_ring,
            instance,
            wake,
            polling,
            state: DriverState::default(),
        }))
    }

    /// How many tasks a turn may run.
    pub(crate) fn task_budget(&self) -> usize {
        if self.polling.is_on() { POLLING_TASK_BUDGET } else { TASK_BUDGET }
    }

    /// Queues an operation of the application for the next enter, and returns its id.
    ///
    /// # Safety
    /// `operation` must own what the entry points to, and the descriptors that it names, and keep
    /// them valid until its last completion. The entry must not ask for provided buffers, for
    /// draining or for no completion, nor be linked with the next one, which is somebody else's,
    /// nor be a message to a ring of this crate.
    pub(crate) unsafe fn submit_application(
        &self,
        entry: squeue::Entry,
        operation: Rc<dyn ApplicationOperation>,
    ) -> u64 {
        let id = self.operations.borrow_mut().insert(Operation::Application(operation));
        // SAFETY: the table's entry keeps the operation until the last completion, and longer if
        // that doesn't come (`Drop`).
        unsafe { self.ring.borrow_mut().push(entry.user_data(id)) };
        id
    }

    /// Cancels an operation, which then completes with what it has done so far. The cancel request
    /// itself posts a completion only if it fails.
    pub(crate) fn cancel(&self, operation: u64) {
        let entry = opcode::AsyncCancel::new(operation).build();
        let entry = entry.flags(squeue::Flags::SKIP_SUCCESS).user_data(CANCEL);
        // SAFETY: the entry has no pointers.
        unsafe { self.ring.borrow_mut().push(entry) };
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.closed.get()
    }
}

impl Drop for UringDriver {
    fn drop(&mut self) {
        if !self.operations.borrow().is_empty() {
            // The kernel may still write to what they point to, even for a while after the ring is
            // closed (`io_ring_exit_work`), so it must never be freed.
            std::mem::forget(self.operations.take());
            std::mem::forget(Rc::clone(&self.pool));
        }
    }
}

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
            let mut wakes = self.state.deferred_wakes.borrow_mut();
            if wakes.last().is_none_or(|last| !Arc::ptr_eq(last, worker)) {
                wakes.push(Arc::clone(worker));
            }
        }
        takes
    }

    /// Wakes the deferred workers now, by their eventfds.
    pub(crate) fn flush_wakes(&self) {
        if self.state.deferred_wakes.borrow().is_empty() {
            return;
        }
        self.state.deferred_wakes.take().iter().for_each(|worker| worker.wake());
    }

    /// Submits messages to the deferred workers' rings.
    pub(super) fn send_wake_messages(&self) {
        for worker in self.state.deferred_wakes.borrow_mut().drain(..) {
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
        if self.state.eventfd_watched.replace(true) {
            return;
        }
        let fd = types::Fd(self.wake.eventfd().as_raw_fd());
        let id = self.operations.borrow_mut().insert(Operation::Eventfd);
        let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32).multi(true).build().user_data(id);
        // SAFETY: the entry has no pointers; the eventfd is open as long as `self.wake`.
        unsafe { self.ring.borrow_mut().push(entry) };
    }
}
