//! The settings, counts and threads of a dispatcher.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::builder::{Builder, Placement};
use super::dispatcher_metrics::Counters;

/// What a dispatcher's connections share.
#[derive(Debug)]
pub(super) struct DispatcherState {
    pub(super) settings: Builder,
    pub(super) counters: Counters,
    pub(super) threads: AtomicUsize,
    pub(super) started: AtomicU64,
    pub(super) refused: AtomicU64,
}

impl DispatcherState {
    pub(super) fn new(settings: Builder) -> Self {
        Self {
            settings,
            counters: Counters::default(),
            threads: AtomicUsize::new(0),
            started: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    pub(super) fn wake_batch(&self) -> usize {
        if self.settings.placement == Placement::SameCore { self.settings.wake_batch } else { 0 }
    }
}

/// Counts as a thread while it lives.
pub(super) struct CountedThread(Arc<DispatcherState>);

impl CountedThread {
    /// # Errors
    /// `QuotaExceeded` if there are as many as there may be.
    pub(super) fn new(state: &Arc<DispatcherState>) -> io::Result<Self> {
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
