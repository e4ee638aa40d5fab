//! The list of open connections that `stats conns` shows.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_utils::atomic::AtomicCell;
use slab::Slab;

#[derive(Debug, Default)]
pub struct ConnectionList(Mutex<Slab<Arc<ConnectionInfo>>>);

impl ConnectionList {
    fn lock(&self) -> MutexGuard<'_, Slab<Arc<ConnectionInfo>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// At most `max` connections from a number on, with their numbers. What is done with them delays
    /// nobody who connects or disconnects meanwhile.
    pub fn some_from(&self, from: usize, max: usize) -> Vec<(usize, Arc<ConnectionInfo>)> {
        let connections = self.lock();
        let numbers = from..from.max(connections.capacity());
        let found = numbers.filter_map(|number| Some((number, Arc::clone(connections.get(number)?))));
        found.take(max).collect()
    }
}

/// What is known of a connection. Its own task writes, others read.
#[derive(Debug, Default)]
pub struct ConnectionInfo {
    pub peer: Box<str>,
    /// Shared by the listener's connections.
    pub local: Arc<str>,
    /// The second of the store's clock in which the client last sent something.
    pub last_request: AtomicCell<u32>,
    /// The server's uptime, in nanoseconds, when the client last sent something or took a part of a
    /// reply. It is read after that, and only with time limits.
    pub last_progress: AtomicCell<u64>,
    pub receiving_value: AtomicCell<bool>,
    /// Whether the client must take a part of its replies before the server goes on.
    pub stalled: AtomicCell<bool>,
    pub authenticated: AtomicCell<bool>,
}

impl ConnectionInfo {
    /// memcached's name of the connection's state.
    pub fn state(&self) -> &'static str {
        match (self.stalled.load(), self.receiving_value.load()) {
            (true, _) => "conn_mwrite",
            (false, true) => "conn_nread",
            (false, false) => "conn_read",
        }
    }
}

/// A connection's entry in the list. Removed when it is dropped.
#[derive(Debug)]
pub struct ListedConnection {
    list: Arc<ConnectionList>,
    number: usize,
    pub info: Arc<ConnectionInfo>,
}

impl ListedConnection {
    pub fn add(list: &Arc<ConnectionList>, info: Arc<ConnectionInfo>) -> Self {
        let number = list.lock().insert(Arc::clone(&info));
        Self { list: Arc::clone(list), number, info }
    }
}

impl Drop for ListedConnection {
    fn drop(&mut self) {
        self.list.lock().try_remove(self.number);
    }
}
