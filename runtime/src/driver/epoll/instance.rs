//! The descriptors that are registered with a worker's driver, in one epoll instance or two.
//!
//! Under a policy that busy-polls there are two. The *main* one, in which the worker waits, holds
//! only sockets of the worker's NAPI, because an epoll instance remembers one NAPI id, and the last
//! writer wins. Everything else (listeners, pipes, sockets without a NAPI) is in the *other* one,
//! which the driver nests in the main one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::time::Duration;

use policies::epoll_params::EpollParams;
use policies::socket_options::incoming_napi_id;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use slab::Slab;

use super::sys::{self, Event};
use crate::driver::readiness::{Direction, Readiness, SourceKind};
use crate::driver::wait::WaitOutcome;

/// Tokens from this one on are of descriptors that the driver watches for itself.
pub(super) const FIRST_OF_DRIVER: usize = usize::MAX - 3;

/// How many events without datagrams are remembered. Of sockets whose readers don't count datagrams
/// all are.
const MOST_ANNOUNCED: usize = 16;

/// What a registered descriptor is watched for, by edges.
const READS: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);
const EDGES: EventFlags = READS.union(EventFlags::OUT);

pub(crate) struct Instance {
    main: OwnedFd,
    /// Everything but sockets of the worker's NAPI, under a policy that busy-polls.
    other: Option<OwnedFd>,
    queue_sockets: RefCell<QueueSockets>,
    events: RefCell<Box<[Event]>>,
    sources: RefCell<Slab<Source>>,
    /// The keys of those that are to be watched before the next wait, or are gone by then.
    to_watch: RefCell<Vec<usize>>,
    /// The NAPI that the worker polls; 0: none.
    napi: Cell<u32>,
    /// Readable events of the queue's datagram sockets for which no datagram was received yet, and
    /// datagrams that were received from these sockets since the last wait.
    announced: Cell<usize>,
    datagrams: Cell<usize>,
}

#[derive(Clone)]
struct Source {
    readiness: Rc<Readiness>,
    /// The number of a descriptor of [`SourceKind::Datagrams`].
    datagrams: Option<RawFd>,
    /// The number of one that the kernel doesn't watch yet.
    unwatched: Option<RawFd>,
}

/// The sockets of the worker's NAPI. Each is removed before it is closed.
pub(in crate::driver) type QueueSockets = BTreeSet<RawFd>;

impl Instance {
    /// `split`: whether the policy busy-polls. `max_events`: the batch of one wait, which under
    /// suspension bounds how long other sockets of the queue wait.
    pub(crate) fn new(split: bool, max_events: usize) -> io::Result<Self> {
        let create = || epoll::create(CreateFlags::CLOEXEC);
        Ok(Self {
            main: create()?,
            other: split.then(create).transpose()?,
            queue_sockets: RefCell::default(),
            events: RefCell::new(vec![Event::EMPTY; max_events.max(1)].into_boxed_slice()),
            sources: RefCell::default(),
            to_watch: RefCell::default(),
            napi: Cell::new(0),
            announced: Cell::new(0),
            datagrams: Cell::new(0),
        })
    }

    /// Sets how waits in the main instance busy-poll, and returns what the kernel reads back.
    pub(crate) fn set_params(&self, params: EpollParams) -> io::Result<EpollParams> {
        params.write(self.main.as_fd())?;
        self.params()
    }

    /// How waits in the main instance busy-poll, read from the kernel.
    pub(crate) fn params(&self) -> io::Result<EpollParams> {
        EpollParams::read(self.main.as_fd())
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.main.as_fd()
    }

