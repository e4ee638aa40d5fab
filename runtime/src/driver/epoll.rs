//! The epoll driver, which waits by `epoll_pwait2`.
//!
//! Under a policy that busy-polls, a worker has two epoll instances. The *polling* one holds only sockets
//! of the worker's NAPI, because an epoll instance remembers one NAPI id, and the last writer wins.
//! Everything else (listeners, pipes, sockets without a NAPI) is in the *other* instance, which is nested
//! in the polling one, like the eventfd of wake-ups. These two nested descriptors are one-shot: once one
//! has fired it is disarmed until the worker parks again. So the pass after it finds nothing ready on
//! entry, and polls the NAPI. If they stayed armed, one that is ready all the time would make every wait
//! return without polling, and starve the network.
//!
//! Under the other policies there is one instance, which needs none of this.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use policies::descriptors::EpollParams;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use slab::Slab;

use super::epoll_sys::{self, Event};
use super::readiness::{Readiness, SourceKind};
use super::timed_polls::TimedPolls;
use super::wait::{POLL_PASS, Wait, WaitOutcome};
use crate::waking::wake_handle::WakeHandle;

/// The token of the worker's eventfd.
const WAKE: usize = usize::MAX - 1;
/// The token of the other epoll instance.
const OTHER: usize = usize::MAX - 2;
/// The token of the eventfd that makes a wait return an event.
const SUSPEND: usize = usize::MAX - 3;

/// With this many events the kernel copies them for several microseconds, in which the grace timer may wake the
/// NAPI's thread.
const LONG_COPY_EVENTS: usize = 8;

pub(crate) struct EpollDriver {
    polling: OwnedFd,
    other: Option<OwnedFd>,
    events: RefCell<Box<[Event]>>,
    sources: RefCell<Slab<Rc<Readiness>>>,
    /// What wakes the worker, unless its eventfd is watched by a ring.
    wake: Option<Arc<WakeHandle>>,
    wake_armed: Cell<bool>,
    other_armed: Cell<bool>,
    /// The number of sockets in the polling instance.
    in_polling: Cell<usize>,
    /// The number of events that the last wait in the polling instance returned.
    last_events: Cell<usize>,
    /// Written to make a wait return an event. `None` if the policy doesn't poll.
    suspend: Option<OwnedFd>,
    /// Whether a kernel thread polls the NAPI while the worker doesn't.
    has_napi_thread: Cell<bool>,
    /// Whether waits busy-poll the NAPI at present.
    polls: Cell<bool>,
    /// Timed mode. `None` if the policy doesn't poll.
    timed: Option<Box<TimedPolls>>,
}

/// What a registered descriptor is watched for, by edges.
const EDGES: EventFlags =
    EventFlags::IN.union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::ET);

impl EpollDriver {
    /// `split`: whether the policy busy-polls. `max_events`: the batch of one wait, which under
    /// suspension bounds how long other sockets of the queue wait. `wake`: wakes the worker, unless a ring
    /// watches that.
    pub(crate) fn new(split: bool, max_events: usize, wake: Option<Arc<WakeHandle>>) -> io::Result<Self> {
        let create = || epoll::create(CreateFlags::CLOEXEC);
        let polling = create()?;
        let other = if split { Some(create()?) } else { None };
        let suspend = match split {
            true => Some(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?),
            false => None,
        };
        if let Some(suspend) = &suspend {
            // Edge-triggered, so it need not be read.
            let flags = EventFlags::IN | EventFlags::ET;
            epoll::add(&polling, suspend, EventData::new_u64(SUSPEND as u64), flags)?;
        }
        let timed = if split { Some(Box::new(TimedPolls::new()?)) } else { None };
        let once = if split { EventFlags::ONESHOT } else { EventFlags::ET };
        if let Some(wake) = &wake {
            epoll::add(&polling, wake.eventfd(), EventData::new_u64(WAKE as u64), EventFlags::IN | once)?;
        }
        if let Some(other) = &other {
            let flags = EventFlags::IN | EventFlags::ONESHOT;
            epoll::add(&polling, other, EventData::new_u64(OTHER as u64), flags)?;
        }
        Ok(Self {
            polling,
            other,
            events: RefCell::new(vec![Event::EMPTY; max_events.max(1)].into_boxed_slice()),
            sources: RefCell::default(),
            wake,
            wake_armed: Cell::new(true),
            other_armed: Cell::new(true),
            in_polling: Cell::new(0),
            last_events: Cell::new(0),
            suspend,
            has_napi_thread: Cell::new(false),
            polls: Cell::new(split),
            timed,
        })
    }

