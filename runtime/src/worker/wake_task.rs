//! What a waker does: it queues its task on the task's worker.

use std::sync::Arc;
use std::task::RawWakerVTable;

use crate::coop;
use crate::task_core::cell::{Schedule, TaskRef, waker_vtable};
use crate::worker::current;
use crate::worker::worker_handle::{Message, WorkerHandle};

impl Schedule for WorkerHandle {
    fn schedule(task: &TaskRef<Self>) {
        if push_if_current(task) || !task.claim_remote_wake() {
            return;
        }
        let worker = task.scheduler();
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
    current::is_some_and(|worker| {
        let here = Arc::ptr_eq(&worker.handle, task.scheduler());
        if here {
            worker.push(task);
        }
        here
    })
}

/// Leaves the wake-up of another worker to this thread's driver; `false` if it can't take it.
fn defer_wake(other: &WorkerHandle) -> bool {
    !coop::is_in_task() && current::is_some_and(|worker| worker.driver.defer_wake(&other.wake))
}
