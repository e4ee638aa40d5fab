//! What workers ask a supervisor to set on their queues.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::Pid;

use crate::controller::QueueSettings;
use crate::host::machine::may_set_napis;

/// The requests of a runtime's workers to its supervisor: the controller of each worker chooses its
/// queue's settings, and the supervisor, which holds the journal, sets them.
///
/// A worker never waits for the supervisor, which may have lost its core within a call to what has
/// more of a right to it, like the worker itself, and be without one for many milliseconds.
#[derive(Debug)]
pub struct QueueRequests {
    /// Written on each request.
    eventfd: OwnedFd,
    states: Mutex<BTreeMap<u32, State>>,
    /// Who sets the values; empty until a supervisor runs.
    setter: OnceLock<Setter>,
    has_ended: AtomicBool,
}

#[derive(Debug)]
struct Setter {
    supervisor: Pid,
    has_delegate: bool,
}

#[derive(Debug)]
enum State {
    Wanted(QueueSettings),
    Answered(Result<(), String>),
}

impl QueueRequests {
    pub fn new() -> io::Result<Self> {
        let eventfd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self {
            eventfd,
            states: Mutex::default(),
            setter: OnceLock::new(),
            has_ended: AtomicBool::new(false),
        })
    }

    /// Whether a supervisor runs that may set the values of queues, or knows a process that may. It
    /// keeps its privileges when another thread gives up its own; a process that changes its user
    /// takes them from all.
    pub fn can_be_set(&self) -> bool {
        let may = |setter: &Setter| setter.has_delegate || may_set_napis(setter.supervisor);
        self.setter.get().is_some_and(may)
    }

    /// Called on the supervisor's thread. Its end is known when what is returned is dropped, also
    /// after a panic.
    pub(super) fn supervised(self: &Arc<Self>, has_delegate: bool) -> EndOfSupervisor {
        // There is one supervisor for each list.
        let _ = self.setter.set(Setter { supervisor: rustix::thread::gettid(), has_delegate });
        EndOfSupervisor(Arc::clone(self))
    }

    /// Whether the supervisor has ended, and has restored the queues' values from before.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Asks for settings of a queue, and wakes the supervisor. Replaces an earlier request for the
    /// queue. Returns whether it could; if not, another thread is in a call.
    #[must_use]
    pub fn request(&self, queue: u32, settings: QueueSettings) -> bool {
        let Some(mut states) = self.try_locked() else { return false };
        states.insert(queue, State::Wanted(settings));
        drop(states);
        // Fails only if the counter is full, and then the supervisor is about to wake up.
        let _ = rustix::io::write(&self.eventfd, &1_u64.to_ne_bytes());
        true
    }

    /// Takes the answer to the last request for a queue: whether its values are set, or why they
    /// can't be. `None` until there is one, and while another thread is in a call.
    pub fn take_answer(&self, queue: u32) -> Option<Result<(), String>> {
        let mut states = self.try_locked()?;
        match states.remove(&queue)? {
            State::Answered(answer) => Some(answer),
            wanted @ State::Wanted(_) => {
                states.insert(queue, wanted);
                None
            }
        }
    }

    /// The requests without an answer.
    pub(super) fn pending(&self) -> Vec<(u32, QueueSettings)> {
        let mut count = [0; 8];
        // Fails if the eventfd was not written, or was drained already.
        let _ = rustix::io::read(&self.eventfd, &mut count);
        let states = self.locked();
        let wanted = states.iter().filter_map(|(queue, state)| match state {
            State::Wanted(settings) => Some((*queue, *settings)),
            State::Answered(_) => None,
        });
        wanted.collect()
    }

    /// Answers a request, unless a newer one has replaced it.
    pub(super) fn answer(&self, queue: u32, settings: &QueueSettings, answer: Result<(), String>) {
        let mut states = self.locked();
        if matches!(states.get(&queue), Some(State::Wanted(wanted)) if wanted == settings) {
            states.insert(queue, State::Answered(answer));
        }
    }

    /// Calls `act` while another thread would be in a call.
    #[cfg(test)]
    pub(super) fn busy<T>(&self, act: impl FnOnce() -> T) -> T {
        let _states = self.locked();
        act()
    }

    fn try_locked(&self) -> Option<MutexGuard<'_, BTreeMap<u32, State>>> {
        match self.states.try_lock() {
            Ok(states) => Some(states),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<u32, State>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct EndOfSupervisor(Arc<QueueRequests>);

impl Drop for EndOfSupervisor {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::Release);
    }
}

impl AsFd for QueueRequests {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::Reason;
    use std::time::Duration;

    #[test]
    fn only_the_newest_request_of_a_queue_is_answered() {
        let requests = QueueRequests::new().unwrap();
        let old = QueueSettings::interrupts(Reason::Start);
        let new = QueueSettings::grace(Duration::from_micros(20), Reason::Start);
        assert!(requests.request(3, old));
        assert_eq!(requests.pending(), [(3, old)]);
        assert!(requests.request(3, new));
        requests.answer(3, &old, Ok(()));
        assert_eq!(requests.take_answer(3), None);
        assert_eq!(requests.pending(), [(3, new)]);
        requests.answer(3, &new, Err("forbidden".to_owned()));
        assert_eq!(requests.take_answer(3), Some(Err("forbidden".to_owned())));
        assert_eq!(requests.take_answer(3), None);
        assert_eq!(requests.pending(), []);
    }

    #[test]
    fn a_worker_does_not_wait_for_a_thread_that_is_in_a_call() {
        let requests = QueueRequests::new().unwrap();
        let plain = QueueSettings::interrupts(Reason::Start);
        let states = requests.locked();
        assert!(!requests.request(3, plain));
        assert_eq!(requests.take_answer(3), None);
        drop(states);
        assert!(requests.request(3, plain));
    }
}
