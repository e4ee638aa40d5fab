//! Tells all connections of a server, on all workers, that it shuts down.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use slab::Slab;

#[derive(Debug, Default)]
pub(super) struct Shutdown {
    begun: AtomicBool,
    waiting: Mutex<Slab<Waker>>,
}

impl Shutdown {
    pub(super) fn begin(&self) {
        // The flag is set under the lock that registers wakers, so that a waker is either woken
        // here or sees the flag.
        let waiting = {
            let mut waiting = self.lock();
            self.begun.store(true, Ordering::Release);
            std::mem::take(&mut *waiting)
        };
        waiting.into_iter().for_each(|(_, waker)| waker.wake());
    }

    fn lock(&self) -> MutexGuard<'_, Slab<Waker>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(super) struct ShutdownListener {
    shutdown: Arc<Shutdown>,
    /// The task that is registered, and where.
    registered: Option<(usize, Waker)>,
}

impl ShutdownListener {
    pub(super) fn new(shutdown: Arc<Shutdown>) -> Self {
        Self { shutdown, registered: None }
    }

    /// Takes the lock only when the task changes.
    pub(super) fn poll(&mut self, context: &Context<'_>) -> Poll<()> {
        if self.shutdown.begun.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        let waker = context.waker();
        if self.registered.as_ref().is_some_and(|(_, registered)| registered.will_wake(waker)) {
            return Poll::Pending;
        }
        let mut waiting = self.shutdown.lock();
        if self.shutdown.begun.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        let mut replaced = None;
        let key = match &self.registered {
            Some((key, _)) => {
                replaced = waiting.get_mut(*key).map(|old| std::mem::replace(old, waker.clone()));
                *key
            }
            None => waiting.insert(waker.clone()),
        };
        drop(waiting);
        // Foreign code, perhaps: dropped outside of the lock.
        drop(replaced);
        self.registered = Some((key, waker.clone()));
        Poll::Pending
    }
}

impl Drop for ShutdownListener {
    fn drop(&mut self) {
        if let Some((key, _)) = &self.registered {
            let removed = {
                let mut waiting = self.shutdown.lock();
                // After the beginning the table is empty, and stays so.
                waiting.try_remove(*key)
            };
            drop(removed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn those_who_listen_are_woken_once_and_those_who_left_are_not() {
        let shutdown = Arc::new(Shutdown::default());
        let counters = [(); 3].map(|()| Arc::new(WakeCounter::default()));
        let mut listeners = [(); 3].map(|()| ShutdownListener::new(Arc::clone(&shutdown)));
        for (listener, counter) in listeners.iter_mut().zip(&counters) {
            let waker = Waker::from(Arc::clone(counter));
            assert!(listener.poll(&Context::from_waker(&waker)).is_pending());
            assert!(listener.poll(&Context::from_waker(&waker)).is_pending());
        }
        let [first, second, left] = listeners;
        drop(left);
        assert_eq!(shutdown.lock().len(), 2);
        shutdown.begin();
        shutdown.begin();
        assert_eq!(counters.map(|counter| counter.0.load(Ordering::Relaxed)), [1, 1, 0]);
        for mut listener in [first, second, ShutdownListener::new(Arc::clone(&shutdown))] {
            assert!(listener.poll(&Context::from_waker(Waker::noop())).is_ready());
        }
        assert!(shutdown.lock().is_empty());
    }
}
