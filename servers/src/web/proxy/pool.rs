//! A worker's connections to the upstreams of a route.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::task::{Context, Waker};
use std::time::Duration;

use super::client_share::{ClientShare, ClientShares};
use super::connection::Connection;
use super::upstream::{Counters, OpenConnection, Upstream};

/// How often idle connections are looked through, at least and at most.
const SWEEPS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// The pool of one worker and one route.
#[derive(Debug)]
pub(super) struct WorkerPool {
    upstreams: Box<[PooledUpstream]>,
    /// Whose turn it is.
    next: Cell<usize>,
    /// Sweeps so far.
    tick: Cell<u32>,
    /// The most idle connections to an upstream.
    limit: usize,
    /// Wakes the task that closes connections that were idle too long.
    sweeper: RefCell<Waker>,
}

/// An upstream, and this worker's idle connections to it, the most recently used last.
#[derive(Debug)]
pub(super) struct PooledUpstream {
    pub(super) upstream: Arc<Upstream>,
    pub(super) counters: Arc<Counters>,
    #[expect(
        clippy::vec_box,
        reason = "a connection is some hundred bytes, and moves twice for each request"
    )]
    idle: RefCell<Vec<Box<Connection>>>,
    shares: Rc<ClientShares>,
}

impl PooledUpstream {
    /// Takes the idle connection that was used last.
    pub(super) fn take_idle(&self) -> Option<Box<Connection>> {
        let mut idle = self.idle.borrow_mut();
        let taken = idle.pop()?;
        self.counters.set_idle(idle.len());
        Some(taken)
    }

    /// Counts one of at most `max` connections as a client's. `None` if it has to leave them to
    /// others.
    pub(super) fn take_share(&self, client: Option<IpAddr>, max: usize) -> Option<ClientShare> {
        let in_use = self.counters.open().saturating_sub(self.idle.borrow().len());
        self.shares.take(client, max.saturating_sub(in_use))
    }

    pub(super) fn count_open(&self) -> OpenConnection {
        OpenConnection::new(&self.counters)
    }

    /// A request has failed.
    pub(super) fn record_failure(&self, error: &dyn std::fmt::Display) {
        self.counters.count_failure();
        self.upstream.record_failure(error);
    }

    fn retain(&self, keep: impl FnMut(&mut Box<Connection>) -> bool) {
        let mut idle = self.idle.borrow_mut();
        if !idle.is_empty() {
            idle.retain_mut(keep);
            self.counters.set_idle(idle.len());
        }
    }
}

impl WorkerPool {
    /// Makes the pool of this worker. It and its connections live until `route` is dropped, and at
    /// most as long as the worker: a task of the worker owns them.
    pub(super) fn start(
        upstreams: &[Arc<Upstream>],
        limit: usize,
        idle_timeout: Duration,
        route: Weak<()>,
    ) -> Rc<Self> {
        let upstreams: Box<[_]> = upstreams
            .iter()
            .map(|upstream| PooledUpstream {
                upstream: Arc::clone(upstream),
                counters: upstream.add_worker(),
                idle: RefCell::default(),
                shares: Rc::default(),
            })
            .collect();
        // Workers begin with different upstreams.
        let next = Cell::new(runtime::current_worker() % upstreams.len().max(1));
        let sweeper = RefCell::new(Waker::noop().clone());
        let pool = Rc::new(Self { upstreams, next, tick: Cell::new(0), limit, sweeper });
        drop(runtime::spawn(sweep(Rc::clone(&pool), idle_timeout, route)));
        pool
    }

    pub(super) fn get(&self, upstream: usize) -> &PooledUpstream {
        &self.upstreams[upstream]
    }

    /// The upstream of the next request: the next one in turn that is healthy and not avoided;
    /// else, of those that are avoided because of errors, the one that is due first. None if all
    /// health checks fail, or all were `tried`.
    pub(super) fn choose(&self, tried: &[usize]) -> Option<usize> {
        let count = self.upstreams.len();
        let first = self.next.get();
        let mut avoided: Option<usize> = None;
        for index in (first..count).chain(0..first) {
            let upstream = &self.upstreams[index].upstream;
            if tried.contains(&index) || upstream.is_down() {
                continue;
            }
            if upstream.is_due() {
                self.next.set(if index + 1 < count { index + 1 } else { 0 });
                return Some(index);
            }
            if avoided.is_none_or(|other| upstream.due() < self.upstreams[other].upstream.due()) {
                avoided = Some(index);
            }
        }
        avoided
    }

    /// Takes a connection back whose response has ended. It is closed if it can't be used again, or
    /// if there are enough.
    pub(super) fn release(&self, upstream: usize, mut connection: Box<Connection>) {
        let upstream = &self.upstreams[upstream];
        let mut idle = upstream.idle.borrow_mut();
        if connection.is_reusable() && idle.len() < self.limit {
            connection.share = None;
            connection.idle_since = self.tick.get();
            connection.set_idle(&self.sweeper.borrow());
            idle.push(connection);
            upstream.counters.set_idle(idle.len());
        }
    }

    /// Closes the idle connections that the upstream has closed.
    fn close_ended(&self, context: &Context<'_>) {
        for upstream in &self.upstreams {
            upstream.retain(|connection| connection.poll_idle(context));
        }
    }

    fn close_expired(&self, ticks: u32) {
        let now = self.tick.get();
        for upstream in &self.upstreams {
            upstream.retain(|connection| now.wrapping_sub(connection.idle_since) <= ticks);
        }
        self.tick.set(now.wrapping_add(1));
    }
}

/// Closes idle connections until the route is dropped.
async fn sweep(pool: Rc<WorkerPool>, idle_timeout: Duration, route: Weak<()>) {
    let interval = (idle_timeout / 4).clamp(SWEEPS.0, SWEEPS.1);
    let ticks = idle_timeout.as_nanos().div_ceil(interval.as_nanos());
    let ticks = u32::try_from(ticks).unwrap_or(u32::MAX);
    while route.strong_count() > 0 {
        let mut sleep = runtime::sleep(interval);
        std::future::poll_fn(|context| {
            pool.sweeper.borrow_mut().clone_from(context.waker());
            pool.close_ended(context);
            Pin::new(&mut sleep).poll(context)
        })
        .await;
        pool.close_expired(ticks);
    }
}

/// A connection on loan from a pool. Unless it is released, it is closed.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) connection: Box<Connection>,
    pub(super) pool: Rc<WorkerPool>,
    pub(super) upstream: usize,
}

impl Lease {
    pub(super) fn release(self) {
        self.pool.release(self.upstream, self.connection);
    }
}
