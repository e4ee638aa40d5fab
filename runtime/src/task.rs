//! Spawning tasks, and what spawning returns: handles, groups of tasks, their names and their
//! task-local values.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker, ready};
use std::thread::LocalKey as ThreadKey;

use slab::Slab;

use crate::coop;
use crate::sync::{Mutex, contain_panic, lock};
use crate::task_core::cell::{NewTask, TaskRef};
use crate::task_core::header::ResultOwner;
use crate::task_core::identity::Identity;
use crate::task_core::span::TaskSpan;
use crate::worker::current;
use crate::worker::runtime_state::RuntimeState;
use crate::worker::worker_handle::{Message, WorkerHandle};

pub use crate::task_core::identity::{Id, id, try_id};
pub use crate::task_core::join_error::JoinError;

/// Spawns a task on the calling worker.
#[track_caller]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    spawn_local(Identity::new(Location::caller()), future)
}

/// Spawns a task on another worker. The closure is sent there and makes the future, which need not
/// be `Send`.
///
/// If that worker has stopped, awaiting the handle gives a cancelled
/// [`JoinError`].
///
/// # Panics
/// Outside of a runtime ([`Handle::enter`](crate::Handle::enter)), or if there is no such worker.
#[track_caller]
pub fn spawn_on<F, Fut>(worker: usize, make: F) -> JoinHandle<Fut::Output>
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future + 'static,
    Fut::Output: Send + 'static,
{
    spawn_on_runtime(&current::runtime(), Identity::new(Location::caller()), worker, make)
}

#[track_caller]
pub(crate) fn spawn_local<F>(identity: Identity, future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    current::with(|worker| {
        let span = TaskSpan::task(&identity, worker.handle.index, size_of::<F>());
        let (task, joiner) = NewTask::local(Arc::clone(&worker.handle), identity, span, future);
        worker.adopt(task, worker.handle.wake_time());
        // SAFETY: the joiner's reference, of a future with this output.
        unsafe { JoinHandle::new(joiner) }
    })
}

#[track_caller]
pub(crate) fn spawn_on_runtime<F, Fut>(
    runtime: &RuntimeState,
    identity: Identity,
    worker: usize,
    make: F,
) -> JoinHandle<Fut::Output>
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future + 'static,
    Fut::Output: Send + 'static,
{
    let count = runtime.workers.len();
    assert!(worker < count, "there is no worker {worker}; there are {count}, from 0");
    let target = &runtime.workers[worker];
    let span = TaskSpan::task(&identity, worker, size_of::<Fut>());
    let (task, joiner) = NewTask::remote(Arc::clone(target), identity, span, make);
    // The worker is woken at once: the caller may block this thread until the task is done.
    target.send(Message::Adopt(task, target.wake_time()));
    // SAFETY: the joiner's reference, of a future with this output.
    unsafe { JoinHandle::new(joiner) }
}

/// Lets the other ready tasks of this worker run first.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Spawns a task with a name, which [`Stall`](crate::Stall) and [`JoinHandle::name`] give.
///
/// ```
/// # #[runtime::main(driver = "epoll")]
/// # async fn main() {
/// let task = runtime::task::Builder::new().name("greeter").spawn(async { "hello" });
/// assert_eq!(task.name(), Some("greeter"));
/// assert_eq!(task.await.unwrap(), "hello");
/// # }
/// ```
#[derive(Debug, Default)]
#[must_use = "a builder does nothing until it spawns"]
pub struct Builder {
    name: Option<String>,
    spawned: Option<&'static Location<'static>>,
}

impl Builder {
    /// A task without a name.
    pub fn new() -> Self {
        Self::default()
    }

    /// The name that reports of stalls show. Default: none.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Where the task was spawned, as reports say it. Default: where [`Builder::spawn`] is called.
    /// For libraries whose users are to see their own line.
    pub fn location(mut self, location: &'static Location<'static>) -> Self {
        self.spawned = Some(location);
        self
    }

    /// As [`runtime::spawn`](crate::spawn).
    #[track_caller]
    pub fn spawn<F>(self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        spawn_local(self.identity(Location::caller()), future)
    }

    /// As [`runtime::spawn_on`](crate::spawn_on).
    ///
    /// # Panics
    /// Outside of a runtime, or if there is no such worker.
    #[track_caller]
    pub fn spawn_on<F, Fut>(self, worker: usize, make: F) -> JoinHandle<Fut::Output>
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future + 'static,
        Fut::Output: Send + 'static,
    {
        spawn_on_runtime(&current::runtime(), self.identity(Location::caller()), worker, make)
    }

