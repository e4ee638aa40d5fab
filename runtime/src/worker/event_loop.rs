//! A worker's loop: run ready tasks, wait in the driver, fire timers.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use slab::Slab;

use crate::config::{Stall, WaitStrategy};
use crate::coop;
use crate::driver::Driver;
use crate::driver::wait::Wait;
use crate::faults;
use crate::sync::contain_panic;
use crate::task_core::cell::{NewTask, TaskRef};
use crate::task_core::header::{NO_TASK, ROOT};
use crate::task_core::identity::{Id, Identity};
use crate::task_core::span::TaskSpan;
use crate::timers::{TimerClock, TimerWheel, coarse_nanos, monotonic_nanos};
use crate::worker::adaptive_spin::{AdaptiveSpin, SPIN_TIME};
use crate::worker::early_logs::EarlyLogs;
use crate::worker::queue_control::QueueControl;
use crate::worker::runtime_state::RuntimeState;
use crate::worker::worker_handle::{Message, WorkerHandle};

/// A turn's time is looked at after this many polls, and after each that has used up its budget.
const POLLS_BETWEEN_CHECKS: usize = 8;
/// While the timers' clock is paused, it is looked at after this many nanoseconds whether blocking
/// work has ended.
const BLOCKING_WORK_CHECK: u64 = 1_000_000;

/// One thread's tasks, timers and driver.
pub(crate) struct Worker {
    pub(crate) runtime: Arc<RuntimeState>,
    pub(crate) handle: Arc<WorkerHandle>,
    pub(crate) driver: Driver,
    /// Adapts how the worker's queue is driven, under kernel polling with an adaptive grace time.
    queue_control: Option<QueueControl>,
    pub(crate) timers: RefCell<TimerWheel>,
    /// The clock of `timers`.
    pub(crate) clock: TimerClock,
    /// When this turn began, on the clock of the timers.
    turn_time: Cell<u64>,
    /// When the last poll of a task ended, on the clock of [`Worker::poll_clock`].
    poll_ended: Cell<u64>,
    /// Whether polls are timed to the nanosecond.
    times_polls: bool,
    wait: WaitStrategy,
    queue: RunQueue,
    /// A task is taken out while it is polled, so that the slab is free for what the poll does
    /// (spawn, wake).
    tasks: RefCell<Slab<Option<TaskRef<WorkerHandle>>>>,
    spin: AdaptiveSpin,
    begun: Cell<bool>,
    stopping: Cell<bool>,
    closed: Cell<bool>,
    messages: RefCell<Vec<Message>>,
    pub(super) early_logs: EarlyLogs,
}

impl Worker {
    pub(crate) fn new(
        runtime: Arc<RuntimeState>,
        handle: Arc<WorkerHandle>,
        driver: Driver,
        queue_control: Option<QueueControl>,
        wait: WaitStrategy,
    ) -> Rc<Self> {
        let queue = RunQueue::new(handle.counters.schedule_latency.is_some());
        Rc::new(Self {
            runtime,
            times_polls: handle.counters.times_polls(),
            handle,
            driver,
            queue_control,
            timers: RefCell::default(),
            clock: TimerClock::default(),
            turn_time: Cell::new(monotonic_nanos()),
            poll_ended: Cell::new(0),
            wait,
            queue,
            tasks: RefCell::default(),
            spin: AdaptiveSpin::new(),
            begun: Cell::new(false),
            stopping: Cell::new(false),
            closed: Cell::new(false),
            messages: RefCell::default(),
            early_logs: EarlyLogs::default(),
        })
    }

    /// Takes in a new task and queues it. While the worker stops, the task is dropped instead, and
    /// its joiner gets a cancelled `JoinError`. `spawned`: the [`WorkerHandle::wake_time`] of then.
    pub(crate) fn adopt(&self, task: NewTask<WorkerHandle>, spawned: u64) {
        if self.stopping.get() {
            return;
        }
        let task = task.adopt();
        let mut tasks = self.tasks.borrow_mut();
        let entry = tasks.vacant_entry();
        // Four billion tasks would not fit in memory; the last key is the root's.
        task.set_key(u32::try_from(entry.key()).ok().filter(|&key| key < NO_TASK).expect("too many tasks"));
        // It may be marked as queued already, without a key: woken or aborted before it was
        // adopted.
        task.mark_queued();
        self.queue.push(task.key(), spawned);
        entry.insert(Some(task));
        self.handle.counters.alive_tasks.set(tasks.len() as u64);
    }

