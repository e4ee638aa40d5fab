//! The list of open connections that `stats conns` shows.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slab::Slab;

#[derive(Debug, Default)]
pub struct ConnectionList(Mutex<Slab<Arc<ConnectionInfo>>>);

impl ConnectionList {
    fn lock(&self) -> MutexGuard<'_, Slab<Arc<ConnectionInfo>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All connections with their numbers. What is done with them delays nobody who connects or
    /// disconnects meanwhile.
    pub fn all(&self) -> Vec<(usize, Arc<ConnectionInfo>)> {
        self.lock().iter().map(|(number, connection)| (number, Arc::clone(connection))).collect()
    }
}

#[derive(Debug)]
pub struct ConnectionInfo {
    pub peer: Box<str>,
    /// Shared by the listener's connections.
    pub local: Arc<str>,
    last_request: AtomicU32,
    /// In nanoseconds.
    last_progress: AtomicU64,
    receiving_value: AtomicBool,
    stalled: AtomicBool,
    authenticated: AtomicBool,
}

impl ConnectionInfo {
    /// A connection that is not served yet. `authenticated`: whether its client need not
    /// authenticate.
    pub fn new(peer: Box<str>, local: Arc<str>, authenticated: bool) -> Self {
        Self {
            peer,
            local,
            last_request: AtomicU32::new(0),
            last_progress: AtomicU64::new(0),
            receiving_value: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            authenticated: AtomicBool::new(authenticated),
        }
    }

    /// Records that it is served from second `now` on, after `uptime` of the server.
    pub fn begin(&self, now: u32, uptime: Duration) {
        self.last_request.store(now, Ordering::Relaxed);
        self.record_progress(uptime);
    }

    /// memcached's name of the connection's state.
    pub fn state(&self) -> &'static str {
        if self.is_stalled() {
            "conn_mwrite"
        } else if self.receiving_value.load(Ordering::Relaxed) {
            "conn_nread"
        } else {
            "conn_read"
        }
    }

    /// Records whether the client must take a part of its replies before the server goes on.
    pub fn set_stalled(&self, stalled: bool) {
        self.stalled.store(stalled, Ordering::Relaxed);
    }

    pub fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }

    pub fn last_request(&self) -> u32 {
        self.last_request.load(Ordering::Relaxed)
    }

    /// The server's uptime when the client last sent something or took a part of a reply.
    pub fn last_progress(&self) -> Duration {
        Duration::from_nanos(self.last_progress.load(Ordering::Relaxed))
    }

    /// Records that the client has sent something or taken a part of a reply. `uptime` must be read
    /// after that.
    pub fn record_progress(&self, uptime: Duration) {
        // 584 years fit.
        self.last_progress.store(uptime.as_nanos() as u64, Ordering::Relaxed);
    }

    pub fn is_authenticated(&self) -> bool {
        self.authenticated.load(Ordering::Relaxed)
    }

    /// Records that the client has sent something, in second `now` of the store's clock.
    pub fn update(&self, now: u32, receiving_value: bool, authenticated: bool) {
        self.last_request.store(now, Ordering::Relaxed);
        self.receiving_value.store(receiving_value, Ordering::Relaxed);
        self.authenticated.store(authenticated, Ordering::Relaxed);
    }
}

/// A connection's entry in the list. Removed when it is dropped.
#[derive(Debug)]
pub struct ListedConnection {
    list: Arc<ConnectionList>,
    number: usize,
    info: Arc<ConnectionInfo>,
}

impl ListedConnection {
    pub fn add(list: &Arc<ConnectionList>, info: Arc<ConnectionInfo>) -> Self {
        let number = list.lock().insert(Arc::clone(&info));
        Self { list: Arc::clone(list), number, info }
    }
}

impl std::ops::Deref for ListedConnection {
    type Target = ConnectionInfo;

    fn deref(&self) -> &ConnectionInfo {
        &self.info
    }
}

impl Drop for ListedConnection {
    fn drop(&mut self) {
        self.list.lock().try_remove(self.number);
    }
}
