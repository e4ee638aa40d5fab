//! The state that all connections and UDP sockets of a server share.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use super::auth::Users;
use super::config::Config;
use super::connection::list::ConnectionList;
use super::dump_slot::DumpSlot;
use super::error::{ReloadError, StartError};
use super::protocol::classic::tuning::LruCrawler;
use super::stats::busy_poll_share::BusyPollShare;
use super::stats::counters::Counters;
use super::stats::policy_section::PolicySection;
use super::store::{Store, StoreConfig};
use super::tls::Tls;
use crate::connection_limit::ConnectionLimit;

#[derive(Debug)]
pub struct ServerContext {
    pub store: Store,
    pub counters: Counters,
    pub config: Config,
    pub policy_section: PolicySection,
    pub connection_limit: Arc<ConnectionLimit>,
    pub connections: Arc<ConnectionList>,
    pub dump_slot: DumpSlot,
    pub lru_crawler: LruCrawler,
    started: Instant,
    users: Option<Users>,
    tls: Option<Tls>,
    verbosity: AtomicU32,
    listen_addresses: Mutex<Vec<String>>,
    shutdown: ShutdownRequest,
}

/// Whether a client has sent `shutdown`, and who waits for that.
#[derive(Debug, Default)]
struct ShutdownRequest {
    requested: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ServerContext {
    pub fn new(config: &Config, workers: usize) -> Result<Self, StartError> {
        let users = config.users_file.as_deref().map(Users::open).transpose()?;
        let tls = config.tls.as_ref().map(Tls::open).transpose()?;
        let store = StoreConfig {
            memory: config.memory,
            max_item: config.max_item,
            evict: config.evict,
            cas: config.cas,
            workers,
        };
        let busy_poll_share = BusyPollShare::start(config.interface.as_deref());
        let max_waiting = config.backlog.unsigned_abs() as usize;
        Ok(Self {
            store: Store::new(store),
            counters: Counters::new(workers),
            config: config.clone(),
            policy_section: PolicySection::new(move || busy_poll_share.display()),
            connection_limit: Arc::new(ConnectionLimit::new(config.max_connections, max_waiting)),
            connections: Arc::default(),
            dump_slot: DumpSlot::default(),
            lru_crawler: LruCrawler::default(),
            started: runtime::time::now(),
            users,
            tls,
            verbosity: AtomicU32::new(config.verbosity),
            listen_addresses: Mutex::default(),
            shutdown: ShutdownRequest::default(),
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
        let loaded = self.tls.as_ref().map(Tls::load).transpose()?;
        self.users.as_ref().map_or(Ok(()), Users::reload)?;
        if let (Some(tls), Some(loaded)) = (&self.tls, loaded) {
            tls.replace(loaded);
        }
        Ok(())
    }

    pub fn request_shutdown(&self) {
        self.shutdown.requested.store(true, Ordering::SeqCst);
        if let Some(waker) = lock(&self.shutdown.waker).take() {
            waker.wake();
        }
    }

    /// Waits until a client has sent `shutdown`.
    pub async fn shutdown_requested(&self) {
        std::future::poll_fn(|context| {
            *lock(&self.shutdown.waker) = Some(context.waker().clone());
            if self.shutdown.requested.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
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
