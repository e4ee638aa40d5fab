//! The epoll driver, which waits by `epoll_pwait2`.
//!
//! Under a policy that busy-polls, the worker waits in an epoll instance that holds only sockets of
//! its NAPI ([`Instance`]). Nested in it are the instance with everything else, and the eventfd of
//! wake-ups. These two are one-shot: once one has fired it is disarmed until the worker parks
//! again. So the pass after it finds nothing ready on entry, and polls the NAPI. If they stayed
//! armed, one that is ready all the time would make every wait return without polling, and starve
//! the network.
//!
//! Under the other policies there is one instance, which needs none of this.

pub(crate) mod instance;
pub(super) mod poller;
pub(crate) mod sys;
mod timed_mode;

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use policies::epoll_params::EpollParams;
use rustix::event::epoll::EventFlags;
use rustix::event::{EventfdFlags, eventfd};

use self::instance::{FIRST_OF_DRIVER, Instance};
use self::sys::Event;
use self::timed_mode::TimedMode;
use super::wait::{POLL_PASS, Wait, WaitOutcome};
use crate::wake_handle::WakeHandle;

/// The token of the worker's eventfd.
const WAKE: usize = FIRST_OF_DRIVER;
/// The token of the other epoll instance.
const OTHER: usize = FIRST_OF_DRIVER + 1;
/// The token of the eventfd that makes a wait return an event.
const SUSPEND: usize = FIRST_OF_DRIVER + 2;

const ONCE: EventFlags = EventFlags::IN.union(EventFlags::ONESHOT);
/// Edge-triggered, so that the descriptor need not be read.
const EDGE: EventFlags = EventFlags::IN.union(EventFlags::ET);

/// With this many events the kernel copies them for several microseconds, in which the grace timer
/// may wake the NAPI's thread.
const LONG_COPY_EVENTS: usize = 8;

pub(crate) struct EpollDriver {
    /// Where descriptors are registered.
    pub(crate) instance: Instance,
    /// What wakes the worker.
    wake: Arc<WakeHandle>,
    /// If the policy busy-polls.
    polling: Option<Box<Polling>>,
}

/// How waits poll the worker's NAPI.
struct Polling {
    /// Whether they do at present.
    is_on: Cell<bool>,
    timed_mode: TimedMode,
    wake_armed: Cell<bool>,
    other_armed: Cell<bool>,
    /// The number of events that the last wait in the main instance returned.
    last_events: Cell<usize>,
    /// Written to make a wait return an event.
    suspend: OwnedFd,
    /// Whether a kernel thread polls the NAPI while the worker doesn't.
    has_napi_thread: Cell<bool>,
}

impl Polling {
    fn timed_mode(&self) -> Option<&TimedMode> {
        Some(&self.timed_mode).filter(|timed_mode| timed_mode.is_on())
    }
}

impl EpollDriver {
    /// `polls`: whether the policy busy-polls. `max_events`: the batch of one wait. `wake`: wakes
    /// the worker.
    pub(crate) fn new(polls: bool, max_events: usize, wake: Arc<WakeHandle>) -> io::Result<Self> {
        let instance = Instance::new(polls, max_events)?;
        instance.watch(wake.eventfd(), WAKE, if polls { ONCE } else { EDGE })?;
        let polling = match instance.other() {
            Some(other) => {
                instance.watch(other, OTHER, ONCE)?;
                let suspend = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
                instance.watch(suspend.as_fd(), SUSPEND, EDGE)?;
                Some(Box::new(Polling {
                    is_on: Cell::new(true),
                    timed_mode: TimedMode::new()?,
                    wake_armed: Cell::new(true),
                    other_armed: Cell::new(true),
                    last_events: Cell::new(0),
                    suspend,
                    has_napi_thread: Cell::new(false),
                }))
            }
            None => None,
        };
        Ok(Self { instance, wake, polling })
    }

    /// Whether waits may have to poll a queue.
    pub(crate) fn may_poll(&self) -> bool {
        self.polling.is_some()
    }

