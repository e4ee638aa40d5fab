//! The calling thread's worker.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;

use super::event_loop::Worker;
use crate::coop;
use crate::task::header::SpawnedAt;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Worker>>> = const { RefCell::new(None) };
}

/// Runs `action` with this thread's worker.
///
/// # Panics
/// Outside of a runtime.
pub(crate) fn with<R>(action: impl FnOnce(&Rc<Worker>) -> R) -> R {
    try_with(action).expect(
        "this needs a Lull runtime: call it from #[runtime::main], Runtime::block_on or a spawned task",
    )
}

/// Runs `action` with this thread's worker, if it has one.
pub(crate) fn try_with<R>(action: impl FnOnce(&Rc<Worker>) -> R) -> Option<R> {
    let worker = CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()?;
    Some(action(&worker))
}

/// Whether this thread has a worker for which `test` is true. `test` must not run foreign code: the thread
/// local stays borrowed.
pub(super) fn is_some_and(test: impl FnOnce(&Worker) -> bool) -> bool {
    CURRENT.try_with(|current| current.borrow().as_ref().is_some_and(|worker| test(worker))).unwrap_or(false)
}

/// Makes a worker this thread's, and runs its loop until `root` is ready, or without a root until the
/// worker is asked to stop (`None`). Then drops the worker's tasks.
///
/// # Panics
/// If this thread runs a worker already.
pub(crate) fn run<R>(
    worker: &Rc<Worker>,
    root: Option<Pin<&mut dyn Future<Output = R>>>,
    spawned: SpawnedAt,
) -> io::Result<Option<R>> {
    let entered = CurrentGuard::enter(worker);
    // Worker 0 runs once for each `block_on`.
    worker.handle.inbox.open();
    let result = worker.run(root, spawned);
    worker.shut_down();
    drop(entered);
    result
}

/// Resets the thread's worker when dropped, also when unwinding.
struct CurrentGuard;

impl CurrentGuard {
    fn enter(worker: &Rc<Worker>) -> Self {
        CURRENT.with(|current| {
            let mut current = current.borrow_mut();
            assert!(current.is_none(), "a runtime can't be started from within a runtime");
            *current = Some(Rc::clone(worker));
        });
        Self
    }
}

impl Drop for CurrentGuard {
    fn drop(&mut self) {
        let worker = CURRENT.with(|current| current.borrow().clone());
        if let Some(worker) = worker {
            // A panic of the root future has ended its poll.
            coop::end_poll();
            // After a panic of the root future the tasks still need their worker to be dropped.
            let result = catch_unwind(AssertUnwindSafe(|| worker.shut_down()));
            CURRENT.with(|current| current.borrow_mut().take());
            if let Err(panic) = result
                && !std::thread::panicking()
            {
                resume_unwind(panic);
            }
        }
    }
}
