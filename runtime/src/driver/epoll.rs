//! The epoll driver: registrations through mio, the wait through `epoll_pwait2`.
//!
//! Under a policy that busy-polls, a worker has two epoll instances. The *polling* one holds sockets
//! of the worker's NAPI and nothing else, because an epoll instance remembers one NAPI id, and the
//! last writer wins. Everything else (listeners, pipes, sockets without a NAPI) is in the *other*
//! instance, which is nested in the polling one, like the eventfd of wake-ups. These two guests are
//! one-shot: once one has fired it is disarmed until the worker parks again. So the pass after them
//! finds nothing ready on entry, and polls the NAPI; were they left armed, a guest that is ready all
//! the time would make every wait return without polling, and starve the network.
//!
//! Under the other policies there is one instance, and no such care is needed.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::rc::Rc;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Interest, Poll, Token};
use rustix::event::epoll::{self, EventData, EventFlags};
use slab::Slab;

use super::sys::{self, EpollParams, Event};
use super::{Source, SourceKind};
use crate::shared::WorkerShared;

const WAKE: usize = usize::MAX - 1;
const OTHER: usize = usize::MAX - 2;
/// A ring that waits by this driver.
const RING: usize = usize::MAX - 3;
/// A socket that is here for its NAPI alone.
const LEARN: usize = usize::MAX - 4;

/// The shortest wait that still polls the NAPI.
const POLL_PASS: Duration = Duration::from_nanos(1);

pub(crate) struct EpollDriver {
    polling: Poll,
    other: Option<Poll>,
    events: RefCell<Box<[Event]>>,
    sources: RefCell<Slab<Rc<Source>>>,
    wake_armed: Cell<bool>,
    other_armed: Cell<bool>,
    in_polling: Cell<usize>,
}

/// How long a wait may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Look once (and poll the NAPI once, where the policy polls).
    Pass,
    /// Sleep until something happens, or for so long.
    Park(Option<Duration>),
}

/// What a wait brought.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Woken {
    /// Events of descriptors.
    pub(crate) events: usize,
    /// Calls of `epoll_pwait2`.
    pub(crate) calls: usize,
    /// Whether a poll pass was forced.
    pub(crate) forced: bool,
}

fn fd(poll: &Poll) -> BorrowedFd<'_> {
    // SAFETY: the epoll instance is open as long as the `Poll` that is borrowed.
    unsafe { sys::borrow(poll.as_raw_fd()) }
}

impl EpollDriver {
    /// `split`: whether the policy busy-polls. `max_events`: the batch of one wait, which under
    /// suspension bounds how long other sockets of the queue wait. `wake`: the worker's eventfd, unless
    /// that is watched elsewhere.
    pub(crate) fn new(split: bool, max_events: usize, wake: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        let polling = Poll::new()?;
        let other = if split { Some(Poll::new()?) } else { None };
        let once = if split { EventFlags::ONESHOT } else { EventFlags::ET };
        if let Some(wake) = wake {
            epoll::add(fd(&polling), wake, EventData::new_u64(WAKE as u64), EventFlags::IN | once)?;
        }
        if let Some(other) = &other {
            let flags = EventFlags::IN | EventFlags::ONESHOT;
            epoll::add(fd(&polling), fd(other), EventData::new_u64(OTHER as u64), flags)?;
        }
        Ok(Self {
            polling,
            other,
            events: RefCell::new(vec![Event::EMPTY; max_events.max(1)].into_boxed_slice()),
            sources: RefCell::default(),
            wake_armed: Cell::new(true),
            other_armed: Cell::new(true),
            in_polling: Cell::new(0),
        })
    }

    /// Turns busy polling on for the polling instance, and reads back what the kernel has.
    pub(crate) fn set_params(&self, params: EpollParams) -> io::Result<EpollParams> {
        sys::set_epoll_params(fd(&self.polling), params)?;
        sys::epoll_params(fd(&self.polling))
    }

    /// Reads what the kernel has for the polling instance.
    pub(crate) fn params(&self) -> io::Result<EpollParams> {
        sys::epoll_params(fd(&self.polling))
    }

    /// Whether sockets of the worker's NAPI are apart from all else.
    pub(super) fn is_split(&self) -> bool {
        self.other.is_some()
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        fd(&self.polling)
    }

    /// Has the wait end when a ring's bell is written. Edge-triggered: it need not be read.
    pub(super) fn watch_ring(&self, bell: BorrowedFd<'_>) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(fd(&self.polling), bell, EventData::new_u64(RING as u64), flags)?;
        Ok(())
    }

    /// Has the polling instance learn its NAPI from a socket whose events go elsewhere: each packet's
    /// wake-up tells the id before the event mask is looked at (`fs/eventpoll.c`, `ep_poll_callback`).
    pub(super) fn learn_napi(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let flags = EventFlags::ONESHOT | EventFlags::ET;
        epoll::add(fd(&self.polling), socket, EventData::new_u64(LEARN as u64), flags)?;
        self.in_polling.set(self.in_polling.get() + 1);
        Ok(())
    }

