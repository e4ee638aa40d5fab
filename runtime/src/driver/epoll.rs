//! The epoll driver, which waits by `epoll_pwait2`.
//!
//! Under a policy that busy-polls, a worker has two epoll instances. The *polling* one holds only
//! sockets of the worker's NAPI, because an epoll instance remembers one NAPI id, and the last
//! writer wins. Everything else (listeners, pipes, sockets without a NAPI) is in the *other*
//! instance, which is nested in the polling one, like the eventfd of wake-ups. These two nested
//! descriptors are one-shot: once one has fired it is disarmed until the worker parks again. So the
//! pass after it finds nothing ready on entry, and polls the NAPI. If they stayed armed, one that
//! is ready all the time would make every wait return without polling, and starve the network.
//!
//! Under the other policies there is one instance, which needs none of this.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use policies::epoll_params::EpollParams;
use policies::socket_options::incoming_napi_id;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use slab::Slab;

use super::epoll_sys::{self, Event};
use super::readiness::{Direction, Readiness, SourceKind};
use super::timed_polls::TimedPolls;
use super::wait::{POLL_PASS, Wait, WaitOutcome};
use crate::waking::wake_handle::WakeHandle;

/// The token of the worker's eventfd.
const WAKE: usize = usize::MAX - 1;
/// The token of the other epoll instance.
const OTHER: usize = usize::MAX - 2;
/// The token of the eventfd that makes a wait return an event.
const SUSPEND: usize = usize::MAX - 3;

/// With this many events the kernel copies them for several microseconds, in which the grace timer
/// may wake the NAPI's thread.
const LONG_COPY_EVENTS: usize = 8;

pub(crate) struct EpollDriver {
    polling: OwnedFd,
    other: Option<OwnedFd>,
    events: RefCell<Box<[Event]>>,
    sources: RefCell<Slab<Source>>,
    /// The NAPI that the worker polls; 0: none.
    napi: Cell<u32>,
    /// Readable events of the queue's datagram sockets for which no datagram was received yet, and
    /// datagrams that were received from these sockets since the last wait.
    announced: Cell<usize>,
    datagrams: Cell<usize>,
    /// What wakes the worker, unless its eventfd is watched by a ring.
    wake: Option<Arc<WakeHandle>>,
    wake_armed: Cell<bool>,
    other_armed: Cell<bool>,
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

/// How many events without datagrams are remembered. Of sockets whose readers don't count datagrams
/// all are.
const MOST_ANNOUNCED: usize = 16;

#[derive(Clone)]
struct Source {
    readiness: Rc<Readiness>,
    /// The number of a descriptor of [`SourceKind::Datagrams`].
    datagrams: Option<RawFd>,
}

/// What a registered descriptor is watched for, by edges.
const READS: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);
const EDGES: EventFlags = READS.union(EventFlags::OUT);

