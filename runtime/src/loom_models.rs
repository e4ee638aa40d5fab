//! Models of what crosses threads, checked in every order of steps:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p lull-runtime --lib loom_models`.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use loom::sync::Notify;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use crate::blocking::BlockingPool;
use crate::config::ThreadOptions;
use crate::counters::WorkerCounters;
use crate::inbox::Inbox;
use crate::inbox::ParkState;
use crate::task::Ended;
use crate::task::JoinHandle;
use crate::task_core::cell::{NewTask, TaskRef as GenericTaskRef};
use crate::task_core::identity::Identity;
use crate::task_core::span::TaskSpan;
use crate::worker::thread_wait::ThreadParker;
use crate::worker::worker_handle::{Message, WorkerHandle};

type TaskRef = GenericTaskRef<WorkerHandle>;

/// A worker's inbox, parked state and eventfd.
struct Mailbox {
    inbox: Inbox<()>,
    state: ParkState,
    eventfd: Eventfd,
}

impl Mailbox {
    fn new() -> Arc<Self> {
        Arc::new(Self { inbox: Inbox::default(), state: ParkState::default(), eventfd: Eventfd::new() })
    }
}

/// The eventfd, as the sleeping worker sees it.
struct Eventfd {
    notify: Notify,
    writes: AtomicUsize,
}

impl Eventfd {
    fn new() -> Self {
        Self { notify: Notify::new(), writes: AtomicUsize::new(0) }
    }

    fn write(&self) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.notify.notify();
    }
}

fn send(worker: &Mailbox) {
    assert!(worker.inbox.push(()).is_ok());
    if worker.state.is_parked() && worker.state.claim_wake() {
        worker.eventfd.write();
    }
}

/// What a worker does: take messages, and park only if there are none. Returns how often it tried
/// to park.
fn receive(worker: &Mailbox, count: usize) -> usize {
    let (mut got, mut parks, mut messages) = (0, 0, Vec::new());
    loop {
        worker.inbox.take(&mut messages);
        got += messages.drain(..).count();
        if got == count {
            return parks;
        }
        parks += 1;
        if worker.inbox.park(&worker.state) {
            worker.eventfd.notify.wait();
            worker.state.unpark();
        }
    }
}

#[test]
fn no_message_is_missed_by_a_worker_that_parks() {
    loom::model(|| {
        let worker = Mailbox::new();
        let sender = Arc::clone(&worker);
        let sending = thread::spawn(move || {
            send(&sender);
            send(&sender);
        });
        receive(&worker, 2);
        sending.join().unwrap();
    });
}

#[test]
fn two_senders_write_to_a_worker_once_each_time_that_it_parks() {
    let mut model = loom::model::Builder::new();
    // With three threads all orders take minutes; most faults show with two preemptions.
    model.preemption_bound = Some(2);
    model.check(|| {
        let worker = Mailbox::new();
        let senders: Vec<_> = (0..2)
            .map(|_| {
                let sender = Arc::clone(&worker);
                thread::spawn(move || send(&sender))
            })
            .collect();
        let parks = receive(&worker, 2);
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        assert!(worker.eventfd.writes.load(Ordering::Relaxed) <= parks);
    });
}

#[test]
fn a_closed_inbox_returns_each_message_to_one_side() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::default());
        let sender = Arc::clone(&inbox);
        let sending = thread::spawn(move || usize::from(sender.push(()).is_err()));
        let closed = inbox.close().len();
        assert_eq!(closed + sending.join().unwrap(), 1);
    });
}

fn worker() -> Arc<WorkerHandle> {
    Arc::new(WorkerHandle::new(0, WorkerCounters::default()).unwrap())
}

fn adopt<F: Future + 'static>(worker: &Arc<WorkerHandle>, future: F) -> (TaskRef, JoinHandle<F::Output>) {
    let (task, joiner) = NewTask::local(
        Arc::clone(worker),
        Identity::new(std::panic::Location::caller()),
        TaskSpan::none(),
        future,
    );
    // SAFETY: the joiner's reference, of a future with this output.
    (task.adopt(), unsafe { JoinHandle::new(joiner) })
}

/// Polls as a worker does.
fn poll(task: &TaskRef) -> Poll<()> {
    task.begin_poll();
    // SAFETY: one thread polls, until it is ready.
    unsafe { task.poll() }
}

/// Takes messages until there is a wake, and polls.
fn poll_when_woken(worker: &WorkerHandle) -> Poll<()> {
    let mut messages = Vec::new();
    loop {
        worker.inbox.take(&mut messages);
        let mut polled = None;
        for message in messages.drain(..) {
            let Message::Wake(task, _) = message else { continue };
            task.acknowledge_remote_wake();
            if task.mark_queued() {
                polled = Some(poll(&task));
            }
        }
        match polled {
            Some(polled) => return polled,
            None => thread::yield_now(),
        }
    }
}

#[test]
fn what_is_written_before_a_wake_is_seen_by_a_later_poll() {
    loom::model(|| {
        let worker = worker();
        let value = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&value);
        let waker = Arc::new(std::sync::Mutex::new(None));
        let slot = Arc::clone(&waker);
        let (task, handle) = adopt(&worker, async move {
            poll_fn(|context| {
                *slot.lock().unwrap() = Some(context.waker().clone());
                // Relaxed: the wake alone has to carry it over.
                if seen.load(Ordering::Relaxed) == 2 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        });
        assert!(poll(&task).is_pending());
        let first: Waker = waker.lock().unwrap().take().unwrap();
        // Later polls store more wakers, each of which references the task.
        drop(waker);
        let waking = thread::spawn(move || {
            value.store(1, Ordering::Relaxed);
            first.wake_by_ref();
            value.store(2, Ordering::Relaxed);
            first.wake();
        });
        while poll_when_woken(&worker).is_pending() {}
        waking.join().unwrap();
        drop((task, handle));
        drop(worker.inbox.close());
        assert_eq!(Arc::strong_count(&worker), 1, "the task was not freed");
    });
}

/// Wakes the thread of a waiting joiner.
struct Flag(Notify);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

/// A future's output, on the thread that waits for it.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let flag = Arc::new(Flag(Notify::new()));
    let waker = Waker::from(Arc::clone(&flag));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => flag.0.wait(),
        }
    }
}