    pub(crate) fn wait(&self, wait: Wait) -> io::Result<WaitOutcome> {
        let wait = if self.instance.watch_listed() { Wait::Pass } else { wait };
        let mut outcome = WaitOutcome { calls: 1, ..WaitOutcome::default() };
        match &self.polling {
            Some(polling) => self.wait_polling(polling, wait, &mut outcome)?,
            None => {
                let timeout = match wait {
                    Wait::Pass => Some(Duration::ZERO),
                    Wait::Park(timeout) => timeout,
                };
                let wait = |main: BorrowedFd<'_>, events: &mut [Event], _: &mut WaitOutcome| {
                    sys::epoll_wait(main, events, timeout)
                };
                // The eventfd need not be read: the next write is another edge.
                self.instance.wait(wait, &mut outcome, |_wake| {})?;
            }
        }
        Ok(outcome)
    }

    fn wait_polling(&self, polling: &Polling, wait: Wait, outcome: &mut WaitOutcome) -> io::Result<()> {
        let pass = if polling.is_on.get() { POLL_PASS } else { Duration::ZERO };
        let timeout = match wait {
            Wait::Pass => Some(pass),
            Wait::Park(timeout) => {
                self.arm(polling)?;
                // A timer that is due now must not turn the wait into one that doesn't poll.
                timeout.map(|timeout| timeout.max(pass))
            }
        };
        if wait == Wait::Pass && !polling.other_armed.get() {
            // A worker that never parks (it spins, or always has work) never re-arms the other
            // instance, so it collects its events here.
            self.instance.collect_other(outcome)?;
        }
        let network = self.collect(polling, timeout, outcome)?;
        let suspends = polling.is_on.get() && polling.timed_mode().is_none();
        if suspends && polling.has_napi_thread.get() && polling.last_events.get() >= LONG_COPY_EVENTS {
            // If the grace timer has woken the NAPI's thread during the wait, the thread polls
            // after the kernel has suspended the NAPI, and sets the timer again, to the grace time
            // (`napi_complete_done`). This call is short, and comes after the thread.
            let again = self.suspend(polling)?;
            outcome.calls += again.calls;
            outcome.events += again.events;
        }
        let nested_only = !network && suspends && !(polling.wake_armed.get() && polling.other_armed.get());
        let has_sockets = || !self.instance.queue_sockets().borrow().is_empty();
        if nested_only && has_sockets() {
            // The nested descriptor that fired is disarmed now, so this pass can't return before it
            // has polled, unless the other nested one fires too; then the next pass polls.
            outcome.calls += 1;
            outcome.forced_pass = true;
            self.collect(polling, Some(POLL_PASS), outcome)?;
        }
        Ok(())
    }

    /// Makes waits busy-poll the NAPI, or stops that. Stop it only after a wait that has returned
    /// no events: the kernel resumes the interrupts of a suspended queue in a poll that finds
    /// nothing, and without polls nobody does (`fs/eventpoll.c`, `ep_busy_loop`). `interval`: how
    /// long a wait sleeps at most before it polls again, in timed mode; 0 in others. `watchdog`:
    /// after this time without a poll the kernel makes one.
    pub(crate) fn set_polling(
        &self,
        params: Option<EpollParams>,
        (interval, watchdog): (Duration, Duration),
    ) -> io::Result<()> {
        let polls = params.is_some();
        let params = params.unwrap_or_default();
        if let Some(polling) = &self.polling {
            polling.timed_mode.set(self.instance.queue_sockets(), (interval, watchdog), params)?;
        }
        params.write(self.instance.descriptor())?;
        self.polling.iter().for_each(|polling| polling.is_on.set(polls));
        Ok(())
    }

    pub(crate) fn polls_have_failed(&self) -> bool {
        self.polling.as_ref().is_some_and(|polling| polling.timed_mode.has_failed())
    }

    /// Says that a kernel thread polls the NAPI while the worker doesn't.
    pub(crate) fn set_napi_thread(&self) {
        self.polling.iter().for_each(|polling| polling.has_napi_thread.set(true));
    }

    /// Whether the kernel has suspended the interrupts of the NAPI, if that has a suspend timeout:
    /// the last wait returned an event.
    pub(crate) fn is_suspended(&self) -> bool {
        self.polling.as_ref().is_some_and(|polling| polling.last_events.get() > 0)
    }

    /// Makes the kernel suspend the interrupts of the NAPI without a poll, as it does whenever a
    /// wait returns an event. Dispatches what else is ready.
    fn suspend(&self, polling: &Polling) -> io::Result<WaitOutcome> {
        // Fails only if the counter is full (EAGAIN), and then the eventfd is ready already.
        let _ = rustix::io::write(&polling.suspend, &1_u64.to_ne_bytes());
        // The write, and the wait.
        let mut outcome = WaitOutcome { calls: 2, ..WaitOutcome::default() };
        self.collect(polling, Some(Duration::ZERO), &mut outcome)?;
        Ok(outcome)
    }

    /// Makes one `epoll_pwait2`. Returns whether it brought network events, or no events at all.
    fn collect(
        &self,
        polling: &Polling,
        timeout: Option<Duration>,
        outcome: &mut WaitOutcome,
    ) -> io::Result<bool> {
        let timed_mode = polling.timed_mode();
        let sockets = self.instance.queue_sockets();
        let wait = |main: BorrowedFd<'_>, events: &mut [Event], outcome: &mut WaitOutcome| match timed_mode {
            Some(mode) => mode.wait(sockets, main, events, timeout, outcome),
            None => sys::epoll_wait(main, events, timeout),
        };
        let (before, mut suspended, mut other) = (outcome.events, false, false);
        let count = self.instance.wait(wait, outcome, |token| match token {
            WAKE => {
                self.wake.drain_eventfd();
                polling.wake_armed.set(false);
            }
            OTHER => {
                polling.other_armed.set(false);
                other = true;
            }
            _ => suspended = true,
        })?;
        polling.last_events.set(count);
        let network = count == 0 || suspended || outcome.events > before;
        if let Some(mode) = timed_mode {
            mode.waited(network && count > 0);
        }
        if other {
            self.instance.collect_other(outcome)?;
        }
        Ok(network)
    }

    /// Re-arms the nested descriptors that have fired.
    fn arm(&self, polling: &Polling) -> io::Result<()> {
        if !polling.wake_armed.replace(true) {
            self.instance.rearm(self.wake.eventfd(), WAKE, ONCE)?;
        }
        if !polling.other_armed.replace(true)
            && let Some(other) = self.instance.other()
        {
            self.instance.rearm(other, OTHER, ONCE)?;
        }
        Ok(())
    }
}
