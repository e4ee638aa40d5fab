//! A worker: one thread with its tasks, its timers, its driver, and the loop over them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use slab::Slab;

use crate::driver::{Driver, Wait, monotonic_nanos};
use crate::inbox::Remote;
use crate::lifecycle::Shared;
use crate::linger::{LOOK, Linger};
use crate::shared::WorkerShared;
use crate::sync::contain;
use crate::task::{JoinHandle, ROOT, TaskRef, Unborn};
use crate::timer::Timers;
use crate::wait::WaitStrategy;

pub(crate) struct Worker {
    pub(crate) runtime: Arc<Shared>,
    pub(crate) shared: Arc<WorkerShared>,
    pub(crate) driver: Driver,
    pub(crate) timers: RefCell<Timers>,
    /// When this turn began.
    turn_time: Cell<u64>,
    wait: WaitStrategy,
    /// The keys of tasks to poll. One may be outdated, and by now name another task, or none: a task
    /// that is woken during its last poll leaves such a key. The other task is polled in vain then.
    queue: RefCell<VecDeque<u32>>,
    /// A task is taken out while it is polled, so that what it does (spawn, wake) finds the slab free.
    tasks: RefCell<Slab<Option<TaskRef>>>,
    linger: Linger,
    stopping: Cell<bool>,
    /// Memory for messages.
    messages: RefCell<Vec<Remote>>,
}

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

/// Asks this thread's worker, if it has one, something that runs no foreign code.
fn ask_current(question: impl FnOnce(&Worker) -> bool) -> bool {
    CURRENT
        .try_with(|current| current.borrow().as_ref().is_some_and(|worker| question(worker)))
        .unwrap_or(false)
}

/// Queues a task if this thread is its worker.
pub(crate) fn push_if_current(task: &TaskRef) -> bool {
    ask_current(|worker| {
        let here = Arc::ptr_eq(&worker.shared, task.worker());
        if here {
            worker.push(task);
        }
        here
    })
}

/// Has this thread's worker wake another one with its next wait; `false` where it can't.
pub(crate) fn take_wake(other: &Arc<WorkerShared>) -> bool {
    ask_current(|worker| worker.driver.take_wake(other))
}

/// Spawns on this thread's worker.
pub(crate) fn spawn_local<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    with(|worker| {
        let (task, joiner) = Unborn::here(Arc::clone(&worker.shared), future);
        worker.adopt(task);
        // SAFETY: the joiner's reference, of a future with this output.
        unsafe { JoinHandle::new(joiner) }
    })
}

impl Worker {
    pub(crate) fn new(
        runtime: Arc<Shared>,
        shared: Arc<WorkerShared>,
        driver: Driver,
        wait: WaitStrategy,
    ) -> Self {
        Self {
            runtime,
            shared,
            driver,
            timers: RefCell::default(),
            turn_time: Cell::new(monotonic_nanos()),
            wait,
            queue: RefCell::default(),
            tasks: RefCell::default(),
            linger: Linger::default(),
            stopping: Cell::new(false),
            messages: RefCell::default(),
        }
    }

    /// Takes a new task in and queues it.
    fn adopt(&self, task: Unborn) {
        if self.stopping.get() {
            // Spawned by something that is being dropped: dropped too, and its joiner is told.
            return;
        }
        let task = task.born();
        let mut tasks = self.tasks.borrow_mut();
        let entry = tasks.vacant_entry();
        // Four billion tasks would not fit in memory; the last number is the root's.
        task.set_key(u32::try_from(entry.key()).ok().filter(|&key| key != ROOT).expect("too many tasks"));
        // It may count as queued already, under no number: woken, or aborted, before it was taken in.
        task.enqueue();
        self.queue.borrow_mut().push_back(task.key());
        entry.insert(Some(task));
    }

    /// When this turn began: what is due by then is over.
    pub(crate) fn turn_time(&self) -> u64 {
        self.turn_time.get()
    }

    fn push(&self, task: &TaskRef) {
        if task.enqueue() {
            self.queue.borrow_mut().push_back(task.key());
        }
    }

    /// Runs the loop until `root` is ready, or without one until the worker is told to stop.
    pub(crate) fn run<R>(
        self: &Rc<Self>,
        root: Option<Pin<&mut dyn Future<Output = R>>>,
    ) -> io::Result<Option<R>> {
        let entered = Enter::new(self);
        // Worker 0 runs once for each `block_on`.
        self.shared.inbox.open();
        let result = self.turns(root);
        self.shut_down();
        drop(entered);
        result
    }