fn join<T>(handle: JoinHandle<T>) -> T {
    block_on(handle).unwrap_or_else(|error| panic!("{error}"))
}

/// Counts how often it is dropped.
struct Dropped(Arc<std::sync::atomic::AtomicUsize>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn a_joiner_on_another_thread_gets_the_result() {
    loom::model(|| {
        let worker = worker();
        let drops = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let result = Dropped(Arc::clone(&drops));
        let (task, handle) = adopt(&worker, async move { result });
        let joining = thread::spawn(move || drop(join(handle)));
        assert!(poll(&task).is_ready());
        drop(task);
        joining.join().unwrap();
        assert_eq!(drops.load(std::sync::atomic::Ordering::Relaxed), 1);
        assert_eq!(Arc::strong_count(&worker), 1, "the task was not freed");
    });
}

#[test]
fn a_result_that_nobody_takes_is_dropped_once() {
    loom::model(|| {
        let worker = worker();
        let drops = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let result = Dropped(Arc::clone(&drops));
        let (task, handle) = adopt(&worker, async move { result });
        let detaching = thread::spawn(move || drop(handle));
        assert!(poll(&task).is_ready());
        drop(task);
        detaching.join().unwrap();
        assert_eq!(drops.load(std::sync::atomic::Ordering::Relaxed), 1);
        assert_eq!(Arc::strong_count(&worker), 1, "the task was not freed");
    });
}

#[test]
fn an_abort_and_a_wake_from_two_threads_end_the_task_once() {
    loom::model(|| {
        let worker = worker();
        let drops = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let held = Dropped(Arc::clone(&drops));
        let (task, handle) = adopt(&worker, async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        assert!(poll(&task).is_pending());
        let (waker, abort) = (task.waker(), handle.abort_handle());
        let waking = thread::spawn(move || waker.wake());
        let aborting = thread::spawn(move || abort.abort());
        let mut messages = Vec::new();
        while !task.is_aborted() {
            thread::yield_now();
        }
        // SAFETY: this thread polls.
        unsafe { task.cancel() };
        waking.join().unwrap();
        aborting.join().unwrap();
        worker.inbox.take(&mut messages);
        for message in messages.drain(..) {
            let Message::Wake(task, _) = message else { continue };
            task.acknowledge_remote_wake();
            assert!(!task.mark_queued(), "a task that is over was queued");
        }
        assert_eq!(drops.load(std::sync::atomic::Ordering::Relaxed), 1);
        drop((task, handle));
        assert_eq!(Arc::strong_count(&worker), 1, "the task was not freed");
    });
}

#[test]
fn a_thread_that_goes_to_sleep_misses_no_wake() {
    loom::model(|| {
        let parker = Arc::new(ThreadParker::default());
        let set = Arc::new(AtomicUsize::new(0));
        let waking: Vec<_> = (0..2)
            .map(|_| {
                let (waker, set) = (Waker::from(Arc::clone(&parker)), Arc::clone(&set));
                thread::spawn(move || {
                    set.fetch_add(1, Ordering::Relaxed);
                    waker.wake();
                })
            })
            .collect();
        // As `Handle::block_on` does: look, then wait for a wake.
        while set.load(Ordering::Relaxed) < 2 {
            if !parker.take() {
                parker.sleep();
            }
        }
        waking.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_member_that_ends_while_its_set_begins_to_wait_is_not_missed() {
    loom::model(|| {
        let ended = Ended::new();
        let member = ended.waker(3);
        let ending = thread::spawn(move || member.wake());
        let flag = Arc::new(Flag(Notify::new()));
        let joiner = Waker::from(Arc::clone(&flag));
        let key = loop {
            match ended.next(Some(&joiner)) {
                Some(key) => break key,
                None => flag.0.wait(),
            }
        };
        assert_eq!(key, 3);
        ending.join().unwrap();
    });
}

#[test]
fn blocking_work_gives_its_results_to_those_who_wait_and_its_thread_ends() {
    loom::model(|| {
        let pool = BlockingPool::new(1, ThreadOptions::default());
        let first = pool.spawn(|| 1);
        // Queued behind the first, or given to the thread that has done it and waits.
        let second = pool.spawn(|| 2);
        assert_eq!(block_on(first) + block_on(second), 3);
        pool.close();
        pool.wait(None);
        assert_eq!((pool.metrics().threads, pool.metrics().finished), (0, 2));
    });
}

#[test]
fn blocking_work_that_nobody_waits_for_is_run_or_dropped_once_and_its_pool_closes() {
    loom::model(|| {
        let drops = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let pool = BlockingPool::new(1, ThreadOptions::default());
        let held = Dropped(Arc::clone(&drops));
        let waiting = pool.spawn(move || drop(held));
        drop(waiting);
        pool.close();
        pool.wait(None);
        assert_eq!(drops.load(std::sync::atomic::Ordering::Relaxed), 1);
        assert_eq!(Arc::strong_count(&drops), 1, "the closure was not freed");
    });
}
