//! Tasks that are awaited together.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker, ready};

use slab::Slab;

use super::join::{AbortHandle, JoinHandle};
use crate::coop;
use crate::sync::{Mutex, lock};
use crate::task::spawn::{spawn_local, spawn_remote};
use crate::task_core::identity::{Id, Identity};
use crate::task_core::join_error::JoinError;

/// Tasks of one kind, which are awaited in the order in which they end. Dropping the set aborts
/// them.
///
/// ```
/// # #[runtime::main(driver = "epoll")]
/// # async fn main() {
/// let mut set = runtime::task::JoinSet::new();
/// for number in 0..3 {
///     set.spawn(async move { number });
/// }
/// let mut sum = 0;
/// while let Some(result) = set.join_next().await {
///     sum += result.unwrap();
/// }
/// assert_eq!(sum, 3);
/// # }
/// ```
pub struct JoinSet<T> {
    tasks: Slab<Member<T>>,
    ended: Arc<Ended>,
}

struct Member<T> {
    handle: JoinHandle<T>,
    /// Wakes the set's joiner, and says which task has ended.
    waker: Waker,
}

pub(crate) struct Ended {
    state: Mutex<EndedState>,
}

#[derive(Default)]
struct EndedState {
    keys: VecDeque<usize>,
    joiner: Option<Waker>,
}

impl Ended {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(EndedState::default()) })
    }

    pub(crate) fn waker(self: &Arc<Self>, key: usize) -> Waker {
        Waker::from(Arc::new(MemberWaker { key, ended: Arc::clone(self) }))
    }

    /// A task to look at. With `None` the joiner is woken when there is one.
    pub(crate) fn next(&self, joiner: Option<&Waker>) -> Option<usize> {
        let mut state = lock(&self.state);
        let key = state.keys.pop_front();
        if key.is_none()
            && let Some(joiner) = joiner
        {
            let replaced = state.joiner.replace(joiner.clone());
            drop(state);
            drop(replaced);
        }
        key
    }

    fn add(&self, key: usize) {
        let mut state = lock(&self.state);
        state.keys.push_back(key);
        let joiner = state.joiner.take();
        drop(state);
        // Outside of the lock: the waker may be foreign code.
        joiner.into_iter().for_each(Waker::wake);
    }
}

struct MemberWaker {
    key: usize,
    ended: Arc<Ended>,
}

impl Wake for MemberWaker {
    fn wake(self: Arc<Self>) {
        self.ended.add(self.key);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ended.add(self.key);
    }
}

impl<T> Default for JoinSet<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> JoinSet<T> {
    /// A set without tasks.
    pub fn new() -> Self {
        Self { tasks: Slab::new(), ended: Ended::new() }
    }

    /// The number of tasks that were not joined yet.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether all tasks were joined.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    fn add(&mut self, handle: JoinHandle<T>) -> AbortHandle {
        let abort = handle.abort_handle();
        let entry = self.tasks.vacant_entry();
        let key = entry.key();
        entry.insert(Member { handle, waker: self.ended.waker(key) });
        // So that its waker is stored.
        self.ended.add(key);
        abort
    }

    /// Waits until a task has ended, and returns its result; `None` if the set is empty. A dropped
    /// wait loses no result.
    pub async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        std::future::poll_fn(|context| self.poll_join_next(context)).await
    }

    /// [`JoinSet::join_next`], with the number of the task.
    pub async fn join_next_with_id(&mut self) -> Option<(Id, Result<T, JoinError>)> {
        std::future::poll_fn(|context| self.poll_next(Some(context.waker()))).await
    }

    /// [`JoinSet::join_next`] for use in a `poll` function.
    pub fn poll_join_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<T, JoinError>>> {
        self.poll_next(Some(context.waker())).map(|joined| joined.map(|(_, result)| result))
    }

    /// The result of a task that has ended already; `None` if there is none.
    pub fn try_join_next(&mut self) -> Option<Result<T, JoinError>> {
        match self.poll_next(None) {
            Poll::Ready(joined) => joined.map(|(_, result)| result),
            Poll::Pending => None,
        }
    }

    fn poll_next(&mut self, joiner: Option<&Waker>) -> Poll<Option<(Id, Result<T, JoinError>)>> {
        if self.tasks.is_empty() {
            return Poll::Ready(None);
        }
        if let Some(joiner) = joiner {
            ready!(coop::poll_budget(&Context::from_waker(joiner)));
        }
        while let Some(key) = self.ended.next(joiner) {
            // A task may be named twice, and its key then be another's: that is looked at in vain.
            let Some(member) = self.tasks.get_mut(key) else { continue };
            if member.handle.is_taken() {
                continue;
            }
            // The join is charged here: a handle without a budget would wake the set in this very
            // loop.
            let mut context = Context::from_waker(&member.waker);
            let polled = coop::without_budget(|| Pin::new(&mut member.handle).poll(&mut context));
            if let Poll::Ready(result) = polled {
                coop::spend();
                let member = self.tasks.remove(key);
                return Poll::Ready(Some((member.handle.id(), result)));
            }
        }
        Poll::Pending
    }

    /// Waits until all tasks have ended, and returns their results in the order in which they
    /// ended.
    ///
    /// # Panics
    /// With the panic of a task, or if one was aborted. The others are aborted then.
    pub async fn join_all(mut self) -> Vec<T> {
        let mut results = Vec::with_capacity(self.len());
        while let Some(result) = self.join_next().await {
            match result {
                Ok(value) => results.push(value),
                Err(error) if error.is_panic() => error.resume_panic(),
                Err(error) => panic!("{error}"),
            }
        }
        results
    }

    /// Aborts all tasks. They still have to be joined, or dropped with the set.
    pub fn abort_all(&self) {
        self.tasks.iter().for_each(|(_, member)| member.handle.abort());
    }

    /// Aborts all tasks, and waits until they are dropped.
    pub async fn shutdown(&mut self) {
        self.abort_all();
        while self.join_next().await.is_some() {}
    }

    /// Removes all tasks from the set without aborting them: they run on.
    pub fn detach_all(&mut self) {
        self.tasks.drain().for_each(drop);
    }
}

impl<T: 'static> JoinSet<T> {
    /// Spawns a task on the calling worker, as [`runtime::spawn`](crate::spawn) does.
    #[track_caller]
    pub fn spawn(&mut self, future: impl Future<Output = T> + 'static) -> AbortHandle {
        self.add(spawn_local(Identity::new(Location::caller()), future))
    }

    /// Spawns a task on another worker, as [`runtime::spawn_on`](crate::spawn_on) does.
    ///
    /// # Panics
    /// Outside of a runtime, or if there is no such worker.
    #[track_caller]
    pub fn spawn_on<F, Fut>(&mut self, worker: usize, make: F) -> AbortHandle
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
        T: Send,
    {
        self.add(spawn_remote(Identity::new(Location::caller()), worker, make))
    }
}

impl<T> Drop for JoinSet<T> {
    fn drop(&mut self) {
        self.abort_all();
    }
}

opaque_debug!(JoinSet<T>, "JoinSet", [T], |it| "len" = it.len());
