//! What a connection is doing, as its server's limits want to know it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::shared_room::{SharedRoom, Taken};

/// How many bytes of responses a connection of HTTP/2 may have that its client has not taken. hyper
/// limits those of a stream only, of which a client may have hundreds. A part that is given while
/// there is room may exceed it.
const ROOM: usize = 384 << 10;

/// What all connections of HTTP/2 may have beside one part each. Beyond it a connection gets
/// another part when its client has taken all others.
static SHARED_ROOM: SharedRoom = SharedRoom::new(256 << 20);

/// Shared by the tasks of a connection, the parts of its responses, and the table that finds idle
/// connections. Only the connection's worker changes it, except that the last parts of a connection
/// may be dropped elsewhere.
#[derive(Debug)]
pub(super) struct Activity {
    /// Requests in progress: up to the last part of their response.
    requests: AtomicUsize,
    begun: AtomicU64,
    /// Bytes of responses that hyper was given and the connection has not taken yet.
    unsent: AtomicUsize,
    /// When some of them were taken, or given where there were none. All times are those of
    /// [`clock`].
    progress: AtomicU64,
    idle_since: AtomicU64,
    /// An HTTP/2 stream has become a WebSocket or a tunnel, of whose end hyper tells nobody.
    has_tunnel: AtomicBool,
    /// Streams that wait for room.
    waiting: Mutex<Vec<Waker>>,
    /// Whether there were some since the last wake-up.
    has_waiting: AtomicBool,
    shared: &'static SharedRoom,
}

/// The time of a process: since its first connection.
pub(super) fn clock() -> Duration {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    let now = runtime::time::now();
    now.saturating_duration_since(*BEGIN.get_or_init(|| now))
}

fn nanoseconds() -> u64 {
    u64::try_from(clock().as_nanos()).unwrap_or(u64::MAX)
}

impl Activity {
    pub(super) fn new() -> Self {
        Self {
            requests: AtomicUsize::new(0),
            begun: AtomicU64::new(0),
            unsent: AtomicUsize::new(0),
            progress: AtomicU64::new(0),
            idle_since: AtomicU64::new(nanoseconds()),
            has_tunnel: AtomicBool::new(false),
            waiting: Mutex::default(),
            has_waiting: AtomicBool::new(false),
            shared: &SHARED_ROOM,
        }
    }

    /// Counts a request until the result is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> InProgress {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        InProgress(Arc::clone(self))
    }

    /// Requests since the beginning.
    pub(super) fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    pub(super) fn set_tunnel(&self) {
        self.has_tunnel.store(true, Ordering::Relaxed);
    }

    /// Whether a request is in progress, or the client has not taken all of its responses.
    pub(super) fn is_busy(&self) -> bool {
        self.requests.load(Ordering::Relaxed) > 0
            || self.has_unsent()
            || self.has_tunnel.load(Ordering::Relaxed)
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.unsent.load(Ordering::Relaxed) > 0
    }

    /// Since when it is idle; `None` if it isn't.
    pub(super) fn idle_since(&self) -> Option<u64> {
        (!self.is_busy()).then(|| self.idle_since.load(Ordering::Relaxed))
    }

    /// When the client has last taken something of what waits for it.
    pub(super) fn progress(&self) -> Duration {
        Duration::from_nanos(self.progress.load(Ordering::Relaxed))
    }

    fn set_idle(&self) {
        self.idle_since.store(nanoseconds(), Ordering::Relaxed);
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ready if another part of a response may be given.
    pub(super) fn poll_room(&self, context: &Context<'_>) -> Poll<()> {
        let has_room = || match self.unsent.load(Ordering::SeqCst) {
            0 => true,
            unsent => unsent < ROOM && self.shared.left() > 0,
        };
        if has_room() {
            return Poll::Ready(());
        }
        let mut waiting = self.waiting();
        // A stream is polled for other reasons, too, as often as its client likes.
        if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            waiting.push(context.waker().clone());
        }
        drop(waiting);
        self.has_waiting.store(true, Ordering::SeqCst);
        // Room may have come before the waker was there.
        if has_room() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Counts bytes as unsent until the result is dropped. `shares`: they take room that all
    /// connections share.
    pub(super) fn give(self: &Arc<Self>, length: usize, shares: bool) -> Unsent {
        let is_first = self.unsent.fetch_add(length, Ordering::SeqCst) == 0;
        if is_first {
            self.progress.store(nanoseconds(), Ordering::Relaxed);
        }
        let shared = (shares && !is_first).then(|| self.shared.take(length));
        Unsent { activity: Arc::clone(self), length, shared }
    }
}

