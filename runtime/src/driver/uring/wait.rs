//! The wait: what is submitted with it, and how completions are dispatched.

use std::io;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::task::Waker;
use std::time::{Duration, Instant};

use io_uring::{cqueue, opcode, types};

use super::driver::UringDriver;
use super::operations::{AHEAD_TIMERS, CANCEL, Operation, WAKE_MESSAGE};
use super::polling::SHORT_SLEEP;
use super::ring::COMPLETIONS;
use super::send::reset_on_close;
use crate::driver::wait::{LONGEST_TIMED_WAIT, Wait, WaitOutcome};
use crate::timers::monotonic_nanos;

/// How long a driver that closes waits for peers to take what was written, and then for the last
/// completions.
const DRAIN: Duration = Duration::from_secs(2);
const DRAIN_STEP: Duration = Duration::from_millis(10);
/// How many enters in a row may make no progress.
const MAX_FUTILE_ENTERS: u32 = 3;

impl UringDriver {
    pub(crate) fn wait(&self, wait: Wait) -> io::Result<WaitOutcome> {
        self.state.progress.set(false);
        // Those that the kernel had no memory for.
        let left_over = !self.state.submitted_sends.borrow().is_empty();
        self.arm_listed();
        let sends = self.queue_sends();
        self.arm_starved();
        // A send that succeeds posts no completion and so ends no wait: one that a task waits for
        // must go out without waiting.
        let wait = if sends.awaited || left_over { Wait::Pass } else { wait };
        let mut outcome = self.wait_on_ring(wait)?;
        outcome.events += self.state.received.take();
        outcome.queue_events += self.state.received_by_queue.take();
        outcome.completed = self.state.progress.get();
        outcome.received_bytes = self.state.received_bytes.take();
        outcome.sent_bytes = self.state.sent_bytes.take();
        Ok(outcome)
    }

    /// Submits what was written, without waiting. What a socket buffer has no room for waits for it,
    /// and for later turns.
    pub(crate) fn submit(&self) -> io::Result<()> {
        self.flush_wakes();
        // The list keeps sockets open that were dropped.
        self.arm_listed();
        self.queue_sends();
        self.enter(0, None)?;
        // What sends have left, of which only a part was sent.
        let left = self.ring.borrow_mut().unsubmitted();
        if left > 0 { self.enter(0, None).map(drop) } else { Ok(()) }
    }