    pub(super) fn forget_napi(&self, socket: BorrowedFd<'_>) {
        // Fails only for a descriptor that was closed behind our back, and then it is out already.
        let _ = epoll::delete(fd(&self.polling), socket);
        self.in_polling.set(self.in_polling.get() - 1);
    }

    pub(crate) fn register(
        &self,
        descriptor: BorrowedFd<'_>,
        kind: SourceKind,
        napi: u32,
    ) -> io::Result<(usize, Rc<Source>)> {
        let in_polling = match (&self.other, kind) {
            (None, _) => true,
            (Some(_), SourceKind::Napi(id)) => id != 0 && id == napi,
            (Some(_), SourceKind::Other) => false,
        };
        let source = Rc::new(Source::new(in_polling));
        let mut sources = self.sources.borrow_mut();
        let entry = sources.vacant_entry();
        let key = entry.key();
        self.instance(in_polling).registry().register(
            &mut SourceFd(&descriptor.as_raw_fd()),
            Token(key),
            Interest::READABLE | Interest::WRITABLE,
        )?;
        entry.insert(Rc::clone(&source));
        self.in_polling.set(self.in_polling.get() + usize::from(in_polling));
        Ok((key, source))
    }

    pub(crate) fn deregister(&self, descriptor: BorrowedFd<'_>, key: usize) -> io::Result<()> {
        let Some(source) = self.sources.borrow_mut().try_remove(key) else { return Ok(()) };
        self.in_polling.set(self.in_polling.get() - usize::from(source.in_polling_epoll));
        self.instance(source.in_polling_epoll).registry().deregister(&mut SourceFd(&descriptor.as_raw_fd()))
    }

    fn instance(&self, polling: bool) -> &Poll {
        match &self.other {
            Some(other) if !polling => other,
            _ => &self.polling,
        }
    }

    /// Waits, and dispatches what came.
    pub(crate) fn wait(&self, shared: &WorkerShared, wait: Wait) -> io::Result<Woken> {
        let pass = if self.other.is_some() { POLL_PASS } else { Duration::ZERO };
        let timeout = match wait {
            Wait::Pass => Some(pass),
            Wait::Park(timeout) => {
                self.arm(shared)?;
                // A timer that is due now must not turn the wait into one that doesn't poll.
                timeout.map(|timeout| timeout.max(pass))
            }
        };
        let mut woken = Woken { events: 0, calls: 1, forced: false };
        if wait == Wait::Pass && !self.other_armed.get() {
            // A worker that never parks (spinning, or always at work) never arms the guest again, so
            // it has to look itself.
            self.collect_other(&mut woken)?;
        }
        let network = self.collect(shared, timeout, &mut woken)?;
        let guests_only =
            !network && self.other.is_some() && !(self.wake_armed.get() && self.other_armed.get());
        if guests_only && self.in_polling.get() > 0 {
            // The guests that fired are disarmed now, so this pass can't return before it has polled,
            // unless the other guest fires too; then the next one does.
            woken.calls += 1;
            woken.forced = true;
            self.collect(shared, Some(POLL_PASS), &mut woken)?;
        }
        Ok(woken)
    }

    /// One `epoll_pwait2`. Returns whether it brought network events, or ended with none at all.
    fn collect(
        &self,
        shared: &WorkerShared,
        timeout: Option<Duration>,
        woken: &mut Woken,
    ) -> io::Result<bool> {
        let mut events = self.events.borrow_mut();
        let count = sys::epoll_wait(fd(&self.polling), &mut events, timeout)?;
        let (mut network, mut other) = (count == 0, false);
        for &event in &events[..count] {
            match event.token() {
                WAKE => {
                    // Edge-triggered it need not be read: the next write is an edge, too.
                    if self.other.is_some() {
                        shared.drain_eventfd();
                        self.wake_armed.set(false);
                    }
                }
                OTHER => {
                    self.other_armed.set(false);
                    other = true;
                }
                // What it has, its owner counts.
                RING | LEARN => network = true,
                key => {
                    network = true;
                    woken.events += 1;
                    self.dispatch(key, event);
                }
            }
        }
        drop(events);
        if other {
            self.collect_other(woken)?;
        }
        Ok(network)
    }

    /// Takes what the other instance has. It holds nothing that is polled, so 0 will do as timeout.
    fn collect_other(&self, woken: &mut Woken) -> io::Result<()> {
        let Some(instance) = &self.other else { return Ok(()) };
        let mut events = self.events.borrow_mut();
        let count = sys::epoll_wait(fd(instance), &mut events, Some(Duration::ZERO))?;
        woken.events += count;
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

    /// Arms the guests again that have fired.
    fn arm(&self, shared: &WorkerShared) -> io::Result<()> {
        let Some(other) = &self.other else { return Ok(()) };
        let flags = EventFlags::IN | EventFlags::ONESHOT;
        if !self.wake_armed.replace(true) {
            epoll::modify(fd(&self.polling), shared.wake.as_fd(), EventData::new_u64(WAKE as u64), flags)?;
        }
        if !self.other_armed.replace(true) {
            epoll::modify(fd(&self.polling), fd(other), EventData::new_u64(OTHER as u64), flags)?;
        }
        Ok(())
    }
}