    fn identity(self, caller: &'static Location<'static>) -> Identity {
        let mut identity = Identity::new(self.spawned.unwrap_or(caller));
        identity.name = self.name.map(Box::new);
        identity
    }
}

/// A spawned task. Awaiting it gives the task's result; dropping it detaches the task, which runs
/// on.
pub struct JoinHandle<T> {
    task: TaskRef<WorkerHandle>,
    taken: bool,
    /// The handle owns the result: it is `Send` only if the result is.
    result: PhantomData<T>,
}

// The result is in the task, not in the handle.
impl<T> Unpin for JoinHandle<T> {}

impl<T> JoinHandle<T> {
    /// # Safety
    /// `task` is the joiner's reference, `T` is the output of the task's future, and no other
    /// `JoinHandle` of this task exists.
    pub(crate) unsafe fn new(task: TaskRef<WorkerHandle>) -> Self {
        Self { task, taken: false, result: PhantomData }
    }

    /// Drops the task's future in its worker's next turn. Awaiting the handle then gives a
    /// cancelled [`JoinError`], unless the task had finished before.
    pub fn abort(&self) {
        self.task.abort();
    }

    /// A handle that can abort the task from any thread.
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle(self.task.clone())
    }

    /// Whether the task has returned, panicked or been dropped.
    pub fn is_finished(&self) -> bool {
        self.task.is_done()
    }

    /// The task's number, unique in this process.
    pub fn id(&self) -> Id {
        self.task.identity.id
    }

    /// The task's name ([`Builder::name`](Builder::name)).
    pub fn name(&self) -> Option<&str> {
        self.task.identity.name.as_deref().map(String::as_str)
    }

    pub(super) fn is_taken(&self) -> bool {
        self.taken
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    /// # Panics
    /// If it is polled again after it has returned the result.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(!self.taken, "a JoinHandle was polled after it had returned its result");
        ready!(coop::poll_budget(context));
        if !self.task.is_done() && self.task.join(context.waker()) {
            return Poll::Pending;
        }
        coop::spend();
        self.taken = true;
        // SAFETY: the task is done, this is its only joiner, and `T` is the output's type (`new`).
        match unsafe { self.task.take() } {
            Some(result) => Poll::Ready(result),
            None => unreachable!("a task that is done has a result until its joiner takes it"),
        }
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if !self.taken && self.task.detach() == ResultOwner::Caller {
            // The drop of a set drops several: the second panic would end the process. SAFETY: the
            // task is done, this is its only joiner, and `PhantomData<T>` keeps the handle on this
            // thread unless the result is `Send`.
            contain_panic(|| unsafe { self.task.drop_result() });
        }
    }
}

opaque_debug!(JoinHandle<T>, "JoinHandle", [T], |it| "finished" = it.is_finished());

/// Aborts a task; see [`JoinHandle::abort`].
#[derive(Clone)]
pub struct AbortHandle(TaskRef<WorkerHandle>);

impl AbortHandle {
    /// Drops the task's future in its worker's next turn.
    pub fn abort(&self) {
        self.0.abort();
    }

    /// Whether the task has returned, panicked or been dropped.
    pub fn is_finished(&self) -> bool {
        self.0.is_done()
    }

    /// The task's number, unique in this process.
    pub fn id(&self) -> Id {
        self.0.identity.id
    }
}

opaque_debug!(AbortHandle, "AbortHandle");

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

    pub(crate) fn add(&mut self, handle: JoinHandle<T>) -> AbortHandle {
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
        self.add(spawn_on_runtime(&current::runtime(), Identity::new(Location::caller()), worker, make))
    }
}

impl<T> Drop for JoinSet<T> {
    fn drop(&mut self) {
        self.abort_all();
    }
}

opaque_debug!(JoinSet<T>, "JoinSet", [T], |it| "len" = it.len());