    /// Frees the key of a task that ends, which was taken out to be polled.
    fn forget(&self, key: usize) {
        let mut tasks = self.tasks.borrow_mut();
        tasks.try_remove(key);
        self.handle.counters.alive_tasks.set(tasks.len() as u64);
    }

    /// When this turn began: timers that are due by then have expired.
    pub(crate) fn turn_time(&self) -> u64 {
        self.turn_time.get()
    }

    /// The timers' clock was paused or resumed.
    pub(crate) fn update_turn_time(&self) {
        self.turn_time.set(self.clock.at(monotonic_nanos()));
    }

    /// Moves the timers' clock, which is paused, and fires what is due then.
    pub(crate) fn advance_clock(&self, time: u64) {
        self.clock.advance_to(time);
        self.update_turn_time();
        self.fire_timers();
    }

    fn fire_timers(&self) {
        let due = self.timers.borrow_mut().take_due(self.turn_time.get());
        due.into_iter().for_each(Waker::wake);
    }

    /// Whether the worker has ended: what is registered with its driver hears nothing any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Queues a task of this worker, which is woken now, unless it is queued or finished already.
    pub(super) fn push(&self, task: &TaskRef<WorkerHandle>) {
        if task.mark_queued() {
            self.queue.push(task.key(), self.handle.wake_time());
        }
    }

    /// The clock that polls are timed with. The precise one takes longer to read, so it is read
    /// only for histograms.
    fn poll_clock(&self) -> u64 {
        if self.times_polls { monotonic_nanos() } else { coarse_nanos() }
    }

    /// Calls the application's hook, before the first turn.
    pub(super) fn begin(&self) {
        if !self.begun.replace(true)
            && let Some(hook) = &self.runtime.hooks.on_worker_start
        {
            coop::as_task(|| hook(self.handle.index));
        }
    }

    /// Runs turns until `root` is ready, or the worker is asked to stop (`None`). `spawned`: where
    /// the root was given.
    pub(super) fn run<R>(
        &self,
        root: Option<Pin<&mut dyn Future<Output = R>>>,
        spawned: &'static Location<'static>,
    ) -> io::Result<Option<R>> {
        let mut root = Root::new(self, root, spawned);
        self.push(&root.task);
        let counters = &self.handle.counters;
        let mut started = monotonic_nanos();
        self.turn_time.set(self.clock.at(started));
        let mut idle_since: Option<u64> = None;
        loop {
            counters.turns.add(1);
            self.early_logs.log_kept();
            self.take_messages();
            let (ran, output) = self.run_tasks(&mut root, started);
            self.queue.end_turn();
            if let Some(output) = output {
                // What was written goes out also if nobody waits in this driver for a while.
                // An error that lasts is returned by the next wait.
                let _ = self.driver.submit();
                return Ok(Some(output));
            }
            if self.handle.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let now = monotonic_nanos();
            counters.running_ns.add(now - started);
            if ran > 0 {
                counters.turn_times.record(now - started);
                let was_idle = idle_since.take().is_some();
                if was_idle && self.wait == WaitStrategy::Adaptive && self.spin.is_expecting() {
                    self.spin.found();
                }
            }
            started = self.wait_for_work(now, ran, &mut idle_since)?;
        }
    }

    /// Polls queued tasks within the turn's budget. Returns how many, and the output of the root if
    /// that is ready.
    fn run_tasks<R>(&self, root: &mut Root<'_, R>, started: u64) -> (usize, Option<R>) {
        let budget = self.driver.task_budget();
        let limit = self.driver.turn_limit().as_nanos() as u64;
        self.poll_ended.set(self.poll_clock());
        let mut ran = 0;
        while ran < budget {
            let Some((next, woken)) = self.queue.pop() else { break };
            ran += 1;
            // Wake-ups of other workers go out with the wait, but don't wait for a second task.
            self.driver.flush_wakes();
            let overran = if next == ROOT {
                let (overran, polled) = root.poll(self, woken);
                if let Poll::Ready(output) = polled {
                    return (ran, Some(output));
                }
                overran
            } else {
                self.poll_task(next, woken)
            };
            let late = (overran || ran % POLLS_BETWEEN_CHECKS == 0) && monotonic_nanos() - started > limit;
            if late || self.driver.sends_are_due() {
                break;
            }
        }
        (ran, None)
    }