    /// Sets how the polling instance busy-polls, and returns what the kernel reads back.
    pub(crate) fn set_params(&self, params: EpollParams) -> io::Result<EpollParams> {
        params.write(self.polling.as_fd())?;
        self.params()
    }

    /// How the polling instance busy-polls, read from the kernel.
    pub(crate) fn params(&self) -> io::Result<EpollParams> {
        EpollParams::read(self.polling.as_fd())
    }

    /// Whether sockets of the worker's NAPI have an epoll instance to themselves.
    pub(crate) fn is_split(&self) -> bool {
        self.other.is_some()
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.polling.as_fd()
    }

    /// Watches a descriptor. `napi`: the one that the worker polls.
    pub(crate) fn register(
        &self,
        descriptor: BorrowedFd<'_>,
        kind: SourceKind,
        napi: u32,
    ) -> io::Result<(usize, Rc<Readiness>)> {
        let in_polling = match (&self.other, kind) {
            (None, _) => true,
            (Some(_), SourceKind::Napi(id)) => id != 0 && id == napi,
            (Some(_), SourceKind::Other) => false,
        };
        let source = Rc::new(Readiness::new(in_polling));
        let mut sources = self.sources.borrow_mut();
        let entry = sources.vacant_entry();
        let key = entry.key();
        epoll::add(self.instance(in_polling), descriptor, EventData::new_u64(key as u64), EDGES)?;
        entry.insert(Rc::clone(&source));
        self.in_polling.set(self.in_polling.get() + usize::from(in_polling));
        if let Some(timed) = self.timed.as_ref().filter(|_| in_polling) {
            timed.add(descriptor);
        }
        Ok((key, source))
    }

    pub(crate) fn deregister(&self, descriptor: BorrowedFd<'_>, key: usize) -> io::Result<()> {
        let Some(source) = self.sources.borrow_mut().try_remove(key) else { return Ok(()) };
        self.in_polling.set(self.in_polling.get() - usize::from(source.in_polling_epoll));
        self.timed.iter().for_each(|timed| timed.remove(descriptor));
        epoll::delete(self.instance(source.in_polling_epoll), descriptor)?;
        Ok(())
    }

    fn instance(&self, polling: bool) -> &OwnedFd {
        match &self.other {
            Some(other) if !polling => other,
            _ => &self.polling,
        }
    }

    /// Waits, and dispatches what came.
    pub(crate) fn wait(&self, wait: Wait) -> io::Result<WaitOutcome> {
        let pass = if self.polls.get() { POLL_PASS } else { Duration::ZERO };
        let timeout = match wait {
            Wait::Pass => Some(pass),
            Wait::Park(timeout) => {
                self.arm()?;
                // A timer that is due now must not turn the wait into one that doesn't poll.
                timeout.map(|timeout| timeout.max(pass))
            }
        };
        let mut outcome = WaitOutcome { calls: 1, ..WaitOutcome::default() };
        if wait == Wait::Pass && !self.other_armed.get() {
            // A worker that never parks (it spins, or always has work) never re-arms the other instance, so
            // it collects its events here.
            self.collect_other(&mut outcome)?;
        }
        let network = self.collect(timeout, &mut outcome)?;
        let suspends = self.polls.get() && self.timed().is_none();
        if suspends && self.has_napi_thread.get() && self.last_events.get() >= LONG_COPY_EVENTS {
            // If the grace timer has woken the NAPI's thread during the wait, the thread polls after the kernel has
            // suspended the NAPI, and sets the timer again, to the grace time (`napi_complete_done`). This call
            // is short, and comes after the thread.
            let again = self.suspend()?;
            outcome.calls += again.calls;
            outcome.events += again.events;
        }
        let nested_only = !network && suspends && !(self.wake_armed.get() && self.other_armed.get());
        if nested_only && self.in_polling.get() > 0 {
            // The nested descriptor that fired is disarmed now, so this pass can't return before it has
            // polled, unless the other nested one fires too; then the next pass polls.
            outcome.calls += 1;
            outcome.forced_pass = true;
            self.collect(Some(POLL_PASS), &mut outcome)?;
        }
        Ok(outcome)
    }

    /// Makes waits busy-poll the NAPI, or stops that. Stop it only after a wait that has returned no events: the kernel
    /// resumes the interrupts of a suspended queue in a poll that finds nothing, and without polls nobody does
    /// (`fs/eventpoll.c`, `ep_busy_loop`). `interval`: how long a wait sleeps at most before it polls again, in timed mode; 0 in
    /// others. `watchdog`: after this time without a poll the kernel makes one.
    pub(crate) fn set_polling(
        &self,
        params: Option<EpollParams>,
        (interval, watchdog): (Duration, Duration),
    ) -> io::Result<()> {
        let polls = params.is_some();
        let params = params.unwrap_or_default();
        if let Some(timed) = &self.timed {
            timed.set((interval, watchdog), params)?;
        }
        params.write(self.polling.as_fd())?;
        self.polls.set(polls);
        Ok(())
    }