impl EpollDriver {
    /// `split`: whether the policy busy-polls. `max_events`: the batch of one wait, which under
    /// suspension bounds how long other sockets of the queue wait. `wake`: wakes the worker, unless
    /// a ring watches that.
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
            napi: Cell::new(0),
            announced: Cell::new(0),
            datagrams: Cell::new(0),
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
        self.napi.set(napi);
        let (of_queue, datagrams) = match kind {
            SourceKind::Napi(id) => (id != 0 && id == napi, None),
            // It may have received before.
            SourceKind::Datagrams => {
                (napi != 0 && incoming_napi_id(&descriptor) == napi, Some(descriptor.as_raw_fd()))
            }
            SourceKind::Other => (false, None),
        };
        let edges = if datagrams.is_some() { READS } else { EDGES };
        let readiness = Rc::new(Readiness::new(of_queue, datagrams.is_none()));
        let mut sources = self.sources.borrow_mut();
        let entry = sources.vacant_entry();
        let key = entry.key();
        epoll::add(self.instance(of_queue), descriptor, EventData::new_u64(key as u64), edges)?;
        entry.insert(Source { readiness: Rc::clone(&readiness), datagrams });
        if of_queue {
            self.took_in(descriptor);
        }
        Ok((key, readiness))
    }

    /// The polling instance has a socket of the NAPI more, or the only instance has.
    fn took_in(&self, socket: BorrowedFd<'_>) {
        self.in_polling.set(self.in_polling.get() + 1);
        self.timed.iter().for_each(|timed| timed.add(socket));
    }

    fn gave_up(&self, socket: BorrowedFd<'_>) {
        self.in_polling.set(self.in_polling.get() - 1);
        self.timed.iter().for_each(|timed| timed.remove(socket));
    }

    pub(crate) fn deregister(&self, descriptor: BorrowedFd<'_>, key: usize) -> io::Result<()> {
        let Some(Source { readiness, .. }) = self.sources.borrow_mut().try_remove(key) else { return Ok(()) };
        let of_queue = readiness.of_queue.get();
        if of_queue {
            self.gave_up(descriptor);
        }
        epoll::delete(self.instance(of_queue), descriptor)?;
        Ok(())
    }

    fn instance(&self, of_queue: bool) -> &OwnedFd {
        match &self.other {
            Some(other) if !of_queue => other,
            _ => &self.polling,
        }
    }

    /// Looks whether a datagram socket's packets come by the worker's queue, and if so, moves the
    /// socket to the polling instance.
    ///
    /// The kernel stores the NAPI of the last packet in a connected socket, in others that of the
    /// first (`net/ipv4/udp.c`, `__udp_queue_rcv_skb`). So it is looked at ever more rarely.
    fn learn(&self, key: usize, readiness: &Readiness, number: RawFd) {
        let napi = self.napi.get();
        let events = readiness.events(Direction::Read).wrapping_add(1);
        if napi == 0 || readiness.of_queue.get() || !events.is_power_of_two() {
            return;
        }
        // SAFETY: a socket is deregistered before it is closed (`AsyncFd`). If others have closed
        // the number, the calls below fail, or concern what has it now: it would be watched with
        // the key of a socket that nobody can use.
        let socket = unsafe { epoll_sys::borrow(number) };
        if incoming_napi_id(&socket) == napi && self.relocate(key, readiness, socket, true).is_ok() {
            self.took_in(socket);
        }
    }

    /// Moves a datagram socket to the instance for descriptors of the queue, or for others.
    fn relocate(
        &self,
        key: usize,
        readiness: &Readiness,
        socket: BorrowedFd<'_>,
        of_queue: bool,
    ) -> io::Result<()> {
        if self.is_split() {
            let edges = if readiness.watches_writes.get() { EDGES } else { READS };
            // What is there to be received is an event of the instance to which it is added.
            epoll::add(self.instance(of_queue), socket, EventData::new_u64(key as u64), edges)?;
            epoll::delete(self.instance(!of_queue), socket)?;
        }
        readiness.of_queue.set(of_queue);
        Ok(())
    }

    /// The worker's NAPI has this id now. A datagram socket that isn't connected keeps the id that
    /// it had, by which an instance can't poll any more; a ring polls by the new one.
    pub(crate) fn follow_napi(&self, napi: u32) {
        if self.napi.replace(napi) == napi || !self.is_split() {
            return;
        }
        for (key, source) in &*self.sources.borrow() {
            let (Some(number), true) = (source.datagrams, source.readiness.of_queue.get()) else { continue };
            // SAFETY: as in `learn`.
            let socket = unsafe { epoll_sys::borrow(number) };
            if incoming_napi_id(&socket) != napi
                && self.relocate(key, &source.readiness, socket, false).is_ok()
            {
                self.gave_up(socket);
            }
        }
    }

    /// Watches a datagram socket for room, because a send has found none, or no longer, because
    /// there was some.
    pub(crate) fn watch_writes(
        &self,
        descriptor: BorrowedFd<'_>,
        key: usize,
        readiness: &Readiness,
        watches: bool,
    ) {
        if readiness.watches_writes.replace(watches) == watches {
            return;
        }
        let edges = if watches { EDGES } else { READS };
        let instance = self.instance(readiness.of_queue.get());
        // Fails only if others have closed the descriptor.
        let _ = epoll::modify(instance, descriptor, EventData::new_u64(key as u64), edges);
    }

    pub(crate) fn received_datagrams(&self, count: usize) {
        self.datagrams.set(self.datagrams.get() + count);
    }

    /// How many datagrams were received since the last wait that no event stood for. Several may
    /// come to a socket before it is read, and one that comes while it is read is an event later.
    pub(super) fn take_unannounced(&self) -> usize {
        let (datagrams, announced) = (self.datagrams.take(), self.announced.get());
        self.announced.set(announced.saturating_sub(datagrams).min(MOST_ANNOUNCED));
        datagrams.saturating_sub(announced)
    }

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
            // A worker that never parks (it spins, or always has work) never re-arms the other
            // instance, so it collects its events here.
            self.collect_other(&mut outcome)?;
        }
        let network = self.collect(timeout, &mut outcome)?;
        let suspends = self.polls.get() && self.timed().is_none();
        if suspends && self.has_napi_thread.get() && self.last_events.get() >= LONG_COPY_EVENTS {
            // If the grace timer has woken the NAPI's thread during the wait, the thread polls
            // after the kernel has suspended the NAPI, and sets the timer again, to the grace time
            // (`napi_complete_done`). This call is short, and comes after the thread.
            let again = self.suspend()?;
            outcome.calls += again.calls;
            outcome.events += again.events;
        }
        let nested_only = !network && suspends && !(self.wake_armed.get() && self.other_armed.get());
        if nested_only && self.in_polling.get() > 0 {
            // The nested descriptor that fired is disarmed now, so this pass can't return before it
            // has polled, unless the other nested one fires too; then the next pass polls.
            outcome.calls += 1;
            outcome.forced_pass = true;
            self.collect(Some(POLL_PASS), &mut outcome)?;
        }
        Ok(outcome)
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
        if let Some(timed) = &self.timed {
            timed.set((interval, watchdog), params)?;
        }
        params.write(self.polling.as_fd())?;
        self.polls.set(polls);
        Ok(())
    }

    fn timed(&self) -> Option<&TimedPolls> {
        self.timed.as_deref().filter(|timed| timed.are_on())
    }

    pub(super) fn polls_have_failed(&self) -> bool {
        self.timed.as_ref().is_some_and(|timed| timed.have_failed())
    }

    /// Says that a kernel thread polls the NAPI while the worker doesn't.
    pub(crate) fn set_napi_thread(&self) {
        self.has_napi_thread.set(true);
    }

    /// Whether the kernel has suspended the interrupts of the NAPI, if that has a suspend timeout:
    /// the last wait returned an event.
    pub(crate) fn is_suspended(&self) -> bool {
        self.last_events.get() > 0
    }

    /// Makes the kernel suspend the interrupts of the NAPI without a poll, as it does whenever a
    /// wait returns an event. Dispatches what else is ready.
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
                    outcome.queue_events += usize::from(self.dispatch(key, event));
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
            outcome.queue_events += usize::from(self.dispatch(event.token(), event));
        }
        Ok(())
    }

    /// Returns whether the event came by the worker's queue.
    fn dispatch(&self, key: usize, event: Event) -> bool {
        // Cloned out of the slab: a waker may run code that registers or deregisters.
        let Some(Source { readiness, datagrams }) = self.sources.borrow().get(key).cloned() else {
            return false;
        };
        let (readable, writable) = (event.is_readable(), event.is_writable());
        if let Some(number) = datagrams {
            if readable {
                self.learn(key, &readiness, number);
                self.announced.set(self.announced.get() + usize::from(readiness.of_queue.get()));
            }
            if writable {
                // SAFETY: as in `learn`.
                self.watch_writes(unsafe { epoll_sys::borrow(number) }, key, &readiness, false);
            }
        }
        let by_queue = readiness.of_queue.get() && (readable || datagrams.is_none());
        readiness.dispatch(readable, writable, event.is_closed());
        by_queue
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