#[derive(Debug)]
pub(super) struct InProgress(Arc<Activity>);

impl InProgress {
    pub(super) fn activity(&self) -> &Arc<Activity> {
        &self.0
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        if self.0.requests.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.set_idle();
        }
    }
}

/// Bytes that wait for the client.
#[derive(Debug)]
pub(super) struct Unsent {
    activity: Arc<Activity>,
    length: usize,
    /// The shared room that they take.
    shared: Option<Taken>,
}

impl Drop for Unsent {
    fn drop(&mut self) {
        // Before those who wait for room are woken.
        drop(self.shared.take());
        let activity = &*self.activity;
        let before = activity.unsent.fetch_sub(self.length, Ordering::SeqCst);
        activity.progress.store(nanoseconds(), Ordering::Relaxed);
        if before == self.length {
            activity.set_idle();
        }
        // Half of it, so that all who wait are woken a few times for a megabyte, not for each part.
        // All of it for those for whom the shared room was not enough.
        let is_half_free = before > ROOM / 2 && before - self.length <= ROOM / 2;
        let is_free = before == self.length && activity.has_waiting.load(Ordering::SeqCst);
        if is_half_free || is_free {
            activity.has_waiting.store(false, Ordering::SeqCst);
            let woken = std::mem::take(&mut *activity.waiting());
            woken.into_iter().for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::wake_counter::WakeCounter;
    use super::*;

    #[test]
    fn a_connection_is_idle_after_its_last_request_and_its_last_byte() {
        let activity = Arc::new(Activity::new());
        let begun = activity.idle_since().unwrap();
        let (first, second) = (activity.begin(), activity.begin());
        let unsent = activity.give(10, true);
        assert!(activity.idle_since().is_none());
        drop((first, second));
        assert!(activity.idle_since().is_none(), "10 bytes wait for the client");
        drop(unsent);
        assert!(activity.idle_since().unwrap() > begun && activity.begun() == 2);
        activity.set_tunnel();
        assert!(activity.idle_since().is_none(), "it may be in use");
    }

    #[test]
    fn who_waits_for_room_is_registered_once_and_woken_when_half_is_free() {
        let activity = Arc::new(Activity::new());
        let waker = Waker::from(Arc::new(WakeCounter::default()));
        let context = Context::from_waker(&waker);
        let parts: Vec<_> = (0..4).map(|_| activity.give(ROOM / 4, true)).collect();
        assert!(activity.poll_room(&context).is_pending() && activity.poll_room(&context).is_pending());
        assert_eq!(activity.waiting().len(), 1);
        let mut parts = parts.into_iter();
        drop(parts.next());
        assert_eq!(activity.waiting().len(), 1);
        drop(parts.next());
        assert_eq!(activity.waiting().len(), 0);
        assert!(activity.poll_room(&context).is_ready());
    }

    #[test]
    fn without_shared_room_a_connection_has_one_part_and_another_when_that_is_taken() {
        let shared = SharedRoom::leaked(100);
        let [first, second] = [(); 2].map(|()| Arc::new(Activity { shared, ..Activity::new() }));
        let waker = Waker::from(Arc::new(WakeCounter::default()));
        let context = Context::from_waker(&waker);
        let parts = [first.give(70, true), first.give(70, true), first.give(70, true)];
        assert!(first.poll_room(&context).is_pending());
        let only = second.give(70, true);
        assert!(second.poll_room(&context).is_pending() && second.waiting().len() == 1);
        drop(only);
        assert!(second.waiting().is_empty() && second.poll_room(&context).is_ready());
        drop(parts);
        assert_eq!(shared.taken(), 0);
    }
}