    /// Waits in the driver, takes in what the wait has brought, and fires timers. `ran`: how many
    /// tasks this turn has polled. Returns when the wait has ended.
    fn wait_for_work(&self, now: u64, ran: usize, idle_since: &mut Option<u64>) -> io::Result<u64> {
        let counters = &self.handle.counters;
        let next_timer = self.timers.borrow_mut().next();
        let wait = self.choose_wait(now, self.end_of_wait(now, next_timer), idle_since);
        let parked = matches!(wait, Wait::Park(_));
        let outcome = self.driver.wait(wait);
        if parked {
            self.handle.wake.park_state.unpark();
        }
        let outcome = outcome?;
        let ended = monotonic_nanos();
        if self.clock.is_paused() && ran + outcome.events == 0 && !parked && self.is_idle() {
            next_timer.into_iter().for_each(|time| self.clock.advance_to(time));
        }
        self.turn_time.set(self.clock.at(ended));
        let waited = if parked { &counters.parked_ns } else { &counters.polling_ns };
        waited.add(ended - now);
        if parked {
            // A worker that blocks spins for messages only, an adaptive one for anything but a
            // timer.
            let (has_events, has_messages) = (outcome.events > 0, self.handle.inbox.is_filled());
            let found = match self.wait {
                WaitStrategy::Adaptive => has_events || outcome.completed || has_messages,
                _ => !has_events && has_messages,
            };
            self.spin.slept(Duration::from_nanos(ended - now), found);
            *idle_since = None;
        }
        counters.waits.add(outcome.calls as u64);
        counters.events.add(outcome.events as u64);
        counters.forced_passes.add(u64::from(outcome.forced_pass));
        counters.received_bytes.add(outcome.received_bytes);
        counters.sent_bytes.add(outcome.sent_bytes);
        if let Some(control) = &self.queue_control {
            control.waited(&outcome);
            control.update(ended, &self.handle, &self.driver);
        }
        if next_timer.is_some_and(|deadline| deadline <= self.turn_time.get()) {
            self.fire_timers();
        }
        Ok(ended)
    }

    /// When the wait has to end at the latest, on the monotonic clock: for the queue or the next
    /// timer, or at once if the timers' clock is paused, and so may be advanced after a wait that
    /// brings nothing.
    fn end_of_wait(&self, now: u64, next_timer: Option<u64>) -> Option<u64> {
        let for_queue = self.queue_control.as_ref().and_then(|control| control.end_of_wait(now));
        let for_timer = next_timer.map(|next| match self.clock.is_paused() {
            false => self.clock.to_monotonic(next),
            true if next > self.clock.at(now) && self.runtime.blocking.is_working() => {
                now + BLOCKING_WORK_CHECK
            }
            true => now,
        });
        for_queue.into_iter().chain(for_timer).min()
    }

    /// Whether nothing is to be run, and no blocking work may bring something.
    fn is_idle(&self) -> bool {
        // In this order: the work is in the inbox before it counts as done.
        self.queue.is_empty() && !self.runtime.blocking.is_working() && !self.handle.inbox.is_filled()
    }

    /// Parks only if nothing is ready, no timer is due, and the wait strategy has spun long enough.
    fn choose_wait(&self, now: u64, end: Option<u64>, idle_since: &mut Option<u64>) -> Wait {
        let timeout = end.map(|end| Duration::from_nanos(end.saturating_sub(now)));
        let needs_pass = self.queue_control.as_ref().is_some_and(QueueControl::needs_pass);
        if needs_pass || !self.queue.is_empty() || timeout == Some(Duration::ZERO) {
            return Wait::Pass;
        }
        let since = *idle_since.get_or_insert(now);
        if self.wait == WaitStrategy::Spin
            || self.spins_for_anything(now - since)
            || self.spins_for_message(now, timeout)
            || !self.handle.inbox.park(&self.handle.wake.park_state)
        {
            return Wait::Pass;
        }
        Wait::Park(timeout)
    }

    /// Whether an adaptive worker that has been idle for this many nanoseconds makes another pass
    /// before it sleeps.
    fn spins_for_anything(&self, idle: u64) -> bool {
        if self.wait != WaitStrategy::Adaptive || !self.spin.is_expecting() {
            return false;
        }
        let spins = u128::from(idle) < SPIN_TIME.as_nanos();
        if !spins {
            self.spin.missed();
        }
        spins
    }