/// Declares values that a future and what it awaits share, like `thread_local!` those of a thread.
///
/// ```
/// runtime::task_local! {
///     /// The request that is being answered.
///     static REQUEST: u64;
/// }
///
/// # #[runtime::main(driver = "epoll")]
/// # async fn main() {
/// let answer = REQUEST.scope(7, async { REQUEST.with(|request| request + 1) });
/// assert_eq!(answer.await, 8);
/// assert!(REQUEST.try_with(|_| ()).is_err());
/// # }
/// ```
#[macro_export]
macro_rules! task_local {
    ($($(#[$attribute:meta])* $visibility:vis static $name:ident: $type:ty);+ $(;)?) => {
        $(
            $(#[$attribute])*
            $visibility static $name: $crate::task::LocalKey<$type> = {
                ::std::thread_local! {
                    static VALUE: ::std::cell::RefCell<::std::option::Option<$type>> =
                        const { ::std::cell::RefCell::new(::std::option::Option::None) };
                }
                $crate::task::LocalKey::__new(&VALUE)
            };
        )+
    };
}

/// A value declared by [`task_local!`](crate::task_local).
pub struct LocalKey<T: 'static>(&'static ThreadKey<RefCell<Option<T>>>);

impl<T: 'static> LocalKey<T> {
    #[doc(hidden)]
    pub const fn __new(value: &'static ThreadKey<RefCell<Option<T>>>) -> Self {
        Self(value)
    }

    /// Runs a future that has the value. Tasks that it spawns don't have it.
    pub async fn scope<F: Future>(&'static self, value: T, future: F) -> F::Output {
        let mut value = Some(value);
        let future = std::pin::pin!(Some(future));
        let mut scope = InScope { key: self, value: &mut value, future };
        std::future::poll_fn(|context| scope.poll(context)).await
    }

    /// Runs a function that has the value.
    pub fn sync_scope<R>(&'static self, value: T, action: impl FnOnce() -> R) -> R {
        let mut value = Some(value);
        let _swapped = Swapped::enter(self, &mut value);
        action()
    }

    /// Gives the value to a function.
    ///
    /// # Panics
    /// Outside of a scope of this value.
    pub fn with<R>(&'static self, action: impl FnOnce(&T) -> R) -> R {
        match self.try_with(action) {
            Ok(result) => result,
            Err(error) => panic!("{error}"),
        }
    }

    /// Gives the value to a function.
    pub fn try_with<R>(&'static self, action: impl FnOnce(&T) -> R) -> Result<R, NotInScope> {
        let found = self.0.try_with(|value| value.borrow().as_ref().map(action));
        found.ok().flatten().ok_or(NotInScope)
    }

    /// A copy of the value.
    ///
    /// # Panics
    /// Outside of a scope of this value.
    pub fn get(&'static self) -> T
    where
        T: Clone,
    {
        self.with(T::clone)
    }
}

opaque_debug!(LocalKey<T>, "LocalKey", [T]);

/// A task's value was asked for outside of its scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotInScope;

policies::error_text!(
    NotInScope: _ => "a task-local value is only there within the future that was given to its `scope`"
);

/// A future that is polled, and dropped, while the value is there.
struct InScope<'a, F, T: 'static> {
    key: &'static LocalKey<T>,
    value: &'a mut Option<T>,
    /// `None` once it is dropped.
    future: Pin<&'a mut Option<F>>,
}

impl<F: Future, T> InScope<'_, F, T> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<F::Output> {
        let _swapped = Swapped::enter(self.key, self.value);
        match self.future.as_mut().as_pin_mut() {
            Some(future) => future.poll(context),
            None => unreachable!("it is dropped with the scope"),
        }
    }
}

impl<F, T> Drop for InScope<'_, F, T> {
    fn drop(&mut self) {
        // At the end of a thread its values are gone.
        let is_there = self.key.0.try_with(|_| ()).is_ok();
        let _swapped = is_there.then(|| Swapped::enter(self.key, self.value));
        self.future.set(None);
    }
}

/// A value is the thread's while this lives, and another scope's is put aside.
struct Swapped<'a, T: 'static> {
    key: &'static LocalKey<T>,
    value: &'a mut Option<T>,
}

impl<'a, T> Swapped<'a, T> {
    fn enter(key: &'static LocalKey<T>, value: &'a mut Option<T>) -> Self {
        key.0.with(|place| std::mem::swap(&mut *place.borrow_mut(), value));
        Self { key, value }
    }
}

impl<T> Drop for Swapped<'_, T> {
    fn drop(&mut self) {
        // Fails only at the end of the thread, which drops what is there.
        let _ = self.key.0.try_with(|place| std::mem::swap(&mut *place.borrow_mut(), self.value));
    }
}
