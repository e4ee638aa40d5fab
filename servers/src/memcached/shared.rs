//! The state that connections share, and their places among those that there may be.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use slab::Slab;

use super::auth::Passwords;
use super::server::StartError;
use super::session::Session;
use super::settings::Config;
use super::stats::Stats;
use super::store::{Limits, Store};
use super::tls::Tls;
use super::traffic::Traffic;

/// A connection, as `stats conns` tells it.
#[derive(Debug)]
pub struct Connected {
    pub peer: String,
    pub local: String,
    last_seen: AtomicU32,
    /// Whether a value of its is coming in.
    receiving: AtomicBool,
    /// Whether it has said who it is, or need not.
    trusted: AtomicBool,
}

impl Connected {
    /// memcached's name of what it is about.
    pub fn state(&self) -> &'static str {
        if self.receiving.load(Ordering::Relaxed) { "conn_nread" } else { "conn_read" }
    }

    /// The second of the last request.
    pub fn last_seen(&self) -> u32 {
        self.last_seen.load(Ordering::Relaxed)
    }
}

/// What all connections share.
#[derive(Debug)]
pub struct Shared {
    pub store: Store,
    pub stats: Stats,
    pub settings: Config,
    pub traffic: Traffic,
    passwords: Option<Passwords>,
    tls: Option<Tls>,
    open: AtomicUsize,
    times_full: AtomicU64,
    verbosity: AtomicU32,
    /// Connections that wait until there are fewer.
    waiting: Mutex<Waiting>,
    connections: Mutex<Slab<Arc<Connected>>>,
    listening: Mutex<Vec<String>>,
    stop: Stop,
}

/// Connections that wait for a place, the longest first.
#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    wakers: VecDeque<(u64, Waker)>,
}

/// A connection that waits for a place.
struct Waiter<'a> {
    shared: &'a Arc<Shared>,
    number: u64,
}

impl Waiter<'_> {
    /// Whether it was still waiting: nobody had woken it.
    fn leave(&self) -> bool {
        let mut waiting = lock(&self.shared.waiting);
        let before = waiting.wakers.len();
        waiting.wakers.retain(|(number, _)| *number != self.number);
        waiting.wakers.len() < before
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        // Woken for a place that it does not take any more, it hands the word on.
        if !self.leave() && self.shared.open() < self.shared.settings.connections {
            self.shared.wake_one();
        }
    }
}

/// A client's wish that the server ends.
#[derive(Debug, Default)]
struct Stop {
    asked: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn new(config: &Config, workers: usize) -> Result<Self, StartError> {
        let passwords =
            config.users.as_deref().map(Passwords::open).transpose().map_err(StartError::Users)?;
        let tls = config.tls.as_ref().map(Tls::open).transpose().map_err(StartError::Tls)?;
        let limits = Limits { memory: config.memory, item: config.max_item, evict: config.evict, workers };
        Ok(Self {
            store: Store::new(limits),
            stats: Stats::new(workers),
            settings: config.clone(),
            traffic: Traffic::on(config.interface.as_deref()),
            passwords,
            tls,
            open: AtomicUsize::new(0),
            times_full: AtomicU64::new(0),
            verbosity: AtomicU32::new(config.verbosity),
            waiting: Mutex::default(),
            connections: Mutex::default(),
            listening: Mutex::default(),
            stop: Stop::default(),
        })
    }

    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    pub fn times_full(&self) -> u64 {
        self.times_full.load(Ordering::Relaxed)
    }

    pub fn verbosity(&self) -> u32 {
        self.verbosity.load(Ordering::Relaxed)
    }

    pub fn set_verbosity(&self, level: u32) {
        self.verbosity.store(level, Ordering::Relaxed);
        super::logging::set_verbosity(level);
    }

