//! The io_uring driver: receives and sends of streams are operations of a ring; all else keeps to the
//! epoll driver.
//!
//! As `uring` the ring is the wait, and watches the epoll instance. As `hybrid` the epoll instance is
//! the wait, because only epoll suspends a queue's interrupts (`napi_suspend_irqs` has one caller,
//! `fs/eventpoll.c`), and it watches the ring: its poll pass brings the packets, and one enter
//! afterwards carries all receives and sends of the turn.

mod accept;
mod bell;
mod operations;
mod pool;
mod queue;
mod receives;
mod sends;
mod socket;
mod wakes;

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use io_uring::{cqueue, opcode, types};

pub use self::accept::RingListener;
use self::operations::{CANCEL, Operation, Operations, WOKEN};
use self::pool::Pool;
use self::queue::{Features, Queue};
use self::sends::break_off;
use self::socket::{InFlight, SocketState};
pub use self::socket::{Received, RingSocket};
use super::epoll::{EpollDriver, Wait, Woken};
use crate::shared::WorkerShared;

/// What waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// `io_uring_enter`.
    Uring,
    /// `epoll_pwait2`.
    Hybrid,
}

/// Answers to so many connections go out after the queue has been polled once more: the poll brings
/// what came meanwhile, and one enter carries these sends and those receives. Fewer go out first, so
/// that they don't wait for the poll.
const APART: usize = 8;
/// After a poll that brought hardly anything, so many turns send first before one polls first again.
const SEND_FIRST: u32 = 32;
/// How many receives are gathered before their tasks run, and how many tasks run before what they send
/// goes out, where the kernel takes packets in by itself. The kernel runs 20 pieces of deferred work an
/// enter (`io_uring.c`, IO_LOCAL_TW_DEFAULT_MAX), and with many connections it is cheaper to do more of
/// the same in a row.
const BATCH: usize = 512;
/// How long a driver that closes waits for peers to take what was written, and then for the last
/// completions.
const DRAIN: Duration = Duration::from_secs(2);
const DRAIN_STEP: Duration = Duration::from_millis(10);

/// Whether sends may wait for a poll. It pays where packets come all the time. Where all clients wait
/// for these very sends, the poll finds nothing, and the kernel takes that for the end of the traffic.
#[derive(Default)]
struct Apart {
    send_first: Cell<u32>,
}

impl Apart {
    fn may(&self) -> bool {
        let left = self.send_first.get();
        self.send_first.set(left.saturating_sub(1));
        left == 0
    }

    fn note(&self, paid: bool) {
        self.send_first.set(if paid { 0 } else { SEND_FIRST });
    }
}

/// A worker's ring, and the epoll instance beside it.
pub(crate) struct RingDriver {
    // Fields are dropped in order: the ring first, then what its operations point to.
    queue: RefCell<Queue>,
    operations: RefCell<Operations>,
    pool: Rc<Pool>,
    mode: Mode,
    features: Features,
    /// Whether rings can send each other messages.
    messages: bool,
    epoll: EpollDriver,
    /// Written by the kernel when the ring has work, for the epoll instance to hear: the ring's own
    /// descriptor wakes nobody when work is deferred (`io_uring.c`, `io_req_local_work_add`).
    _bell: Option<OwnedFd>,
    /// Sockets with something to send.
    to_send: RefCell<Vec<Rc<SocketState>>>,
    /// Sends that were submitted and make no completion if they succeed.
    sending: RefCell<Vec<u64>>,
    /// Receives that ended for lack of buffers.
    starved: RefCell<Vec<Rc<SocketState>>>,
    spares: RefCell<Vec<Vec<u8>>>,
    spare_bytes: Cell<usize>,
    #[expect(clippy::vec_box, reason = "the boxes are what is used again")]
    spare_sends: RefCell<Vec<Box<InFlight>>>,
    completions: RefCell<Vec<cqueue::Entry>>,
    /// Freed when a batch of completions is through: they may have an owner that does as it likes.
    released: RefCell<Vec<bytes::Bytes>>,
    /// Woken when a batch of completions is through: they may be foreign, and do as they like.
    wakers: RefCell<Vec<Waker>>,
    /// Whether the ring polls a NAPI.
    polls: Cell<bool>,
    epoll_ready: Cell<bool>,
    epoll_watched: Cell<bool>,
    eventfd_watched: Cell<bool>,
    /// Workers that are to be woken with the next wait.
    wakes: RefCell<Vec<Arc<WorkerShared>>>,
    received: Cell<usize>,
    received_bytes: Cell<u64>,
    /// Something has come that a task, or the next turn, is to take up: no time to sleep.
    progress: Cell<bool>,
    apart: Apart,
    /// Sends that are not over now never will be.
    closing: Cell<bool>,
    closed: Cell<bool>,
}

