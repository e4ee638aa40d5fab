//! The limit of open connections, and who goes when it is reached.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use slab::Slab;

use super::activity::{Activity, clock};

/// A limit of open connections, for one or several servers: its clones are the same limit
/// ([`Serve::connection_limit`](super::Serve::connection_limit)).
///
/// A connection counts from its accept on, before a TLS handshake. At the limit the connections
/// that have been idle for longest are closed for new ones. If none is idle, the new one is closed.
///
/// Idle is a connection without a request in progress, whatever else comes on it: one that has not
/// begun or completed its handshake or the head of its first request, one that is kept alive, or
/// one of HTTP/2 that only pings.
#[derive(Debug, Clone)]
pub struct ConnectionLimit(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    max: usize,
    table: Mutex<Table>,
    open: AtomicUsize,
    refused: AtomicU64,
    closed: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    connections: Slab<Arc<Seat>>,
    /// When idle connections are looked for again.
    next_search: Duration,
}

/// The requests in progress of a connection ([`ConnectionLimit::run`]).
#[cfg(feature = "quinn")]
#[derive(Debug)]
pub struct Requests(Arc<Activity>);

#[cfg(feature = "quinn")]
impl Requests {
    /// Counts a request until the result is dropped.
    pub fn begin(&self) -> impl Sized + 'static + use<> {
        self.0.begin()
    }
}

#[derive(Debug)]
struct Seat {
    activity: Arc<Activity>,
    is_taken_away: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

/// Of how many connections one is closed at once for new ones. A search looks at all.
const CLOSED_SHARE: usize = 128;
/// How long nothing is searched for after no connection was found to be idle.
const SEARCH_PAUSE: Duration = Duration::from_millis(10);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ConnectionLimit {
    /// A limit of `max` connections.
    pub fn new(max: usize) -> Self {
        Self(Arc::new(Shared {
            max,
            table: Mutex::default(),
            open: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            closed: AtomicU64::new(0),
        }))
    }

    /// Open connections, those in a TLS handshake and those that were upgraded included.
    pub fn open(&self) -> usize {
        self.0.open.load(Ordering::Relaxed)
    }

    /// How many connections were closed when they were accepted, as none of the others was idle.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }

    /// How many idle connections were closed for new ones.
    pub fn closed(&self) -> u64 {
        self.0.closed.load(Ordering::Relaxed)
    }

    /// Counts a connection that is not served by this crate's servers, as one of QUIC, as long as
    /// the future runs that `serve` returns. It is dropped if its place is taken away. `None` then,
    /// and if there is no place.
    #[cfg(feature = "quinn")]
    pub async fn run<F: Future>(&self, serve: impl FnOnce(Requests) -> F) -> Option<F::Output> {
        let activity = Arc::new(Activity::new());
        let mut place = self.admit(&activity)?;
        let mut served = std::pin::pin!(serve(Requests(activity)));
        std::future::poll_fn(|task| match place.poll_taken_away(task) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => served.as_mut().poll(task).map(Some),
        })
        .await
    }

    /// `None` if there is no place.
    pub(super) fn admit(&self, activity: &Arc<Activity>) -> Option<Place> {
        let shared = &*self.0;
        let mut table = lock(&shared.table);
        let mut given_up = Vec::new();
        if table.connections.len() >= shared.max {
            given_up = table.take_longest_idle((shared.max / CLOSED_SHARE).max(1));
            if given_up.is_empty() {
                shared.refused.fetch_add(1, Ordering::Relaxed);
                return None;
            }
        }
        let seat = Arc::new(Seat {
            activity: Arc::clone(activity),
            is_taken_away: AtomicBool::new(false),
            waker: Mutex::default(),
        });
        let key = table.connections.insert(Arc::clone(&seat));
        shared.open.store(table.connections.len(), Ordering::Relaxed);
        drop(table);
        shared.closed.fetch_add(given_up.len() as u64, Ordering::Relaxed);
        given_up.iter().for_each(|seat| seat.take_away());
        Some(Place { limit: self.clone(), seat, key, registered: None })
    }
}

impl Table {
    /// Takes up to `count` idle connections out.
    fn take_longest_idle(&mut self, count: usize) -> Vec<Arc<Seat>> {
        let now = clock();
        if now < self.next_search {
            return Vec::new();
        }
        let times =
            self.connections.iter().filter_map(|(key, seat)| Some((seat.activity.idle_since()?, key)));
        let mut idle: Vec<_> = times.collect();
        if idle.is_empty() {
            self.next_search = now + SEARCH_PAUSE;
            return Vec::new();
        }
        if count < idle.len() {
            idle.select_nth_unstable(count);
            idle.truncate(count);
        }
        idle.into_iter().map(|(_, key)| self.connections.remove(key)).collect()
    }
}

impl Seat {
    fn take_away(&self) {
        self.is_taken_away.store(true, Ordering::SeqCst);
        let waker = lock(&self.waker).take();
        waker.into_iter().for_each(Waker::wake);
    }
}

/// A connection's place among those that may be open. Dropped, it is free, unless another
/// connection has it already.
#[derive(Debug)]
pub(super) struct Place {
    limit: ConnectionLimit,
    seat: Arc<Seat>,
    key: usize,
    /// The task that is woken.
    registered: Option<Waker>,
}

impl Place {
    /// Ready when the connection has to go.
    pub(super) fn poll_taken_away(&mut self, context: &Context<'_>) -> Poll<()> {
        let waker = context.waker();
        if !self.registered.as_ref().is_some_and(|registered| registered.will_wake(waker)) {
            *lock(&self.seat.waker) = Some(waker.clone());
            self.registered = Some(waker.clone());
        }
        if self.seat.is_taken_away.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let shared = &*self.limit.0;
        let mut table = lock(&shared.table);
        if table.connections.get(self.key).is_some_and(|seat| Arc::ptr_eq(seat, &self.seat)) {
            table.connections.remove(self.key);
            shared.open.store(table.connections.len(), Ordering::Relaxed);
            // This place is free: whoever finds it taken again may search.
            table.next_search = Duration::ZERO;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_taken_away(place: &mut Place) -> bool {
        place.poll_taken_away(&Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn the_connection_that_is_idle_for_longest_goes_and_none_that_is_busy() {
        let limit = ConnectionLimit::new(3);
        let activities = [(); 3].map(|()| Arc::new(Activity::new()));
        let mut places = activities.each_ref().map(|activity| limit.admit(activity).unwrap());
        // The first was idle for longest, and the second is idle since now.
        drop(activities[1].begin());
        let _request = activities[0].begin();
        let late = Arc::new(Activity::new());
        let mut fourth = limit.admit(&late).unwrap();
        assert_eq!(places.each_mut().map(is_taken_away), [false, false, true]);
        assert_eq!((limit.open(), limit.closed(), limit.refused()), (3, 1, 0));
        let _requests = (activities[1].begin(), late.begin());
        assert!(limit.admit(&Arc::new(Activity::new())).is_none());
        assert_eq!((limit.open(), limit.closed(), limit.refused()), (3, 1, 1));
        // Its place is another's: its end frees none.
        let [first, second, third] = places;
        drop(third);
        assert_eq!(limit.open(), 3);
        drop((first, second));
        assert!(limit.open() == 1 && !is_taken_away(&mut fourth));
    }
}
