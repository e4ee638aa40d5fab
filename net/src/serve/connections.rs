//! The open connections of a serving, which all workers share.

use std::collections::VecDeque;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use runtime::AbortHandle;
use slab::Slab;
use socket2::Socket;

use crate::serve::counts::{AcceptErrors, AlignmentCounters};

#[derive(Default)]
pub(super) struct ServeState {
    pub(super) counters: AlignmentCounters,
    pub(super) accept_errors: AcceptErrors,
    limit: Option<usize>,
    table: Mutex<Table>,
    next_id: AtomicU64,
    /// A graceful shutdown has begun.
    pub(super) stopping: AtomicBool,
    pub(super) stopped_accepting: AtomicBool,
    /// While nothing is accepted yet: those who accept after the pause.
    paused: Mutex<Option<Vec<Waker>>>,
    /// Woken when the last connection ends.
    drained: Mutex<Option<Waker>>,
}

#[derive(Default)]
struct Table {
    open: Slab<OpenConnection>,
    /// The workers with a connection that waits for a place, by arrival. Only the first may take a
    /// place that gets free: so a wake is never lost to a worker that was faster.
    waiting: VecDeque<(usize, Waker)>,
}

impl Table {
    fn is_full(&self, limit: Option<usize>) -> bool {
        limit.is_some_and(|limit| self.open.len() >= limit)
    }
}

struct OpenConnection {
    /// Distinguishes connections that had the same slot one after the other.
    id: u64,
    socket: Weak<Socket>,
    /// Set once the connection's task is spawned.
    task: Option<AbortHandle>,
}

/// A connection's slot in the table. The connection's task owns it, so that it is freed however the
/// task ends.
pub(super) struct ConnectionSlot {
    pub(super) state: Arc<ServeState>,
    key: usize,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut table = lock(&self.state.table);
        table.open.try_remove(self.key);
        let last = table.open.is_empty();
        let next = table.waiting.front().map(|(_, waker)| waker.clone());
        drop(table);
        // Woken outside of the lock.
        next.into_iter().for_each(Waker::wake);
        if last {
            let waker = lock(&self.state.drained).take();
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

pub(super) type Place = (ConnectionSlot, SlotKey);

/// Refers to a slot that may have been freed, and taken by another connection.
#[derive(Clone, Copy)]
pub(super) struct SlotKey {
    index: usize,
    id: u64,
}

impl ServeState {
    /// `limit`: how many connections may be open. `paused`: it has to be resumed first.
    pub(super) fn new(limit: Option<usize>, paused: bool) -> Arc<Self> {
        let paused = Mutex::new(paused.then(Vec::new));
        Arc::new(Self { limit, paused, ..Self::default() })
    }

    /// A place for a connection that this worker has accepted, once one is free.
    pub(super) async fn add(self: &Arc<Self>, socket: &Arc<Socket>) -> Place {
        std::future::poll_fn(|context| self.poll_add(context, socket)).await
    }

    fn poll_add(self: &Arc<Self>, context: &Context<'_>, socket: &Arc<Socket>) -> Poll<Place> {
        let mut table = lock(&self.table);
        if self.limit.is_none() {
            return Poll::Ready(self.insert(&mut table, socket));
        }
        let here = runtime::current_worker();
        let position = table.waiting.iter().position(|(worker, _)| *worker == here);
        if table.is_full(self.limit) || position.unwrap_or(table.waiting.len()) > 0 {
            match position {
                Some(position) => table.waiting[position].1.clone_from(context.waker()),
                None => table.waiting.push_back((here, context.waker().clone())),
            }
            return Poll::Pending;
        }
        table.waiting.pop_front();
        let place = self.insert(&mut table, socket);
        // Several places may be free.
        let next =
            table.waiting.front().filter(|_| !table.is_full(self.limit)).map(|(_, waker)| waker.clone());
        drop(table);
        next.into_iter().for_each(Waker::wake);
        Poll::Ready(place)
    }

    pub(super) fn try_add(self: &Arc<Self>, socket: &Arc<Socket>) -> Option<Place> {
        let mut table = lock(&self.table);
        (!table.is_full(self.limit)).then(|| self.insert(&mut table, socket))
    }

    /// The key is not kept in the slot, which is part of every connection's task.
    fn insert(self: &Arc<Self>, table: &mut Table, socket: &Arc<Socket>) -> Place {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let connection = OpenConnection { id, socket: Arc::downgrade(socket), task: None };
        let key = table.open.insert(connection);
        (ConnectionSlot { state: Arc::clone(self), key }, SlotKey { index: key, id })
    }

    /// Sets the handle of a connection's task, unless the task has ended.
    pub(super) fn set_task(&self, key: SlotKey, task: impl FnOnce() -> AbortHandle) {
        let mut table = lock(&self.table);
        if let Some(connection) = table.open.get_mut(key.index).filter(|open| open.id == key.id) {
            connection.task = Some(task());
        }
    }

    pub(super) fn connections(&self) -> usize {
        lock(&self.table).open.len()
    }

    /// Shuts down reading on all connections. Returns how many are open.
    pub(super) fn shutdown_reading(&self) -> usize {
        let table = lock(&self.table);
        for socket in table.open.iter().filter_map(|(_, connection)| connection.socket.upgrade()) {
            // Fails if the peer has closed the connection.
            let _ = socket.shutdown(Shutdown::Read);
        }
        table.open.len()
    }

    pub(super) fn resume(&self) {
        let woken = lock(&self.paused).take();
        woken.into_iter().flatten().for_each(Waker::wake);
    }

    pub(super) fn is_paused(&self) -> bool {
        lock(&self.paused).is_some()
    }

    /// Ready when connections may be accepted.
    pub(super) fn poll_resumed(&self, context: &Context<'_>) -> Poll<()> {
        match &mut *lock(&self.paused) {
            Some(waiting) => {
                waiting.push(context.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }

    /// Ready when no connection is open.
    pub(super) fn poll_drained(&self, context: &Context<'_>) -> Poll<()> {
        *lock(&self.drained) = Some(context.waker().clone());
        if lock(&self.table).open.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }

    pub(super) fn abort(&self) -> usize {
        let table = lock(&self.table);
        let tasks: Vec<AbortHandle> =
            table.open.iter().filter_map(|(_, connection)| connection.task.clone()).collect();
        // Outside of the lock: an aborted task may end at once, and locks to free its slot.
        drop(table);
        tasks.iter().for_each(AbortHandle::abort);
        tasks.len()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