impl RingDriver {
    pub(crate) fn new(mode: Mode, epoll: EpollDriver) -> io::Result<Rc<Self>> {
        let (mut queue, mut features) = Queue::new()?;
        let bell = match mode {
            Mode::Hybrid => {
                let bell = bell::hang(&mut queue)?;
                epoll.watch_ring(bell.as_fd())?;
                Some(bell)
            }
            Mode::Uring => None,
        };
        // SAFETY: from here on nothing fails. The driver drops its queue before the pool; the ring may
        // be kept open for a while by others that send it messages, but with receives left over the
        // pool is not freed (`Drop`).
        let pool = unsafe { Pool::register(&queue.submitter()) }?;
        let messages = queue.supports(opcode::MsgRingData::CODE);
        if messages && mode == Mode::Uring {
            features.0.push("MSG_RING");
        }
        // SEND_ZC is what `Queue::new` asks for.
        features.0.extend(["ACCEPT_MULTISHOT", "RECV_MULTISHOT", "SEND_ZC"]);
        features.0.push(if pool.is_incremental() { "PBUF_RING_INC" } else { "PBUF_RING" });
        Ok(Rc::new(Self {
            queue: RefCell::new(queue),
            operations: RefCell::default(),
            pool,
            mode,
            features,
            messages,
            epoll,
            _bell: bell,
            to_send: RefCell::default(),
            sending: RefCell::default(),
            starved: RefCell::default(),
            spares: RefCell::default(),
            spare_bytes: Cell::new(0),
            spare_sends: RefCell::default(),
            completions: RefCell::default(),
            released: RefCell::default(),
            wakers: RefCell::default(),
            polls: Cell::new(false),
            epoll_ready: Cell::new(false),
            epoll_watched: Cell::new(false),
            eventfd_watched: Cell::new(false),
            wakes: RefCell::default(),
            received: Cell::new(0),
            received_bytes: Cell::new(0),
            progress: Cell::new(false),
            apart: Apart::default(),
            closing: Cell::new(false),
            closed: Cell::new(false),
        }))
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether the wait is an epoll instance that polls a NAPI, which it has to learn from its sockets.
    pub(crate) fn polls_by_epoll(&self) -> bool {
        self.mode == Mode::Hybrid && self.epoll.is_split()
    }

    pub(crate) fn features(&self) -> &[&'static str] {
        &self.features.0
    }

    pub(crate) fn epoll(&self) -> &EpollDriver {
        &self.epoll
    }

    /// Has the ring busy-poll a NAPI before it sleeps (Linux 6.13); it never suspends the interrupt.
    pub(crate) fn poll_napi(&self, napi: u32, time: Duration) -> io::Result<()> {
        let queue = self.queue.borrow();
        let micros = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        let mut settings = types::Napi::new()
            .set_busy_poll_timeout(micros)
            .set_prefer_busy_poll(true)
            .set_tracking(types::NapiTracking::Static);
        queue.submitter().register_napi(&mut settings)?;
        queue.submitter().register_napi_add_id(napi)?;
        self.polls.set(true);
        Ok(())
    }

    /// How many tasks a turn may run.
    pub(crate) fn batch(&self) -> usize {
        if self.mode == Mode::Uring && !self.polls.get() { BATCH } else { super::BATCH }
    }

    /// Waits, and dispatches what came.
    pub(crate) fn wait(&self, shared: &WorkerShared, wait: Wait) -> io::Result<Woken> {
        self.received.set(0);
        self.progress.set(false);
        let sends = self.queue_sends();
        self.arm_starved();
        // A send that succeeds ends no wait; so one that somebody waits for must not be waited with.
        let wait = if sends.awaited { Wait::Pass } else { wait };
        let mut woken = match self.mode {
            Mode::Uring => self.wait_on_ring(shared, wait)?,
            Mode::Hybrid => self.wait_on_epoll(shared, wait, sends.count)?,
        };
        woken.events += self.received.get();
        shared.metrics.received_bytes.add(self.received_bytes.take());
        Ok(woken)
    }

    fn wait_on_ring(&self, shared: &WorkerShared, wait: Wait) -> io::Result<Woken> {
        if !self.epoll_watched.replace(true) {
            let fd = types::Fd(self.epoll.descriptor().as_raw_fd());
            let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32).build();
            let id = self.operations.borrow_mut().insert(Operation::Epoll);
            // SAFETY: nothing is pointed to; the epoll instance is open as long as the driver.
            unsafe { self.queue.borrow_mut().push(entry.user_data(id)) };
        }
        self.watch_eventfd(shared);
        self.send_wakes();
        let (want, timeout) = match wait {
            Wait::Pass => (0, None),
            // An enter between the turns has brought the epoll instance's word.
            Wait::Park(_) if self.epoll_ready.get() => (0, None),
            Wait::Park(timeout) => (1, timeout),
        };
        let mut woken = Woken { events: 0, calls: 0, forced: false };
        woken.calls += self.enter(want, timeout)?;
        if self.epoll_ready.take() {
            self.epoll_watched.set(false);
            let other = self.epoll.wait(shared, Wait::Pass)?;
            woken.events += other.events;
            woken.calls += other.calls;
        }
        Ok(woken)
    }

