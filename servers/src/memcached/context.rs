//! The state that all connections and UDP sockets of a server share.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use async_lock::{Semaphore, SemaphoreGuardArc};
use futures_util::task::AtomicWaker;

use super::auth::{Users, UsersFileError};
use super::config::Config;
use super::dump_slot::DumpSlot;
use super::protocol::tuning::LruCrawler;
use super::stats::connections::ConnectionList;
use super::stats::counters::Counters;
use super::stats::policy_section::{BusyPollShare, PolicySection};
use super::store::Store;
use super::tls::{self, Tls, TlsError};

/// A server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the variants are")]
pub enum StartError {
    #[error("cannot listen on {address}: {source}")]
    Listen { address: String, source: io::Error },
    #[error(
        "{0} may be publicly reachable and clients need not authenticate; require authentication (-Y or -S), \
         listen on a loopback or private address (-l), or give --listen-unauthenticated"
    )]
    Unprotected(IpAddr),
    #[error(transparent)]
    Users(#[from] UsersFileError),
    #[error("TLS: {0}")]
    Tls(#[from] TlsError),
}

/// Users or certificates cannot be reloaded. The present ones stay in use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the variants are")]
pub enum ReloadError {
    #[error(transparent)]
    Users(#[from] UsersFileError),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

#[derive(Debug)]
pub struct ServerContext {
    pub store: Store,
    pub counters: Counters,
    pub config: Config,
    pub policy_section: PolicySection,
    pub connection_limit: ConnectionLimit,
    pub connections: Arc<ConnectionList>,
    pub dump_slot: DumpSlot,
    pub lru_crawler: LruCrawler,
    started: Instant,
    users: Option<Users>,
    tls: Option<Tls>,
    verbosity: AtomicU32,
    listen_addresses: Mutex<Vec<String>>,
    /// Whether a client has sent `shutdown`, and who waits for that.
    shutdown: AtomicBool,
    shutdown_waker: AtomicWaker,
}

/// The limit of open connections. Some of those above it may wait for others to close. A permit
/// counts as one open connection until it is dropped.
#[derive(Debug)]
pub struct ConnectionLimit {
    max: usize,
    permits: Arc<Semaphore>,
    places_to_wait: Semaphore,
    times_reached: AtomicU64,
}

impl ConnectionLimit {
    fn new(max: usize, max_waiting: usize) -> Self {
        Self {
            max,
            permits: Arc::new(Semaphore::new(max)),
            places_to_wait: Semaphore::new(max_waiting),
            times_reached: AtomicU64::new(0),
        }
    }

    pub fn open(&self) -> usize {
        self.max - self.permits.available_permits()
    }

    pub fn is_reached(&self) -> bool {
        self.permits.available_permits() == 0
    }

    pub fn times_reached(&self) -> u64 {
        self.times_reached.load(Ordering::Relaxed)
    }

    /// `None` if the limit is reached, which is counted.
    pub fn try_acquire(&self) -> Option<SemaphoreGuardArc> {
        let permit = self.permits.try_acquire_arc();
        self.times_reached.fetch_add(u64::from(permit.is_none()), Ordering::Relaxed);
        permit
    }

    /// Waits until another connection closes. `None` if too many connections wait already.
    pub async fn acquire(&self) -> Option<SemaphoreGuardArc> {
        let _place = self.places_to_wait.try_acquire()?;
        Some(self.permits.acquire_arc().await)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ServerContext {
    pub fn new(config: &Config, workers: usize) -> Result<Self, StartError> {
        let users = config.users_file.as_deref().map(Users::open).transpose()?;
        let tls = config.tls.as_ref().map(tls::open).transpose()?;
        let busy_poll_share = BusyPollShare::start(config.interface.as_deref());
        let max_waiting = config.backlog.unsigned_abs() as usize;
        Ok(Self {
            store: Store::new(config, workers),
            counters: Counters::new(workers),
            config: config.clone(),
            policy_section: PolicySection::new(move || busy_poll_share.display()),
            connection_limit: ConnectionLimit::new(config.max_connections, max_waiting),
            connections: Arc::default(),
            dump_slot: DumpSlot::default(),
            lru_crawler: LruCrawler::default(),
            started: runtime::time::now(),
            users,
            tls,
            verbosity: AtomicU32::new(config.verbosity),
            listen_addresses: Mutex::default(),
            shutdown: AtomicBool::new(false),
            shutdown_waker: AtomicWaker::new(),
        })
    }

    /// The time since the start, by the precise clock of the runtime's timers. It stands still
    /// while the machine is suspended, unlike the store's clock.
    pub fn uptime(&self) -> Duration {
        runtime::time::now().saturating_duration_since(self.started)
    }

    pub fn verbosity(&self) -> u32 {
        self.verbosity.load(Ordering::Relaxed)
    }

    pub fn set_verbosity(&self, level: u32) {
        self.verbosity.store(level, Ordering::Relaxed);
        super::logging::set_verbosity(level);
    }

    pub fn authenticate(&self, user: &[u8], password: &[u8]) -> bool {
        self.users.as_ref().is_some_and(|users| users.verify(user, password))
    }

    pub fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Reads users and certificates again. On an error the present ones stay.
    pub fn reload(&self) -> Result<(), ReloadError> {
        // Both are read before either is replaced.
        let loaded = self.tls.as_ref().map(Tls::load).transpose().map_err(TlsError::from)?;
        self.users.as_ref().map_or(Ok(()), Users::reload)?;
        if let (Some(tls), Some(loaded)) = (&self.tls, loaded) {
            tls.replace(loaded);
        }
        Ok(())
    }

    pub fn request_shutdown(&self) {
        self.shutdown.store(true, Ordering::SeqCst);
        self.shutdown_waker.wake();
    }

    /// Waits until a client has sent `shutdown`.
    pub async fn shutdown_requested(&self) {
        std::future::poll_fn(|context| {
            self.shutdown_waker.register(context.waker());
            if self.shutdown.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Adds an address to those that `stats conns` shows as listening.
    pub fn add_listen_address(&self, address: String) {
        lock(&self.listen_addresses).push(address);
    }

    pub fn listen_addresses(&self) -> Vec<String> {
        lock(&self.listen_addresses).clone()
    }
}
