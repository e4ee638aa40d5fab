//! A thread's affinity and timer slack, which the threads and processes that it starts inherit.

use std::cell::RefCell;
use std::num::NonZeroU64;

use rustix::thread::{
    CpuSet, current_timer_slack, sched_getaffinity, sched_setaffinity, set_current_timer_slack,
};

thread_local! {
    /// What the thread had before it became a worker's, while it is one.
    static BEFORE: RefCell<Option<ThreadSettings>> = const { RefCell::new(None) };
}

/// The calling thread's affinity and timer slack, as far as they can be read.
#[derive(Clone)]
struct ThreadSettings {
    affinity: Option<CpuSet>,
    slack: Option<u64>,
}

impl ThreadSettings {
    fn read() -> Self {
        Self { affinity: sched_getaffinity(None).ok(), slack: current_timer_slack().ok() }
    }

    fn apply(&self) {
        // Neither call fails with values that the kernel has returned, unless the cores have gone
        // meanwhile.
        if let Some(affinity) = &self.affinity {
            let _ = sched_setaffinity(None, affinity);
        }
        let _ = set_current_timer_slack(self.slack.and_then(NonZeroU64::new));
    }
}

/// Remembers the thread's settings while it lives, and puts them back when it is dropped.
pub(super) struct KeptSettings(());

impl KeptSettings {
    pub(super) fn new() -> Self {
        let settings = ThreadSettings::read();
        BEFORE.with(|before| before.replace(Some(settings)));
        Self(())
    }
}

impl Drop for KeptSettings {
    fn drop(&mut self) {
        if let Some(settings) = BEFORE.with(RefCell::take) {
            settings.apply();
        }
    }
}

/// Starts a thread or a process with the affinity and the timer slack that this thread had before
/// it became a worker's, which it inherits. With a worker's own, it would compete with the worker
/// for its core, and its timers would be precise at the cost of wake-ups. On other threads it only
/// calls `start`.
pub fn with_settings_from_before<R>(start: impl FnOnce() -> R) -> R {
    /// Puts a worker's settings back, also when unwinding.
    struct Back {
        worker: ThreadSettings,
        before: ThreadSettings,
    }
    impl Drop for Back {
        fn drop(&mut self) {
            if sched_getaffinity(None).ok() != self.before.affinity {
                // Somebody has moved the worker meanwhile: it follows its queue's interrupt.
                self.worker.affinity = None;
            }
            self.worker.apply();
        }
    }
    let Some(before) = BEFORE.try_with(|before| before.borrow().clone()).ok().flatten() else {
        return start();
    };
    let worker = ThreadSettings::read();
    before.apply();
    let _back = Back { worker, before };
    start()
}