    /// Spins for a message if one is expected, and returns whether one has come. Not if the worker
    /// polls a queue, which would have to wait, nor if something is to be submitted.
    fn spins_for_message(&self, now: u64, timeout: Option<Duration>) -> bool {
        if !self.spin.is_expecting()
            || timeout.is_some_and(|timeout| timeout < SPIN_TIME)
            || !self.driver.may_spin()
        {
            return false;
        }
        self.driver.flush_wakes();
        while !self.handle.inbox.is_filled() {
            if monotonic_nanos() - now >= SPIN_TIME.as_nanos() as u64 {
                self.spin.missed();
                return false;
            }
            std::hint::spin_loop();
        }
        self.spin.found();
        true
    }

    fn take_messages(&self) {
        if !self.handle.inbox.is_filled() {
            return;
        }
        let mut messages = self.messages.take();
        self.handle.inbox.take(&mut messages);
        for message in messages.drain(..) {
            match message {
                Message::Wake(task, woken) => {
                    task.acknowledge_remote_wake();
                    if task.mark_queued() {
                        self.queue.push(task.key(), woken);
                    }
                }
                Message::Adopt(task, spawned) => self.adopt(task, spawned),
                Message::CheckStop => {}
            }
        }
        self.messages.replace(messages);
    }

    fn count_poll(&self, woken: Option<u64>) {
        let counters = &self.handle.counters;
        counters.polls.add(1);
        if let Some(latency) = &counters.schedule_latency
            && let Some(woken) = woken
        {
            // It begins where the poll before it ended, which saves a reading of the clock. The
            // task may have been woken since.
            latency.record(self.poll_ended.get().saturating_sub(woken));
        }
    }

    /// Returns whether the task has used up its budget. `woken`: when it was woken, if that is
    /// known.
    fn poll_task(&self, key: u32, woken: Option<u64>) -> bool {
        let key = key as usize;
        let Some(task) = self.tasks.borrow_mut().get_mut(key).and_then(Option::take) else { return false };
        task.begin_poll();
        if task.is_aborted() {
            self.forget(key);
            // SAFETY: this is the worker's thread, and a finished task is not in the slab.
            unsafe { task.cancel() };
            return false;
        }
        self.count_poll(woken);
        coop::begin_poll();
        Id::enter(Some(task.identity.id));
        // SAFETY: as above.
        let polled = unsafe { task.poll() };
        let overran = self.poll_ended(&task.identity);
        // For nothing.
        let woken = (polled.is_pending() && faults::chance(16)).then(|| task.waker());
        match polled {
            Poll::Ready(()) => self.forget(key),
            Poll::Pending => {
                if let Some(slot) = self.tasks.borrow_mut().get_mut(key) {
                    *slot = Some(task);
                }
            }
        }
        woken.into_iter().for_each(Waker::wake);
        overran
    }

    /// Counts a poll that took too long or used up its budget. Returns whether it did the latter.
    fn poll_ended(&self, task: &Identity) -> bool {
        let overran = coop::end_poll();
        Id::enter(None);
        self.handle.counters.forced_yields.add(u64::from(overran));
        let now = self.poll_clock();
        let nanos = now - self.poll_ended.replace(now);
        if let Some(poll_times) = &self.handle.counters.poll_times {
            poll_times.record(nanos);
        }
        let took = Duration::from_nanos(nanos);
        if took >= self.runtime.config.options.stall_threshold {
            self.stalled(task, took);
        }
        overran
    }

    #[cold]
    fn stalled(&self, task: &Identity, took: Duration) {
        let name = task.name.as_deref().cloned();
        let stall = Stall { worker: self.handle.index, id: task.id, name, spawned: task.spawned, took };
        self.handle.counters.stalls.add(1);
        self.early_logs.warn(stall.to_string());
        if let Some(hook) = &self.runtime.hooks.on_stall {
            contain_panic(|| coop::as_task(|| hook(&stall)));
        }
    }

    /// Drops all tasks and timers on the worker's own thread, and closes the driver.
    pub(super) fn shut_down(&self) {
        if self.stopping.replace(true) {
            return;
        }
        self.early_logs.log_kept();
        // What is dropped may block for what another worker does, like a task's poll.
        coop::begin_poll();
        // Panics of a future's drop are contained in `TaskRef::cancel`; here those of wakers are.
        for message in self.handle.inbox.close() {
            contain_panic(|| drop(message));
        }
        self.queue.clear();
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        self.handle.counters.alive_tasks.set(0);
        for task in tasks.into_iter().filter_map(|(_, task)| task) {
            // SAFETY: this is the worker's thread, and a finished task is not in the slab.
            contain_panic(|| unsafe { task.cancel() });
            contain_panic(|| drop(task));
        }
        self.queue.clear();
        let timers = std::mem::take(&mut *self.timers.borrow_mut());
        contain_panic(|| drop(timers));
        if self.begun.get()
            && let Some(hook) = &self.runtime.hooks.on_worker_stop
        {
            contain_panic(|| hook(self.handle.index));
        }
        coop::end_poll();
        self.closed.set(true);
        self.driver.close(self.runtime.deadline.get().copied());
    }
}