    fn wait_on_ring(&self, wait: Wait) -> io::Result<WaitOutcome> {
        if !self.state.epoll_watched.replace(true) {
            let fd = types::Fd(self.instance.descriptor().as_raw_fd());
            let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32).build();
            let id = self.operations.borrow_mut().insert(Operation::Epoll);
            // SAFETY: the entry has no pointers; the epoll instance is open as long as the driver.
            unsafe { self.ring.borrow_mut().push(entry.user_data(id)) };
        }
        self.watch_eventfd();
        self.send_wake_messages();
        // With completions at hand an enter returns before it polls.
        let polls_anyway = || {
            let may_sleep = matches!(wait, Wait::Park(_)) && !self.state.epoll_ready.get();
            may_sleep && !self.ring.borrow_mut().has_completions()
        };
        let mut outcome = WaitOutcome::default();
        if self.polling.is_overdue() && !polls_anyway() {
            let now = monotonic_nanos();
            self.polling.polled.set(now);
            self.start_timers(now);
            outcome.calls += self.polling.look(self.instance.queue_sockets());
        }
        let (want, timeout) = match wait {
            Wait::Pass => (0, None),
            // An enter between the turns has completed the poll of the epoll instance.
            Wait::Park(_) if self.state.epoll_ready.get() => (0, None),
            Wait::Park(timeout) => (1, timeout),
        };
        match want {
            1 if self.polling.is_timed() => self.enter_timed(timeout, &mut outcome)?,
            _ => outcome.calls += self.enter(want, timeout)?,
        }
        if self.state.epoll_ready.take() {
            self.state.epoll_watched.set(false);
            self.instance.collect(&mut outcome)?;
        }
        Ok(outcome)
    }

    /// Makes enters poll a NAPI, or none (0). `interval`: how long an enter sleeps at most before
    /// the next polls, in timed mode; 0 in others. `watchdog`: after this time without a poll the
    /// kernel makes one. The queue has the values of the mode already.
    ///
    /// # Errors
    /// Those of `io_uring_register(2)`: before Linux 6.13 a NAPI can't be named.
    pub(crate) fn set_polling(
        &self,
        napi: u32,
        busy_poll: Duration,
        (interval, watchdog): (Duration, Duration),
    ) -> io::Result<()> {
        let polling = &self.polling;
        if polling.is_timed() && interval.is_zero() {
            // If nothing is deferred any more, this poll unmasks the interrupt now, and not the
            // watchdog later.
            self.enter(COMPLETIONS, Some(SHORT_SLEEP))?;
        }
        if (polling.napi.get(), polling.busy_poll.get()) != (napi, busy_poll) {
            polling.register(&self.ring.borrow(), napi, busy_poll)?;
        }
        polling.set_timed_mode(interval, watchdog);
        Ok(())
    }

    /// The NAPI of the queue has changed, as when a link is opened again.
    pub(crate) fn follow_napi(&self, napi: u32) -> io::Result<()> {
        let polling = &self.polling;
        let present = polling.napi.get();
        if present == 0 || present == napi {
            return Ok(());
        }
        polling.register(&self.ring.borrow(), napi, polling.busy_poll.get())
    }

    /// Enters, and polls, until something completes or `timeout` is over. Sets the outcome's calls.
    pub(super) fn enter_timed(&self, timeout: Option<Duration>, outcome: &mut WaitOutcome) -> io::Result<()> {
        let polling = &self.polling;
        let interval = polling.interval.get();
        let mut now = monotonic_nanos();
        let timeout = timeout.map_or(LONGEST_TIMED_WAIT, |timeout| timeout.as_nanos() as u64);
        let end = now + timeout.min(LONGEST_TIMED_WAIT);
        self.state.has_completed.set(false);
        let mut enters = 0;
        loop {
            let looked = now;
            // With completions at hand an enter returns before it polls.
            if !self.ring.borrow_mut().has_completions() {
                polling.polled.set(looked);
                self.start_timers(looked);
                // What other programs get completes nothing here, and an enter takes few of their
                // packets. Where there are none, mostly two enters are enough.
                if enters > 1 {
                    outcome.calls += polling.look(self.instance.queue_sockets());
                }
                enters += 1;
            }
            let timer =
                polling.timers.end(looked, interval).filter(|due| *due <= end && !polling.never_sleeps());
            let due = timer.unwrap_or(end.min(looked + interval));
            let timeout = timer.is_none().then(|| Duration::from_nanos(due.saturating_sub(looked)));
            outcome.calls += self.enter(1, timeout)?;
            now = monotonic_nanos();
            if self.state.has_completed.get() || self.state.progress.get() {
                return Ok(());
            }
            if looked < due && due <= now && (timer.is_some() || due < end) {
                polling.timers.slept(looked, due, interval);
            }
            if now >= end {
                return Ok(());
            }
        }
    }

    fn start_timers(&self, now: u64) {
        let mut ring = self.ring.borrow_mut();
        let polling = &self.polling;
        let interval = (!polling.never_sleeps()).then_some(polling.interval.get());
        for entry in polling.timers.start(now, interval, polling.watchdog.get()) {
            // SAFETY: the entry points to a time in `timers`, which lives as long as the
            // driver, and isn't written to before the timer has completed. The kernel reads it when
            // it takes in the entry.
            unsafe { ring.push(entry) };
        }
    }

    /// Enters until everything is submitted, and the deferred work is done or the task budget
    /// reached; and dispatches the completions. Returns the number of system calls.
    pub(super) fn enter(&self, mut want: u32, timeout: Option<Duration>) -> io::Result<usize> {
        let gather = self.task_budget();
        let (mut calls, mut futile, mut gathered) = (0, 0, 0);
        #[cfg(feature = "fault-injection")]
        if !self.state.late.borrow().is_empty() {
            want = 0;
        }
        loop {
            let mut ring = self.ring.borrow_mut();
            let before = ring.unsubmitted();
            ring.enter(want, timeout)?;
            calls += 1;
            let mut completions = self.state.completions.take();
            let more = ring.take_completions(&mut completions);
            #[cfg(feature = "fault-injection")]
            self.disturb(&mut completions);
            let left = ring.unsubmitted();
            gathered += completions.len();
            let gather_on = !completions.is_empty() && gathered < gather && ring.has_deferred_work();
            drop(ring);
            if !completions.is_empty() {
                want = 0;
                let is_timer = |completion: &cqueue::Entry| {
                    (AHEAD_TIMERS..WAKE_MESSAGE).contains(&completion.user_data())
                };
                if !completions.iter().all(is_timer) {
                    self.state.has_completed.set(true);
                }
            }
            futile = if completions.is_empty() && left == before { futile + 1 } else { 0 };
            for completion in completions.drain(..) {
                self.complete(&completion);
            }
            self.state.completions.replace(completions);
            if left == 0 && !more && !gather_on {
                self.finish_sends();
                break;
            }
            if futile > MAX_FUTILE_ENTERS {
                // The kernel has no memory for operations. They stay queued, and tasks may run.
                self.state.progress.set(true);
                break;
            }
        }
        let released = (self.state.released.take(), self.state.released_operations.take());
        drop(released);
        let mut wakers = self.state.wakers.take();
        wakers.drain(..).for_each(Waker::wake);
        let mut slot = self.state.wakers.borrow_mut();
        if slot.is_empty() {
            *slot = wakers;
        }
        Ok(calls)
    }

    /// Has completions come in another order, and some with the next enter.
    #[cfg(feature = "fault-injection")]
    fn disturb(&self, completions: &mut Vec<cqueue::Entry>) {
        use crate::faults;

        let mut all = self.state.late.take();
        all.append(completions);
        // Those of one operation are in order, and so are those of buffers, which several receives
        // fill.
        let has_buffer = |completion: &cqueue::Entry| cqueue::buffer_select(completion.flags()).is_some();
        faults::reorder(&mut all, |first, second| {
            first.user_data() == second.user_data() || (has_buffer(first) && has_buffer(second))
        });
        if faults::chance(4) {
            let operations = self.operations.borrow();
            // A send that has not completed with the enter has succeeded.
            let is_send = |completion: &cqueue::Entry| {
                matches!(operations.get(completion.user_data()), Some(Operation::Send(_)))
            };
            let from = faults::part_of(all.len() as u32) as usize;
            let (sends, late) = all.drain(from / 2..).partition(is_send);
            all.extend::<Vec<_>>(sends);
            self.state.late.replace(late);
        }
        *completions = all;
    }

    fn complete(&self, completion: &cqueue::Entry) {
        let id = completion.user_data();
        if id >= AHEAD_TIMERS {
            return self.polling.timers.complete(id);
        }
        let more = cqueue::more(completion.flags());
        let mut operations = self.operations.borrow_mut();
        if let Some(Operation::Send(state)) = operations.get(id) {
            // Processed in `finish_sends` when all completions are in, like the sends without one.
            if let Some(in_flight) = &mut state.send.borrow_mut().in_flight {
                in_flight.outcome = Some(completion.result());
            }
            return;
        }
        let operation = if more { operations.get(id).cloned() } else { operations.remove(id) };
        drop(operations);
        match &operation {
            Some(Operation::Receive(state)) => self.received(state, completion, more),
            Some(Operation::WaitingSend(state)) => self.sent(state, completion.result()),
            Some(Operation::ZeroCopy(sending)) => self.zero_copied(&sending.0, completion),
            Some(Operation::Accept(state)) => self.accepted(state, completion.result()),
            Some(Operation::Epoll) => self.state.epoll_ready.set(true),
            Some(Operation::Eventfd) => self.state.eventfd_watched.set(more),
            Some(Operation::WakeMessage(message)) if completion.result() < 0 => {
                message.worker.write_eventfd();
            }
            Some(Operation::WakeMessage(_) | Operation::Send(_)) => {}
            Some(Operation::Application(operation)) => {
                self.state.progress.set(true);
                let waker = operation.completed(completion.result(), !more);
                self.state.wakers.borrow_mut().extend(waker);
            }
            None => debug_assert!(false, "a completion of an operation that has completed already"),
        }
        // A multishot one stays in the table.
        if !more {
            self.state.released_operations.borrow_mut().extend(operation);
        }
    }

    /// Sends what was written as far as peers take it in time, then cancels what is left, and waits
    /// for the last completions; for some seconds, and until the deadline. Sockets that outlive this
    /// only return errors.
    pub(crate) fn close(&self, deadline: Option<Instant>) {
        self.wake.set_ring(None);
        if self.state.closed.replace(true) {
            return;
        }
        // The waits below don't keep a poll interval. The ring is closed anyway.
        let _ = self.set_polling(0, Duration::ZERO, (Duration::ZERO, Duration::ZERO));
        self.flush_wakes();
        self.state.to_receive.take();
        for id in self.operations.borrow().incoming() {
            self.cancel(id);
        }
        let drain_end = || {
            let end = Instant::now() + DRAIN;
            deadline.map_or(end, |deadline| deadline.min(end))
        };
        let end = drain_end();
        while (self.operations.borrow().has_sends() || !self.state.to_send.borrow().is_empty())
            && Instant::now() < end
        {
            let sends = self.queue_sends();
            if self.enter(u32::from(sends.count == 0), Some(DRAIN_STEP)).is_err() {
                break;
            }
        }
        self.state.closing.set(true);
        for state in self.state.to_send.take() {
            reset_on_close(&state);
        }
        for state in self.operations.borrow().zero_copies() {
            // Only a connection that is reset releases the memory that it sends from.
            reset_on_close(&state);
            let _ = rustix::net::connect_unspec(state.fd());
        }
        if !self.operations.borrow().is_empty() {
            let entry = opcode::AsyncCancel2::new(types::CancelBuilder::any()).build().user_data(CANCEL);
            // SAFETY: the entry has no pointers.
            unsafe { self.ring.borrow_mut().push(entry) };
        }
        let end = drain_end();
        while !self.operations.borrow().is_empty() && Instant::now() < end {
            if self.enter(1, Some(DRAIN_STEP)).is_err() {
                break;
            }
        }
        self.state.starved.take();
        debug_assert!(
            deadline.is_some() || self.operations.borrow().are_all_the_applications(),
            "operations were not completed at the end"
        );
        debug_assert!(
            deadline.is_some() || self.pool.held() == 0 || Rc::strong_count(&self.pool) > 1,
            "a buffer was lost"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use super::super::ring::REFUSED_ENTERS;
    use super::MAX_FUTILE_ENTERS;
    use crate::driver::readiness::SourceKind;
    use crate::{Builder, DriverKind};

    #[test]
    fn a_flush_ends_although_the_kernel_had_no_memory_for_the_send_at_first() {
        let uring = Builder::new().ignore_environment().workers(1).driver(DriverKind::Uring).build();
        // Without io_uring there is nothing to test.
        let Ok(runtime) = uring else { return };
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        runtime.block_on(async {
            let socket = crate::__net::ring_socket(Arc::new(ours), SourceKind::Other).unwrap();
            std::future::poll_fn(|context| socket.poll_write(context, &[std::io::IoSlice::new(b"x")]))
                .await
                .unwrap();
            REFUSED_ENTERS.set(MAX_FUTILE_ENTERS + 1);
            let flush = std::future::poll_fn(|context| socket.poll_flush(context));
            // The timer ends a wait that nothing else ends.
            let (begun, limit) = (Instant::now(), Duration::from_secs(60));
            crate::timeout(limit, flush).await.unwrap().unwrap();
            assert!(begun.elapsed() < limit, "nobody was woken");
        });
        assert_eq!(REFUSED_ENTERS.get(), 0);
        theirs.read_exact(&mut [0]).unwrap();
    }
}