    /// What polls the NAPI if that is in timed mode.
    fn timed(&self) -> Option<&TimedPolls> {
        self.timed.as_deref().filter(|timed| timed.are_on())
    }

    /// Whether a poll of timed mode has failed.
    pub(super) fn polls_have_failed(&self) -> bool {
        self.timed.as_ref().is_some_and(|timed| timed.have_failed())
    }

    /// Says that a kernel thread polls the NAPI while the worker doesn't.
    pub(crate) fn set_napi_thread(&self) {
        self.has_napi_thread.set(true);
    }

    /// Whether the kernel has suspended the interrupts of the NAPI, if that has a suspend timeout: the last wait
    /// returned an event.
    pub(crate) fn is_suspended(&self) -> bool {
        self.last_events.get() > 0
    }

    /// Makes the kernel suspend the interrupts of the NAPI without a poll, as it does whenever a wait returns an
    /// event. Dispatches what else is ready.
    fn suspend(&self) -> io::Result<WaitOutcome> {
        if let Some(suspend) = &self.suspend {
            // Fails only if the counter is full (EAGAIN), and then the eventfd is ready already.
            let _ = rustix::io::write(suspend, &1_u64.to_ne_bytes());
        }
        // The write, and the wait.
        let mut outcome = WaitOutcome { calls: 2, ..WaitOutcome::default() };
        self.collect(Some(Duration::ZERO), &mut outcome)?;
        Ok(outcome)
    }

    /// Makes one `epoll_pwait2`. Returns whether it brought network events, or no events at all.
    fn collect(&self, timeout: Option<Duration>, outcome: &mut WaitOutcome) -> io::Result<bool> {
        let mut events = self.events.borrow_mut();
        let count = match self.timed() {
            Some(timed) => timed.wait(self.polling.as_fd(), &mut events, timeout, outcome)?,
            None => epoll_sys::epoll_wait(self.polling.as_fd(), &mut events, timeout)?,
        };
        self.last_events.set(count);
        let (mut network, mut other) = (count == 0, false);
        for &event in &events[..count] {
            match event.token() {
                WAKE => {
                    // Edge-triggered it need not be read: the next write is another edge.
                    if self.other.is_some() {
                        self.wake.iter().for_each(|wake| wake.drain_eventfd());
                        self.wake_armed.set(false);
                    }
                }
                OTHER => {
                    self.other_armed.set(false);
                    other = true;
                }
                SUSPEND => network = true,
                key => {
                    network = true;
                    outcome.events += 1;
                    outcome.queue_events += 1;
                    self.dispatch(key, event);
                }
            }
        }
        drop(events);
        if let Some(timed) = self.timed() {
            timed.waited(network && count > 0);
        }
        if other {
            self.collect_other(outcome)?;
        }
        Ok(network)
    }

    /// Takes the events of the other instance. It holds nothing that is polled, so the timeout is 0.
    fn collect_other(&self, outcome: &mut WaitOutcome) -> io::Result<()> {
        let Some(instance) = &self.other else { return Ok(()) };
        let mut events = self.events.borrow_mut();
        let count = epoll_sys::epoll_wait(instance.as_fd(), &mut events, Some(Duration::ZERO))?;
        outcome.events += count;
        for &event in &events[..count] {
            self.dispatch(event.token(), event);
        }
        Ok(())
    }

    fn dispatch(&self, key: usize, event: Event) {
        // Cloned out of the slab: a waker may run code that registers or deregisters.
        let source = self.sources.borrow().get(key).cloned();
        if let Some(source) = source {
            source.dispatch(event.is_readable(), event.is_writable(), event.is_closed());
        }
    }

    /// Re-arms the nested descriptors that have fired.
    fn arm(&self) -> io::Result<()> {
        let Some(other) = &self.other else { return Ok(()) };
        let flags = EventFlags::IN | EventFlags::ONESHOT;
        if !self.wake_armed.replace(true)
            && let Some(wake) = &self.wake
        {
            epoll::modify(&self.polling, wake.eventfd(), EventData::new_u64(WAKE as u64), flags)?;
        }
        if !self.other_armed.replace(true) {
            epoll::modify(&self.polling, other, EventData::new_u64(OTHER as u64), flags)?;
        }
        Ok(())
    }
}
