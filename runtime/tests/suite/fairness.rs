//! One task does not keep the others, the timers or another worker waiting.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use runtime::io::{AsyncFd, Direction, SourceKind};

use crate::drivers::drivers;

/// How long a task that nobody stops goes on, and how long an answer is waited for.
const ENDLESS: Duration = Duration::from_secs(60);

/// Passes one value from a task to another.
struct Slot<T>(Mutex<(Option<T>, Option<Waker>)>);

impl<T> Slot<T> {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new((None, None))))
    }

    fn put(&self, value: T) {
        let waker = {
            let mut slot = self.0.lock().unwrap();
            slot.0 = Some(value);
            slot.1.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    async fn take(&self) -> T {
        std::future::poll_fn(|context| {
            let mut slot = self.0.lock().unwrap();
            slot.1 = Some(context.waker().clone());
            slot.0.take().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// A descriptor that can always be written to.
fn always_ready() -> (AsyncFd<UnixStream>, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    (AsyncFd::new(ours, SourceKind::Other).unwrap(), theirs)
}

async fn write_nothing(to: &AsyncFd<UnixStream>) {
    to.io(Direction::Write, |_| io::Result::Ok(())).await.unwrap();
}

/// Repeats something that never waits until a timer ends it, and asserts that another task and the
/// timer have their turn.
async fn assert_others_run(busy: impl AsyncFn() + 'static) {
    let begun = Instant::now();
    let stop = Rc::new(Cell::new(false));
    let stopped = Rc::clone(&stop);
    let busy = runtime::spawn(async move {
        while !stopped.get() && begun.elapsed() < ENDLESS {
            busy().await;
        }
        stopped.get()
    });
    let other = runtime::spawn(async move {
        for _ in 0..3 {
            runtime::yield_now().await;
        }
    });
    other.await.unwrap();
    runtime::sleep(Duration::from_millis(10)).await;
    stop.set(true);
    assert!(busy.await.unwrap(), "the other task or the timer waited for the end of the busy task");
}

#[runtime::test]
async fn what_is_always_ready_does_not_stop_timers_and_other_tasks() {
    let (ours, _theirs) = always_ready();
    assert_others_run(async move || write_nothing(&ours).await).await;
    let begun = Instant::now();
    assert_others_run(async move || runtime::sleep_until(begun).await).await;
}

#[runtime::test(workers = 2)]
async fn a_wake_of_another_worker_does_not_wait_for_the_end_of_the_poll() {
    let slot = Slot::<u32>::new();
    let there = Arc::clone(&slot);
    let (answers, answered) = std::sync::mpsc::channel();
    let other = runtime::spawn_on(1, move || async move { answers.send(there.take().await + 1).unwrap() });
    // So that the other worker waits for the value, and sleeps.
    runtime::sleep(Duration::from_millis(20)).await;
    slot.put(1);
    let answer = answered.recv_timeout(ENDLESS);
    assert_eq!(answer.expect("the woken task never ran"), 2);
    other.await.unwrap();
}

#[runtime::test]
async fn a_poll_completes_128_operations_unless_it_is_unconstrained() {
    let (ours, _theirs) = always_ready();
    let operations = async |count| {
        for _ in 0..count {
            write_nothing(&ours).await;
        }
    };
    runtime::yield_now().await;
    let before = runtime::metrics()[0].forced_yields;
    operations(1000).await;
    assert_eq!(runtime::metrics()[0].forced_yields - before, 7);
    runtime::yield_now().await;
    runtime::unconstrained(operations(1000)).await;
    assert_eq!(runtime::metrics()[0].forced_yields - before, 7);
}

#[runtime::test]
async fn foreign_futures_and_joins_are_operations_of_the_poll() {
    let forced = || runtime::metrics()[0].forced_yields;
    let handles: Vec<_> = (0..1000).map(|_| runtime::spawn(async {})).collect();
    let blocking: Vec<_> = (0..200).map(|_| runtime::spawn_blocking(|| ())).collect();
    while !handles.iter().chain(&blocking).all(runtime::JoinHandle::is_finished) {
        runtime::sleep(Duration::from_millis(1)).await;
    }
    let before = forced();
    for handle in handles.into_iter().chain(blocking) {
        handle.await.unwrap();
    }
    assert_eq!(forced() - before, 9);
    let mut set = runtime::task::JoinSet::new();
    let ended = std::rc::Rc::new(std::cell::Cell::new(0));
    for _ in 0..1000 {
        let ended = std::rc::Rc::clone(&ended);
        set.spawn(async move { ended.set(ended.get() + 1) });
    }
    while ended.get() < 1000 {
        runtime::sleep(Duration::from_millis(1)).await;
    }
    let before = forced();
    while set.join_next().await.is_some() {}
    assert_eq!(forced() - before, 7);
    // What always has something, as a descriptor or a full channel, is ended by a timeout.
    let (ours, _theirs) = always_ready();
    for way in [0, 1, 2] {
        let endless = async {
            let begun = Instant::now();
            while begun.elapsed() < ENDLESS {
                match way {
                    0 => runtime::consume_budget().await,
                    1 => write_nothing(&ours).await,
                    _ => runtime::cooperative(std::future::ready(())).await,
                }
            }
        };
        assert!(runtime::timeout(Duration::from_millis(10), endless).await.is_err(), "way {way}");
    }
}

#[derive(Default)]
struct PollsWhenWoken {
    polls: AtomicUsize,
    woken_at: OnceLock<usize>,
}

impl Wake for PollsWhenWoken {
    fn wake(self: Arc<Self>) {
        let _ = self.woken_at.set(self.polls.load(Ordering::Relaxed));
    }
}

#[runtime::test]
async fn a_turn_of_tasks_that_compute_is_cut_short_for_timers() {
    let due = Instant::now() + Duration::from_millis(30);
    let counts = Arc::new(PollsWhenWoken::default());
    let tasks: Vec<_> = (0..100)
        .map(|_| {
            let counts = Arc::clone(&counts);
            runtime::spawn(async move {
                loop {
                    let begun = Instant::now();
                    while begun.elapsed() < Duration::from_millis(1) {}
                    counts.polls.fetch_add(usize::from(begun > due), Ordering::Relaxed);
                    runtime::yield_now().await;
                }
            })
        })
        .collect();
    let mut sleep = std::pin::pin!(runtime::sleep_until(due));
    let waker = Waker::from(Arc::clone(&counts));
    assert!(sleep.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    while counts.woken_at.get().is_none() {
        runtime::yield_now().await;
    }
    tasks.iter().for_each(runtime::JoinHandle::abort);
    // A turn's time is looked at after eight polls, which take a millisecond each.
    let late = counts.woken_at.get().unwrap();
    assert!(*late <= 40, "the timer fired {late} polls late");
}

#[test]
fn a_task_that_stalls_its_worker_is_reported_with_the_line_that_spawned_it() {
    for driver in drivers() {
        let (stalls, stalled) = std::sync::mpsc::channel();
        let runtime = runtime::Builder::new()
            .ignore_environment()
            .workers(2)
            .driver(driver)
            .stall_threshold(Duration::from_millis(250))
            .on_stall(move |stall| stalls.send(stall.clone()).unwrap())
            .build()
            .unwrap();
        let (line, stalls_counted) = runtime.block_on(async {
            runtime::spawn_on(1, || async { runtime::sleep(Duration::from_millis(300)).await })
                .await
                .unwrap();
            let line = line!() + 1;
            let task = runtime::spawn_on(1, || async { std::thread::sleep(Duration::from_millis(300)) });
            task.await.unwrap();
            // The joiner is woken within the poll, which is counted at its end.
            runtime::spawn_on(1, || async {}).await.unwrap();
            (line, runtime::metrics()[1].stalls)
        });
        drop(runtime);
        let stalled: Vec<_> = stalled.iter().collect();
        let reports: Vec<_> = stalled.iter().filter(|stall| stall.spawned.line() == line).collect();
        assert_eq!(reports.len(), 1, "on {driver}: {stalled:?}");
        assert!(reports[0].spawned.file().ends_with("fairness.rs") && reports[0].worker == 1);
        assert!(reports[0].took >= Duration::from_millis(250), "{}", reports[0]);
        let text = reports[0].to_string();
        assert!(text.contains(&format!("fairness.rs:{line}")) && text.contains("spawn_blocking"), "{text}");
        assert!(stalls_counted >= 1, "on {driver}");
    }
}