    /// Wakes the connection that has waited longest for a place.
    fn wake_one(&self) {
        let waiting = lock(&self.waiting).wakers.pop_front();
        // Outside the lock.
        waiting.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Whether a client is who it says.
    pub fn check(&self, user: &[u8], password: &[u8]) -> bool {
        self.passwords.as_ref().is_some_and(|passwords| passwords.check(user, password))
    }

    /// Waits until a client asks for it.
    pub async fn asked_to_stop(&self) {
        std::future::poll_fn(|context| {
            *lock(&self.stop.waker) = Some(context.waker().clone());
            if self.stop.asked.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Counts a connection that found no place.
    pub fn count_full(&self) {
        self.times_full.fetch_add(1, Ordering::Relaxed);
    }

    pub fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    pub fn tls_is_on(&self) -> bool {
        self.tls.is_some()
    }

    /// Reads users and certificates again.
    pub fn reload(&self) -> io::Result<()> {
        // Both are read before either is taken.
        let tls = self.tls.as_ref().map(Tls::read).transpose()?;
        self.passwords.as_ref().map_or(Ok(()), Passwords::reload)?;
        if let (Some(current), Some(fresh)) = (&self.tls, tls) {
            current.replace(fresh);
        }
        Ok(())
    }

    pub fn ask_to_stop(&self) {
        self.stop.asked.store(true, Ordering::SeqCst);
        if let Some(waker) = lock(&self.stop.waker).take() {
            waker.wake();
        }
    }

    /// Notes an address that is listened on.
    pub fn listens(&self, address: String) {
        lock(&self.listening).push(address);
    }

    /// What is listened on.
    pub fn listening(&self) -> Vec<String> {
        lock(&self.listening).clone()
    }

    pub fn each_connection(&self, mut see: impl FnMut(usize, &Connected)) {
        lock(&self.connections).iter().for_each(|(number, connection)| see(number, connection));
    }
}

/// A connection's place among those that there may be, while it lives.
#[derive(Debug)]
pub struct Place {
    shared: Arc<Shared>,
    listed: Option<(usize, Arc<Connected>)>,
}

impl Place {
    /// `None` where there are as many as there may be.
    pub fn take(shared: &Arc<Shared>) -> Option<Self> {
        let most = shared.settings.connections;
        let more = |open: usize| (open < most).then_some(open + 1);
        shared.open.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).ok()?;
        Some(Self { shared: Arc::clone(shared), listed: None })
    }

    /// Waits until there are fewer. `None` where too many wait already.
    pub async fn wait(shared: &Arc<Shared>) -> Option<Self> {
        let waiter = {
            let mut waiting = lock(&shared.waiting);
            if waiting.wakers.len() >= shared.settings.backlog.unsigned_abs() as usize {
                return None;
            }
            waiting.next += 1;
            Waiter { shared, number: waiting.next }
        };
        let place = std::future::poll_fn(|context| {
            waiter.leave();
            if let Some(place) = Self::take(shared) {
                return Poll::Ready(place);
            }
            lock(&shared.waiting).wakers.push_back((waiter.number, context.waker().clone()));
            // One may have ended before the waker was there.
            Self::take(shared).map_or(Poll::Pending, Poll::Ready)
        });
        Some(place.await)
    }

    /// Has `stats conns` tell of the connection.
    pub fn list(&mut self, peer: String, local: String) {
        let last_seen = AtomicU32::new(self.shared.store.clock().now());
        let receiving = AtomicBool::new(false);
        let trusted = AtomicBool::new(!self.shared.settings.asks_who());
        let connected = Arc::new(Connected { peer, local, last_seen, receiving, trusted });
        let number = lock(&self.shared.connections).insert(Arc::clone(&connected));
        self.listed = Some((number, connected));
    }

    /// Where the client is.
    pub fn peer(&self) -> &str {
        self.listed.as_ref().map_or("", |(_, connected)| &connected.peer)
    }

    /// Notes that the client has said something, and how it stands with it.
    pub fn seen(&self, session: &Session<'_>) {
        if let Some((_, connected)) = &self.listed {
            connected.last_seen.store(session.now(), Ordering::Relaxed);
            connected.receiving.store(session.is_receiving(), Ordering::Relaxed);
            connected.trusted.store(session.is_trusted(), Ordering::Relaxed);
        }
    }

    pub fn is_trusted(&self) -> bool {
        self.listed.as_ref().is_some_and(|(_, connected)| connected.trusted.load(Ordering::Relaxed))
    }

    /// Whether the client has said nothing for longer than it may.
    pub fn is_idle(&self) -> bool {
        let limit = self.shared.settings.idle_timeout.map(|limit| limit.as_secs());
        let now = self.shared.store.clock().now();
        limit.zip(self.listed.as_ref()).is_some_and(|(limit, (_, connected))| {
            u64::from(now.saturating_sub(connected.last_seen())) > limit
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some((number, _)) = self.listed.take() {
            lock(&self.shared.connections).try_remove(number);
        }
        self.shared.open.fetch_sub(1, Ordering::SeqCst);
        self.shared.wake_one();
    }
}
