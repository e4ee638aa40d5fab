//! A worker's timers: deadlines in order, each with whom to wake.

use std::collections::BTreeMap;
use std::task::Waker;
use std::time::Instant;

/// A timer's place, for moving and removing it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimerKey {
    deadline: Instant,
    /// Tells timers of one instant apart, and keeps them in the order in which they were set.
    sequence: u64,
}

#[derive(Default)]
pub(crate) struct Timers {
    queue: BTreeMap<TimerKey, Waker>,
    sequence: u64,
}

impl Timers {
    pub(crate) fn insert(&mut self, deadline: Instant, waker: Waker) -> TimerKey {
        self.sequence += 1;
        let key = TimerKey { deadline, sequence: self.sequence };
        self.queue.insert(key, waker);
        key
    }

    /// Replaces the waker of a timer that has not fired; `false` if it has.
    pub(crate) fn update(&mut self, key: TimerKey, waker: &Waker) -> bool {
        match self.queue.get_mut(&key) {
            Some(slot) => {
                slot.clone_from(waker);
                true
            }
            None => false,
        }
    }

    pub(crate) fn remove(&mut self, key: TimerKey) -> Option<Waker> {
        self.queue.remove(&key)
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.queue.first_key_value().map(|(key, _)| key.deadline)
    }

    /// Takes the wakers of all timers that are due.
    pub(crate) fn take_due(&mut self, now: Instant) -> Vec<Waker> {
        let mut due = Vec::new();
        while let Some(entry) = self.queue.first_entry() {
            if entry.key().deadline > now {
                break;
            }
            due.push(entry.remove());
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_due_timers_are_taken_and_removed_ones_never() {
        let now = Instant::now();
        let mut timers = Timers::default();
        let early = timers.insert(now, Waker::noop().clone());
        let same = timers.insert(now, Waker::noop().clone());
        let late = timers.insert(now + Duration::from_secs(1), Waker::noop().clone());
        assert!(timers.remove(same).is_some());
        assert_eq!(timers.take_due(now).len(), 1);
        assert!(!timers.update(early, Waker::noop()));
        assert!(timers.update(late, Waker::noop()));
        assert_eq!(timers.next(), Some(now + Duration::from_secs(1)));
    }
}