    fn wait_on_epoll(&self, shared: &WorkerShared, mut wait: Wait, sends: usize) -> io::Result<Woken> {
        let mut calls = 0;
        let apart = sends >= APART && self.apart.may();
        if apart {
            // Packets that this pass brings have to ring: a poll without events makes the kernel
            // resume the interrupt (`fs/eventpoll.c`, `ep_busy_loop`).
            self.queue.borrow_mut().listen();
            wait = Wait::Pass;
        } else {
            // What comes before the bell is listened to makes no sound, so it is looked for after.
            while self.queue.borrow_mut().listen_or_has_work() {
                calls += self.enter(0, None)?;
                if self.progress.get() {
                    wait = Wait::Pass;
                    break;
                }
            }
        }
        let woken = self.epoll.wait(shared, wait);
        self.queue.borrow_mut().stop_listening();
        let mut woken = woken?;
        if self.queue.borrow_mut().has_work() {
            calls += self.enter(0, None)?;
        }
        if apart {
            self.apart.note(self.received.get() >= APART);
        }
        woken.calls += calls;
        Ok(woken)
    }

    /// Enters until all is submitted and, where the ring is the wait, deferred work is done, or a batch
    /// of it; and dispatches the completions. Returns the number of calls.
    fn enter(&self, mut want: u32, timeout: Option<Duration>) -> io::Result<usize> {
        // A hybrid that gathers takes turns with its clients: its poll passes then bring all or nothing.
        let gather = if self.mode == Mode::Uring { self.batch() } else { 0 };
        let (mut calls, mut futile, mut gathered) = (0, 0, 0);
        loop {
            let mut queue = self.queue.borrow_mut();
            let before = queue.unsubmitted();
            queue.enter(want, timeout)?;
            calls += 1;
            let mut completions = self.completions.take();
            let more = queue.completions(&mut completions);
            let left = queue.unsubmitted();
            gathered += completions.len();
            let gather_on = !completions.is_empty() && gathered < gather && queue.has_deferred_work();
            drop(queue);
            if !completions.is_empty() {
                want = 0;
            }
            futile = if completions.is_empty() && left == before { futile + 1 } else { 0 };
            for completion in completions.drain(..) {
                self.complete(&completion);
            }
            self.completions.replace(completions);
            if left == 0 && !more && !gather_on {
                self.finish_sends();
                break;
            }
            if futile > 3 {
                // The kernel has no memory for operations. They stay queued, and tasks may run.
                self.progress.set(true);
                break;
            }
        }
        let released = self.released.take();
        drop(released);
        let mut wakers = self.wakers.take();
        wakers.drain(..).for_each(Waker::wake);
        let mut slot = self.wakers.borrow_mut();
        if slot.is_empty() {
            *slot = wakers;
        }
        Ok(calls)
    }

