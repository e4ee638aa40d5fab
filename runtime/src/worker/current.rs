//! The calling thread's worker, and what a waker does on it.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::RawWakerVTable;

use crate::coop;
use crate::task_core::cell::{Schedule, TaskRef, waker_vtable};
use crate::task_core::identity::Id;
use crate::worker::event_loop::Worker;
use crate::worker::runtime_state::RuntimeState;
use crate::worker::worker_handle::{Message, WorkerHandle};

thread_local! {
    static CURRENT: RefCell<Option<Rc<Worker>>> = const { RefCell::new(None) };
    static ENTERED: RefCell<Option<EnteredRuntime>> = const { RefCell::new(None) };
}

/// The runtime that a thread without a worker has entered.
#[derive(Clone)]
pub(crate) struct EnteredRuntime {
    pub(crate) runtime: Arc<RuntimeState>,
    /// Who has: a future that needs a worker panics in this crate, and no frame names its caller.
    pub(crate) caller: &'static Location<'static>,
}

/// Runs `action` with this thread's worker.
#[track_caller]
pub(crate) fn with<R>(action: impl FnOnce(&Rc<Worker>) -> R) -> R {
    match try_with(action) {
        Some(result) => result,
        None => no_worker(),
    }
}

#[cold]
#[track_caller]
fn no_worker() -> ! {
    match entered() {
        Some(entered) => panic!(
            "this needs a worker's thread, and the calling thread, which has entered the runtime at {}, is not one: spawn what needs it on a worker, by Handle::current().spawn(future) if the future is Send, else by runtime::spawn_on(0, || async {{ … }}), and wait for either by Handle::block_on",
            entered.caller
        ),
        None => panic!("{NO_RUNTIME}"),
    }
}

const NO_RUNTIME: &str = "this needs a Lull runtime: call it from #[runtime::main], Runtime::block_on or a task of runtime::spawn; other threads, such as tokio's, spawn what needs it by a runtime::Handle";

/// The runtime of this thread's worker, else the one that the thread has entered.
#[track_caller]
pub(crate) fn runtime() -> Arc<RuntimeState> {
    try_runtime().expect(NO_RUNTIME)
}

pub(crate) fn try_runtime() -> Option<Arc<RuntimeState>> {
    try_with(|worker| Arc::clone(&worker.runtime)).or_else(|| entered().map(|entered| entered.runtime))
}

/// The runtime that this thread, which is no worker's, has entered.
#[track_caller]
pub(crate) fn entered_runtime() -> EnteredRuntime {
    entered().expect(NO_RUNTIME)
}

fn entered() -> Option<EnteredRuntime> {
    ENTERED.try_with(|entered| entered.borrow().clone()).ok().flatten()
}

/// Enters a runtime on a thread that need not be a worker. Returns the one that was entered before.
pub(crate) fn enter_runtime(runtime: Option<EnteredRuntime>) -> Option<EnteredRuntime> {
    ENTERED.try_with(|entered| entered.replace(runtime)).ok().flatten()
}

/// Runs `action` with this thread's worker, if it has one.
pub(crate) fn try_with<R>(action: impl FnOnce(&Rc<Worker>) -> R) -> Option<R> {
    let worker = CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()?;
    Some(action(&worker))
}

/// Whether this thread has a worker for which `test` is true. `test` must not run foreign code: the
/// thread local stays borrowed.
pub(super) fn is_some_and(test: impl FnOnce(&Worker) -> bool) -> bool {
    CURRENT.try_with(|current| current.borrow().as_ref().is_some_and(|worker| test(worker))).unwrap_or(false)
}

/// Checks that no worker runs on this thread: a runtime inside of a runtime would block the outer
/// one.
///
/// # Panics
/// If this thread runs a worker.
#[track_caller]
pub(crate) fn assert_none() {
    let is_worker = CURRENT.with(|current| current.borrow().is_some());
    assert!(
        !is_worker,
        "a runtime can't be started from within a runtime: await the future here, or give it to one that Builder::build_background has made"
    );
}

/// Makes a worker this thread's, and runs its loop until `root` is ready, or without a root until
/// the worker is asked to stop (`None`). Its other tasks stay.
///
/// # Panics
/// If this thread runs a worker already.
pub(crate) fn run<R>(
    worker: &Rc<Worker>,
    root: Option<Pin<&mut dyn Future<Output = R>>>,
    spawned: &'static Location<'static>,
) -> io::Result<Option<R>> {
    assert_none();
    let _entered = Entered::new(worker);
    worker.begin();
    worker.run(root, spawned)
}

/// Shuts a worker down when dropped, also when unwinding: its tasks are dropped, and its driver is
/// closed.
pub(crate) struct ShutDown(pub(crate) Rc<Worker>);

impl Drop for ShutDown {
    fn drop(&mut self) {
        // The tasks need their worker to be dropped, also within a task of another runtime.
        let entered = Entered::new(&self.0);
        let result = catch_unwind(AssertUnwindSafe(|| self.0.shut_down()));
        drop(entered);
        if let Err(panic) = result
            && !std::thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}

/// A worker is the thread's while this lives.
struct Entered {
    previous: Option<Rc<Worker>>,
    coop: coop::State,
    task: Option<Id>,
}

impl Entered {
    fn new(worker: &Rc<Worker>) -> Self {
        // A runtime in a thread local is dropped when the thread's other locals may be gone.
        let previous = CURRENT.try_with(|current| current.borrow_mut().replace(Rc::clone(worker)));
        let previous = previous.ok().flatten();
        Self { previous, coop: coop::State::save(), task: Id::enter(None) }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        // A panic of the root future has not ended its poll.
        self.coop.restore();
        Id::enter(self.task);
        let previous = self.previous.take();
        let worker = CURRENT.try_with(|current| std::mem::replace(&mut *current.borrow_mut(), previous));
        drop(worker);
    }
}

impl Schedule for WorkerHandle {
    fn schedule(task: &TaskRef<Self>) {
        if push_if_current(task) || !task.claim_remote_wake() {
            return;
        }
        let worker = &task.scheduler;
        // This thread's worker wakes the other one with its next wait, if it can, but not while a
        // task's own code runs: that may compute for long, or block its thread for what the other
        // one does.
        if worker.push(Message::Wake(task.clone(), worker.wake_time())) && !defer_wake(worker) {
            worker.wake.wake();
        }
    }

    #[inline]
    fn waker_vtable() -> &'static RawWakerVTable {
        static VTABLE: RawWakerVTable = waker_vtable::<WorkerHandle>();
        &VTABLE
    }
}

/// Queues a task without a message if this thread is its worker.
fn push_if_current(task: &TaskRef<WorkerHandle>) -> bool {
    is_some_and(|worker| {
        let here = Arc::ptr_eq(&worker.handle, &task.scheduler);
        if here {
            worker.push(task);
        }
        here
    })
}

/// Leaves the wake-up of another worker to this thread's driver; `false` if it can't take it.
fn defer_wake(other: &WorkerHandle) -> bool {
    !coop::is_in_task() && is_some_and(|worker| worker.driver.defer_wake(&other.wake))
}
