//! The tasks of a worker that are to be polled.

use std::cell::RefCell;
use std::collections::VecDeque;

/// The keys of tasks to poll, in the order in which they were woken. A key may be outdated, and
/// refer to no task or to a later one: a task that is woken during its last poll leaves such a key.
/// The later task is then polled once in vain.
pub(super) struct RunQueue {
    keys: RefCell<VecDeque<u32>>,
    /// When the tasks were woken, in the order of `keys`; `None` unless schedule latency is
    /// recorded.
    wake_times: Option<RefCell<VecDeque<u64>>>,
}

impl RunQueue {
    pub(super) fn new(keeps_wake_times: bool) -> Self {
        Self { keys: RefCell::default(), wake_times: keeps_wake_times.then(RefCell::default) }
    }

    /// Adds a task that was woken at a time, which is ignored unless the queue keeps them.
    pub(super) fn push(&self, key: u32, wake_time: u64) {
        self.keys.borrow_mut().push_back(key);
        if let Some(times) = &self.wake_times {
            times.borrow_mut().push_back(wake_time);
        }
    }

    /// Takes the task that has waited longest, and when it was woken if the queue keeps that.
    pub(super) fn pop(&self) -> Option<(u32, Option<u64>)> {
        let key = self.keys.borrow_mut().pop_front()?;
        let wake_time = self.wake_times.as_ref().and_then(|times| times.borrow_mut().pop_front());
        Some((key, wake_time))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.borrow().is_empty()
    }

    pub(super) fn clear(&self) {
        self.keys.borrow_mut().clear();
        if let Some(times) = &self.wake_times {
            times.borrow_mut().clear();
        }
    }
}