/// The future of a `block_on`, which is queued like a task, and lives on its caller's stack.
struct Root<'a, R> {
    future: Option<Pin<&'a mut dyn Future<Output = R>>>,
    task: TaskRef<WorkerHandle>,
    waker: Waker,
    span: TaskSpan,
}

impl<'a, R> Root<'a, R> {
    fn new(
        worker: &Worker,
        future: Option<Pin<&'a mut dyn Future<Output = R>>>,
        spawned: &'static Location<'static>,
    ) -> Self {
        let identity = Identity::new(spawned);
        let size = future.as_ref().map(|future| size_of_val(&**future));
        let span =
            size.map_or_else(TaskSpan::none, |size| TaskSpan::block_on(&identity, worker.handle.index, size));
        let task = TaskRef::root(Arc::clone(&worker.handle), identity, &span);
        let waker = task.waker();
        Self { future, task, waker, span }
    }

    /// Polls the future, if there is one. Also returns whether it has used up its budget.
    fn poll(&mut self, worker: &Worker, woken: Option<u64>) -> (bool, Poll<R>) {
        let Some(future) = &mut self.future else { return (false, Poll::Pending) };
        self.task.begin_poll();
        worker.count_poll(woken);
        coop::begin_poll();
        Id::enter(Some(self.task.identity.id));
        let entered = self.span.enter();
        let polled = future.as_mut().poll(&mut Context::from_waker(&self.waker));
        drop(entered);
        (worker.poll_ended(&self.task.identity), polled)
    }
}

/// The keys of tasks to poll, in the order in which they were woken. A key may be outdated, and
/// refer to no task or to a later one: a task that is woken during its last poll leaves such a key.
/// The later task is then polled once in vain.
///
/// A task that is woken during its own poll, as by [`yield_now`](crate::yield_now) or at the end of
/// its budget, comes with the next turn: else the few that always go on would use up the turns of
/// those that wait for the driver.
pub(super) struct RunQueue {
    keys: RefCell<VecDeque<u32>>,
    /// Those that come with the next turn, when they were woken.
    yielded: RefCell<Vec<(u32, u64)>>,
    /// The task that is polled now; [`NO_TASK`] if none is.
    polled: Cell<u32>,
    /// When the tasks were woken, in the order of `keys`; `None` unless schedule latency is
    /// recorded.
    wake_times: Option<RefCell<VecDeque<u64>>>,
}

impl RunQueue {
    pub(super) fn new(keeps_wake_times: bool) -> Self {
        Self {
            keys: RefCell::default(),
            yielded: RefCell::default(),
            polled: Cell::new(NO_TASK),
            wake_times: keeps_wake_times.then(RefCell::default),
        }
    }

    /// Adds a task that was woken at a time, which is ignored unless the queue keeps them.
    pub(super) fn push(&self, key: u32, wake_time: u64) {
        if key == self.polled.get() {
            return self.yielded.borrow_mut().push((key, wake_time));
        }
        self.keys.borrow_mut().push_back(key);
        if let Some(times) = &self.wake_times {
            times.borrow_mut().push_back(wake_time);
        }
    }

    /// Takes the task that has waited longest, and when it was woken if the queue keeps that.
    pub(super) fn pop(&self) -> Option<(u32, Option<u64>)> {
        let key = self.keys.borrow_mut().pop_front()?;
        let wake_time = self.wake_times.as_ref().and_then(|times| times.borrow_mut().pop_front());
        self.polled.set(key);
        Some((key, wake_time))
    }

    /// Ends a turn: what has yielded comes after what is queued.
    pub(super) fn end_turn(&self) {
        self.polled.set(NO_TASK);
        let mut yielded = self.yielded.borrow_mut();
        yielded.drain(..).for_each(|(key, wake_time)| self.push(key, wake_time));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.borrow().is_empty() && self.yielded.borrow().is_empty()
    }

    pub(super) fn clear(&self) {
        self.keys.borrow_mut().clear();
        self.yielded.borrow_mut().clear();
        if let Some(times) = &self.wake_times {
            times.borrow_mut().clear();
        }
    }
}