    fn complete(&self, completion: &cqueue::Entry) {
        if completion.user_data() >= WOKEN {
            return;
        }
        let id = completion.user_data();
        let more = cqueue::more(completion.flags());
        let mut operations = self.operations.borrow_mut();
        if let Some(Operation::Send(state)) = operations.get(id) {
            // Judged, like those without a completion, when all completions are in.
            if let Some(sending) = &mut state.send.borrow_mut().in_flight {
                sending.outcome = Some(completion.result());
            }
            return;
        }
        let operation = if more { operations.get(id).cloned() } else { operations.remove(id) };
        drop(operations);
        match operation {
            Some(Operation::Receive(state)) => self.received(&state, completion, more),
            Some(Operation::WaitingSend(state)) => self.sent(&state, completion.result()),
            Some(Operation::ZeroCopy(sending)) => self.zero_copied(*sending, completion),
            Some(Operation::Accept(state)) => self.accepted(&state, completion.result(), more),
            Some(Operation::Epoll) => self.epoll_ready.set(true),
            Some(Operation::Eventfd) => self.eventfd_watched.set(more),
            Some(Operation::Wake(wake)) if completion.result() < 0 => wake.worker.write_eventfd(),
            Some(Operation::Wake(_) | Operation::Send(_)) => {}
            None => debug_assert!(false, "a completion of an operation that is over"),
        }
    }

    /// Takes an operation back. It still completes, with what it had done.
    fn cancel(&self, operation: u64) {
        let entry = opcode::AsyncCancel::new(operation).build().user_data(CANCEL);
        // SAFETY: nothing is pointed to.
        unsafe { self.queue.borrow_mut().push(entry) };
    }

    fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Sends what was written, as far as peers take it in time, then cancels what is left, and waits
    /// for the last completions. Sockets that are kept beyond this only give errors.
    pub(crate) fn close(&self) {
        if self.closed.replace(true) {
            return;
        }
        self.flush_wakes();
        for id in self.operations.borrow().incoming() {
            self.cancel(id);
        }
        let end = Instant::now() + DRAIN;
        while (self.operations.borrow().has_sends() || !self.to_send.borrow().is_empty())
            && Instant::now() < end
        {
            let sends = self.queue_sends();
            if self.enter(u32::from(sends.count == 0), Some(DRAIN_STEP)).is_err() {
                break;
            }
        }
        self.closing.set(true);
        for state in self.to_send.take() {
            break_off(&state);
        }
        for state in self.operations.borrow().zero_copies() {
            // Only a connection that is broken off lets go of the memory that it sends from.
            break_off(&state);
            let _ = rustix::net::connect_unspec(state.fd());
        }
        if !self.operations.borrow().is_empty() {
            let entry = opcode::AsyncCancel2::new(types::CancelBuilder::any()).build().user_data(CANCEL);
            // SAFETY: nothing is pointed to.
            unsafe { self.queue.borrow_mut().push(entry) };
        }
        let end = Instant::now() + DRAIN;
        while !self.operations.borrow().is_empty() && Instant::now() < end {
            if self.enter(1, Some(DRAIN_STEP)).is_err() {
                break;
            }
        }
        self.starved.take();
        debug_assert!(self.operations.borrow().is_empty(), "operations were not completed at the end");
        debug_assert!(self.pool.held() == 0 || Rc::strong_count(&self.pool) > 1, "a buffer was lost");
    }
}

impl Drop for RingDriver {
    fn drop(&mut self) {
        if !self.operations.borrow().is_empty() {
            // The kernel may still write to what they point to, even for a while after the ring is
            // closed (`io_ring_exit_work`): it must never be freed.
            std::mem::forget(self.operations.take());
            std::mem::forget(Rc::clone(&self.pool));
        }
    }
}