    pub(super) fn other(&self) -> Option<BorrowedFd<'_>> {
        self.other.as_ref().map(AsFd::as_fd)
    }

    /// The sockets of the worker's NAPI, those on its ring included.
    pub(in crate::driver) fn queue_sockets(&self) -> &RefCell<QueueSockets> {
        &self.queue_sockets
    }

    /// Watches a descriptor of the driver in the main instance, or changes how it is watched.
    pub(super) fn watch(
        &self,
        descriptor: BorrowedFd<'_>,
        token: usize,
        flags: EventFlags,
    ) -> io::Result<()> {
        Ok(epoll::add(&self.main, descriptor, EventData::new_u64(token as u64), flags)?)
    }

    pub(super) fn rearm(
        &self,
        descriptor: BorrowedFd<'_>,
        token: usize,
        flags: EventFlags,
    ) -> io::Result<()> {
        Ok(epoll::modify(&self.main, descriptor, EventData::new_u64(token as u64), flags)?)
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
        let readiness = Rc::new(Readiness::new(of_queue, datagrams.is_none()));
        let mut sources = self.sources.borrow_mut();
        let entry = sources.vacant_entry();
        let key = entry.key();
        self.add(descriptor, key, &readiness)?;
        entry.insert(Source { readiness: Rc::clone(&readiness), datagrams, unwatched: None });
        Ok((key, readiness))
    }

    fn add(&self, descriptor: BorrowedFd<'_>, key: usize, readiness: &Readiness) -> Result<(), Errno> {
        let of_queue = readiness.of_queue.get();
        let edges = if readiness.watches_writes.get() { EDGES } else { READS };
        epoll::add(self.instance(of_queue), descriptor, EventData::new_u64(key as u64), edges)?;
        if of_queue {
            self.note(descriptor.as_raw_fd(), true);
        }
        Ok(())
    }

    /// The readiness of a stream socket that is watched only once an operation waits
    /// ([`Instance::watch_later`]), and for room only after a write has found none. `has_bytes`:
    /// whether a read is to be tried before.
    ///
    /// `None` for a socket of the NAPI that the main instance polls: by its sockets the kernel
    /// knows the NAPI (`fs/eventpoll.c`, `ep_set_busy_poll_napi_id`).
    pub(crate) fn unwatched(&self, kind: SourceKind, napi: u32, has_bytes: bool) -> Option<Rc<Readiness>> {
        let of_queue = matches!(kind, SourceKind::Napi(id) if id != 0 && id == napi);
        if of_queue && self.other.is_some() {
            return None;
        }
        let readiness = Readiness::new(of_queue, false);
        if has_bytes {
            readiness.expect_bytes();
        }
        Some(Rc::new(readiness))
    }

    /// Has a socket of [`Instance::unwatched`] watched from the next wait on, and returns its key.
    /// A connection that ends before then costs no call. What has come by then is an event.
    pub(crate) fn watch_later(&self, socket: BorrowedFd<'_>, readiness: &Rc<Readiness>) -> usize {
        let (readiness, unwatched) = (Rc::clone(readiness), Some(socket.as_raw_fd()));
        let key = self.sources.borrow_mut().insert(Source { readiness, datagrams: None, unwatched });
        self.to_watch.borrow_mut().push(key);
        key
    }

    /// Called before each wait. Returns whether tasks were woken, because a socket can't be watched.
    pub(super) fn watch_listed(&self) -> bool {
        if self.to_watch.borrow().is_empty() {
            return false;
        }
        let mut keys = self.to_watch.take();
        let mut failed = false;
        for key in keys.drain(..) {
            let mut sources = self.sources.borrow_mut();
            let listed = sources.get_mut(key).and_then(|source| Some((source.unwatched.take()?, source)));
            let Some((number, source)) = listed else { continue };
            let readiness = Rc::clone(&source.readiness);
            drop(sources);
            // SAFETY: as in `learn`.
            let socket = unsafe { BorrowedFd::borrow_raw(number) };
            if let Err(error) = self.add(socket, key, &readiness) {
                failed = true;
                readiness.fail(error);
            }
        }
        let mut listed = self.to_watch.borrow_mut();
        if listed.is_empty() {
            // Keeps the memory.
            *listed = keys;
        }
        failed
    }

    /// The worker has a socket of the NAPI, or no longer.
    pub(in crate::driver) fn note(&self, socket: RawFd, is_there: bool) {
        let mut sockets = self.queue_sockets.borrow_mut();
        match is_there {
            true => sockets.insert(socket),
            false => sockets.remove(&socket),
        };
    }

    pub(crate) fn deregister(&self, descriptor: BorrowedFd<'_>, key: usize) -> io::Result<()> {
        let removed = self.sources.borrow_mut().try_remove(key);
        let Some(Source { readiness, unwatched: None, .. }) = removed else { return Ok(()) };
        let of_queue = readiness.of_queue.get();
        if of_queue {
            self.note(descriptor.as_raw_fd(), false);
        }
        epoll::delete(self.instance(of_queue), descriptor)?;
        Ok(())
    }

    fn instance(&self, of_queue: bool) -> &OwnedFd {
        match &self.other {
            Some(other) if !of_queue => other,
            _ => &self.main,
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
        let socket = unsafe { BorrowedFd::borrow_raw(number) };
        if incoming_napi_id(&socket) == napi && self.relocate(key, readiness, socket, true).is_ok() {
            self.note(number, true);
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
        if self.other.is_some() {
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
        if self.napi.replace(napi) == napi || self.other.is_none() {
            return;
        }
        for (key, source) in &*self.sources.borrow() {
            let (Some(number), true) = (source.datagrams, source.readiness.of_queue.get()) else { continue };
            // SAFETY: as in `learn`.
            let socket = unsafe { BorrowedFd::borrow_raw(number) };
            if incoming_napi_id(&socket) != napi
                && self.relocate(key, &source.readiness, socket, false).is_ok()
            {
                self.note(number, false);
            }
        }
    }

    /// Watches a socket for room, because a send has found none, or a datagram socket no longer,
    /// because there was some.
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
        if self.sources.borrow().get(key).is_none_or(|source| source.unwatched.is_some()) {
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
    pub(crate) fn take_unannounced(&self) -> usize {
        let (datagrams, announced) = (self.datagrams.take(), self.announced.get());
        self.announced.set(announced.saturating_sub(datagrams).min(MOST_ANNOUNCED));
        datagrams.saturating_sub(announced)
    }

    /// Takes the events that a wait in the main instance brings, and dispatches those of registered
    /// descriptors. The tokens of the others go to `of_driver`. Returns how many there were.
    pub(super) fn wait(
        &self,
        wait: impl FnOnce(BorrowedFd<'_>, &mut [Event], &mut WaitOutcome) -> io::Result<usize>,
        outcome: &mut WaitOutcome,
        mut of_driver: impl FnMut(usize),
    ) -> io::Result<usize> {
        let mut events = self.events.borrow_mut();
        let count = wait(self.main.as_fd(), &mut events, outcome)?;
        for &event in &events[..count] {
            match event.token() {
                token if token >= FIRST_OF_DRIVER => of_driver(token),
                key => {
                    outcome.events += 1;
                    outcome.queue_events += usize::from(self.dispatch(key, event));
                }
            }
        }
        Ok(count)
    }

    /// Takes the events that are there, in an instance without descriptors of a driver.
    pub(crate) fn collect(&self, outcome: &mut WaitOutcome) -> io::Result<()> {
        outcome.calls += 1;
        let wait = |main: BorrowedFd<'_>, events: &mut [Event], _: &mut WaitOutcome| {
            sys::epoll_wait(main, events, Some(Duration::ZERO))
        };
        self.wait(wait, outcome, |_| {}).map(drop)
    }

    /// Takes the events of the other instance. It holds nothing that is polled, so the timeout is
    /// 0.
    pub(super) fn collect_other(&self, outcome: &mut WaitOutcome) -> io::Result<()> {
        let Some(other) = self.other() else { return Ok(()) };
        let mut events = self.events.borrow_mut();
        let count = sys::epoll_wait(other, &mut events, Some(Duration::ZERO))?;
        outcome.events += count;
        for &event in &events[..count] {
            outcome.queue_events += usize::from(self.dispatch(event.token(), event));
        }
        Ok(())
    }

    /// Returns whether the event came by the worker's queue.
    fn dispatch(&self, key: usize, event: Event) -> bool {
        // Cloned out of the slab: a waker may run code that registers or deregisters.
        let Some(Source { readiness, datagrams, .. }) = self.sources.borrow().get(key).cloned() else {
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
                self.watch_writes(unsafe { BorrowedFd::borrow_raw(number) }, key, &readiness, false);
            }
        }
        let by_queue = readiness.of_queue.get() && (readable || datagrams.is_none());
        readiness.dispatch(readable, writable, event.is_closed());
        by_queue
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn unwatched(instance: &Instance) -> Rc<Readiness> {
        instance.unwatched(SourceKind::Other, 0, false).unwrap()
    }

    fn events(instance: &Instance) -> usize {
        let mut outcome = WaitOutcome::default();
        // An injected fault may interrupt a call.
        (0..64).for_each(|_| instance.collect(&mut outcome).unwrap());
        outcome.events
    }

    #[test]
    fn what_comes_before_a_socket_is_watched_is_an_event_and_room_is_none() {
        let instance = Instance::new(false, 16).unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let readiness = unwatched(&instance);
        let key = instance.watch_later(ours.as_fd(), &readiness);
        theirs.write_all(b"x").unwrap();
        assert_eq!(events(&instance), 0);
        assert!(!instance.watch_listed());
        assert_eq!((events(&instance), readiness.is_ready(Direction::Read)), (1, true));
        readiness.clear(Direction::Write);
        assert_eq!(events(&instance), 0);
        instance.watch_writes(ours.as_fd(), key, &readiness, true);
        assert_eq!((events(&instance), readiness.is_ready(Direction::Write)), (1, true));
        instance.deregister(ours.as_fd(), key).unwrap();
    }

    #[test]
    fn a_socket_that_is_gone_before_the_wait_is_not_watched_and_the_next_with_its_key_is() {
        let instance = Instance::new(false, 16).unwrap();
        let (first, _peer) = UnixStream::pair().unwrap();
        let (second, mut theirs) = UnixStream::pair().unwrap();
        let (gone, readiness) = (unwatched(&instance), unwatched(&instance));
        let key = instance.watch_later(first.as_fd(), &gone);
        instance.deregister(first.as_fd(), key).unwrap();
        assert_eq!(instance.watch_later(second.as_fd(), &readiness), key);
        assert!(!instance.watch_listed());
        epoll::delete(&instance.main, &first).expect_err("it is not watched");
        theirs.write_all(b"x").unwrap();
        assert_eq!((events(&instance), readiness.is_ready(Direction::Read)), (1, true));
        instance.deregister(second.as_fd(), key).unwrap();
        epoll::delete(&instance.main, &second).expect_err("it is watched no longer");
    }

    #[test]
    fn who_waits_for_what_cannot_be_watched_is_woken_and_told_once() {
        let instance = Instance::new(false, 16).unwrap();
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let readiness = unwatched(&instance);
        instance.watch_later(file.as_fd(), &readiness);
        assert!(instance.watch_listed());
        assert!(readiness.is_ready(Direction::Read));
        assert_eq!(readiness.take_failure(), Some(Errno::PERM));
        assert!(readiness.take_failure().is_none() && !instance.watch_listed());
    }
}
