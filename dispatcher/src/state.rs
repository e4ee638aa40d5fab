//! The settings, counts and threads of a dispatcher.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::builder::{Builder, Placement};
use crate::metrics::Counters;

#[derive(Debug)]
pub(crate) struct DispatcherState {
    pub(crate) settings: Builder,
    pub(crate) counters: Counters,
    pub(crate) threads: AtomicUsize,
    pub(crate) started: AtomicU64,
    pub(crate) refused: AtomicU64,
}

impl DispatcherState {
    pub(crate) fn new(settings: Builder) -> Self {
        Self {
            settings,
            counters: Counters::default(),
            threads: AtomicUsize::new(0),
            started: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    pub(crate) fn wake_batch(&self) -> usize {
        if self.settings.placement == Placement::SameCore { self.settings.wake_batch } else { 0 }
    }
}

pub(crate) struct CountedThread(Arc<DispatcherState>);

impl CountedThread {
    /// # Errors
    /// `QuotaExceeded` if there are as many as there may be.
    pub(crate) fn new(state: &Arc<DispatcherState>) -> io::Result<Self> {
        let most = state.settings.max_threads;
        let add = |threads: usize| (threads < most).then_some(threads + 1);
        match state.threads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            Ok(_) => Ok(Self(Arc::clone(state))),
            Err(threads) => Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                format!(
                    "the dispatcher has {threads} threads, and may have {most} (dispatcher::Builder::max_threads)"
                ),
            )),
        }
    }
}

impl Drop for CountedThread {
    fn drop(&mut self) {
        self.0.threads.fetch_sub(1, Ordering::Relaxed);
    }
}