    fn turns<R>(&self, mut root: Option<Pin<&mut dyn Future<Output = R>>>) -> io::Result<Option<R>> {
        let root_task = TaskRef::root(Arc::clone(&self.shared));
        let waker = root_task.waker();
        self.push(&root_task);
        let metrics = &self.shared.metrics;
        let budget = self.driver.batch();
        let mut started = monotonic_nanos();
        self.turn_time.set(started);
        let mut idle_since: Option<u64> = None;
        loop {
            metrics.turns.add(1);
            self.take_messages();
            let mut ran = 0;
            while ran < budget {
                let Some(next) = self.queue.borrow_mut().pop_front() else { break };
                ran += 1;
                // Wakes of other workers go out with the wait, but don't wait for a second task.
                self.driver.flush_wakes();
                if next != ROOT {
                    self.run_task(next);
                    continue;
                }
                root_task.begin_poll();
                if let Some(root) = &mut root {
                    metrics.polls.add(1);
                    if let Poll::Ready(output) = root.as_mut().poll(&mut Context::from_waker(&waker)) {
                        return Ok(Some(output));
                    }
                }
            }
            if self.shared.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let now = monotonic_nanos();
            metrics.running_ns.add(now - started);
            if ran > 0 {
                idle_since = None;
            }
            let next_timer = self.timers.borrow_mut().next();
            let wait = self.choose_wait(now, next_timer, &mut idle_since);
            let parked = matches!(wait, Wait::Park(_));
            let woken = self.driver.wait(&self.shared, wait);
            if parked {
                self.shared.inbox.unpark();
            }
            let woken = woken?;
            started = monotonic_nanos();
            self.turn_time.set(started);
            let waited = if parked { &metrics.parked_ns } else { &metrics.polling_ns };
            waited.add(started - now);
            if parked {
                self.linger.slept(
                    Duration::from_nanos(started - now),
                    woken.events == 0 && self.shared.inbox.is_filled(),
                );
            }
            metrics.waits.add(woken.calls as u64);
            metrics.events.add(woken.events as u64);
            metrics.forced_passes.add(u64::from(woken.forced));
            if next_timer.is_some_and(|deadline| deadline <= started) {
                let due = self.timers.borrow_mut().take_due(started);
                due.into_iter().for_each(Waker::wake);
            }
        }
    }

    /// Parks only if there is nothing to run and no timer is due, and spinning is over.
    fn choose_wait(&self, now: u64, next_timer: Option<u64>, idle_since: &mut Option<u64>) -> Wait {
        let timeout = next_timer.map(|deadline| Duration::from_nanos(deadline.saturating_sub(now)));
        if !self.queue.borrow().is_empty() || timeout == Some(Duration::ZERO) {
            return Wait::Pass;
        }
        let since = *idle_since.get_or_insert(now);
        let spinning = self.wait.spin_for().is_none_or(|limit| u128::from(now - since) < limit.as_nanos());
        if spinning || self.finds_message(now, timeout) || !self.shared.inbox.park() {
            return Wait::Pass;
        }
        Wait::Park(timeout)
    }

    /// Looks for a message for a moment, where one is expected. Not where the worker polls a queue,
    /// which would wait, nor with something to submit.
    fn finds_message(&self, now: u64, timeout: Option<Duration>) -> bool {
        if !self.linger.is_expecting()
            || timeout.is_some_and(|timeout| timeout < LOOK)
            || !self.driver.may_linger()
        {
            return false;
        }
        self.driver.flush_wakes();
        while !self.shared.inbox.is_filled() {
            if monotonic_nanos() - now >= LOOK.as_nanos() as u64 {
                self.linger.missed();
                return false;
            }
            std::hint::spin_loop();
        }
        self.linger.found();
        true
    }

    fn take_messages(&self) {
        if !self.shared.inbox.is_filled() {
            return;
        }
        let mut messages = self.messages.take();
        self.shared.inbox.take(&mut messages);
        for message in messages.drain(..) {
            match message {
                Remote::Wake(task) => {
                    task.take_in();
                    self.push(&task);
                }
                Remote::Adopt(task) => self.adopt(task),
                Remote::Look => {}
            }
        }
        self.messages.replace(messages);
    }

    fn run_task(&self, key: u32) {
        let key = key as usize;
        let Some(task) = self.tasks.borrow_mut().get_mut(key).and_then(Option::take) else { return };
        task.begin_poll();
        if task.is_aborted() {
            self.tasks.borrow_mut().try_remove(key);
            // SAFETY: this is the worker's thread, and a task that is over is not in the slab.
            unsafe { task.cancel() };
            return;
        }
        self.shared.metrics.polls.add(1);
        // SAFETY: as above.
        let polled = unsafe { task.poll() };
        let mut tasks = self.tasks.borrow_mut();
        match polled {
            Poll::Ready(()) => drop(tasks.try_remove(key)),
            Poll::Pending => {
                if let Some(slot) = tasks.get_mut(key) {
                    *slot = Some(task);
                }
            }
        }
    }

    /// Drops everything that is left, on the thread that it belongs to.
    fn shut_down(&self) {
        if self.stopping.replace(true) {
            return;
        }
        // Panics of what a future owns are caught where it is dropped; these are for those of wakers.
        for message in self.shared.inbox.close() {
            contain(|| drop(message));
        }
        self.queue.borrow_mut().clear();
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        for task in tasks.into_iter().filter_map(|(_, task)| task) {
            // SAFETY: this is the worker's thread, and a task that is over is not in the slab.
            contain(|| unsafe { task.cancel() });
            contain(|| drop(task));
        }
        self.queue.borrow_mut().clear();
        let timers = std::mem::take(&mut *self.timers.borrow_mut());
        contain(|| drop(timers));
        self.driver.close(&self.shared);
    }
}

/// Makes a worker the thread's current one, and takes it off again, also when unwinding.
struct Enter;

impl Enter {
    fn new(worker: &Rc<Worker>) -> Self {
        CURRENT.with(|current| {
            let mut current = current.borrow_mut();
            assert!(current.is_none(), "a runtime can't be started from within a runtime");
            *current = Some(Rc::clone(worker));
        });
        Enter
    }
}

impl Drop for Enter {
    fn drop(&mut self) {
        let worker = CURRENT.with(|current| current.borrow().clone());
        if let Some(worker) = worker {
            // While unwinding from the root future the tasks still need their worker to be dropped.
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
