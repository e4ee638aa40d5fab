//! The state that all connections and UDP sockets of a server share.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use adapters::tls::{Acceptor, Error as TlsError};
use async_lock::Semaphore;
use crossbeam_utils::atomic::AtomicCell;

use super::auth::{Users, UsersFileError};
use super::config::{Config, TlsConfig};
use super::stats::connections::ConnectionList;
use super::stats::counters::Counters;
use super::stats::policy_section::BusyPollShare;
use super::store::Store;

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

/// What is read of files: the users, and the certificates with their keys.
#[derive(Debug)]
pub struct Credentials {
    users: Option<Users>,
    tls: Option<Acceptor>,
}

impl Credentials {
    /// Reads the files that a configuration names.
    ///
    /// # Errors
    /// If a file cannot be read or is invalid.
    pub fn read(config: &Config) -> Result<Self, StartError> {
        let users = config.users_file.as_deref().map(Users::open).transpose()?;
        let tls = config.tls.as_ref().map(TlsConfig::open).transpose()?;
        Ok(Self { users, tls })
    }
}

#[derive(Debug)]
pub struct ServerContext {
    pub store: Store,
    pub counters: Counters,
    pub config: Config,
    pub busy_poll_share: BusyPollShare,
    /// An open connection has a permit.
    pub connection_permits: Semaphore,
    pub connections: Arc<ConnectionList>,
    /// Held by the client whose list of keys is being sent: a list takes long, and its replies memory.
    pub dump_permit: Semaphore,
    /// Whether a client has sent `lru_crawler disable`.
    pub crawler_disabled: AtomicCell<bool>,
    pub tls: Option<Acceptor>,
    listen_addresses: Mutex<Vec<String>>,
    started: Instant,
    pub users: Option<Users>,
    /// Has a permit once a client has sent `shutdown`.
    pub shutdown: Semaphore,
}

impl ServerContext {
    pub fn new(config: &Config, credentials: Credentials, workers: usize) -> Self {
        let Credentials { users, tls } = credentials;
        Self {
            store: Store::new(config, workers),
            counters: Counters::new(workers),
            config: config.clone(),
            busy_poll_share: BusyPollShare::start(config.interface.as_deref()),
            connection_permits: Semaphore::new(config.max_connections),
            connections: Arc::default(),
            dump_permit: Semaphore::new(1),
            crawler_disabled: AtomicCell::new(false),
            started: runtime::time::now(),
            users,
            tls,
            listen_addresses: Mutex::default(),
            shutdown: Semaphore::new(0),
        }
    }

    #[cfg(any(test, fuzzing))]
    pub fn open(config: &Config, workers: usize) -> Result<Self, StartError> {
        Ok(Self::new(config, Credentials::read(config)?, workers))
    }

    /// The time since the start, by the precise clock of the runtime's timers. It stands still
    /// while the machine is suspended, unlike the store's clock.
    pub fn uptime(&self) -> Duration {
        runtime::time::now().saturating_duration_since(self.started)
    }

    /// Reads users and certificates again. On an error the present ones stay.
    pub fn reload(&self) -> Result<(), ReloadError> {
        // Both are read before either is replaced.
        let loaded = self.tls.as_ref().map(Acceptor::load).transpose()?;
        self.users.as_ref().map_or(Ok(()), Users::reload)?;
        if let (Some(tls), Some(loaded)) = (&self.tls, loaded) {
            tls.replace(loaded);
        }
        Ok(())
    }

    /// The addresses that `stats conns` shows as listening.
    pub fn listen_addresses(&self) -> MutexGuard<'_, Vec<String>> {
        self.listen_addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
