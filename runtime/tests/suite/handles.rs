//! A runtime as other threads see it: handles, blocking work, hooks, and the end.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::task::Poll;
use std::time::{Duration, Instant};

use runtime::{Builder, DriverKind, Handle, Runtime};
use tracing_subscriber::util::SubscriberInitExt;

use crate::drivers::drivers;

const LIMIT: Duration = Duration::from_secs(30);

fn builder(driver: DriverKind) -> Builder {
    Builder::new().ignore_environment().workers(2).driver(driver)
}

fn build(driver: DriverKind) -> Runtime {
    builder(driver).build().unwrap()
}

#[test]
fn any_thread_spawns_by_a_handle() {
    for driver in drivers() {
        let runtime = build(driver);
        let handle = runtime.handle();
        // Worker 1 runs without a `block_on`.
        let (sender, receiver) = mpsc::channel();
        let spawning = std::thread::spawn(move || {
            drop(handle.spawn_on(1, move || async move { sender.send(runtime::current_worker()).unwrap() }));
            let guard = handle.enter();
            assert_eq!((Handle::current().workers(), runtime::workers()), (2, 2));
            drop(guard);
            assert!(Handle::try_current().is_none());
            handle.spawn(async {
                runtime::sleep(Duration::from_millis(1)).await;
                5
            })
        });
        assert_eq!(receiver.recv_timeout(LIMIT).unwrap(), 1, "on {driver}");
        let task = spawning.join().unwrap();
        assert_eq!(runtime.block_on(task).unwrap(), 5);
        // A task for worker 0 waits for the next `block_on`.
        let handle = runtime.handle();
        let task = std::thread::spawn(move || handle.spawn_on(0, || async { 6 })).join().unwrap();
        assert_eq!(runtime.block_on(task).unwrap(), 6);
        let handle = runtime.handle();
        drop(runtime);
        assert!(build(driver).block_on(handle.spawn_on(1, || async {})).unwrap_err().is_cancelled());
    }
}

#[test]
fn a_runtime_that_is_shared_spawns_enters_and_blocks_by_itself() {
    struct Client(Runtime);
    impl Client {
        fn call(&self, number: u32) -> u32 {
            self.0.block_on(async move {
                runtime::sleep(Duration::from_millis(1)).await;
                number + 1
            })
        }
    }
    for driver in drivers() {
        let client = Client(build(driver));
        let early = client.0.spawn(async { runtime::current_worker() });
        let blocking = client.0.spawn_blocking(|| 3);
        let entered = client.0.enter();
        assert_eq!(runtime::workers(), 2, "on {driver}");
        drop(entered);
        let also = &client;
        assert_eq!((client.call(1), also.call(2)), (2, 3), "on {driver}");
        assert_eq!(client.0.block_on(early).unwrap(), 1, "on {driver}");
        assert_eq!(client.0.block_on(blocking).unwrap(), 3, "on {driver}");
        assert_eq!(client.0.metrics().len(), 2, "on {driver}");
    }
}

#[runtime::test]
async fn blocking_work_does_not_stop_the_worker() {
    let (stop, stopped) = mpsc::channel::<()>();
    let work = runtime::spawn_blocking(move || {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        stopped.recv_timeout(LIMIT).expect("the worker did not run meanwhile");
        name
    });
    runtime::sleep(Duration::from_millis(10)).await;
    stop.send(()).unwrap();
    assert!(work.await.unwrap().starts_with("lull-blocking-"));
    let panicked = runtime::spawn_blocking(|| panic!("on purpose")).await.map(|(): ()| ());
    assert!(panicked.unwrap_err().to_string().contains("on purpose"));
    // The runtime is entered on the thread.
    let answer = runtime::spawn_blocking(|| runtime::spawn_on(0, || async { 7 })).await.unwrap();
    assert_eq!(answer.await.unwrap(), 7);
    assert_eq!(Handle::current().blocking_metrics().queued, 0);
}

#[test]
fn blocking_work_has_a_limited_number_of_threads_and_what_is_aborted_never_begins() {
    for driver in drivers() {
        let runtime = builder(driver).max_blocking_threads(2).build().unwrap();
        runtime.block_on(async {
            let (at_once, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            // Closed until the last of the work is queued. Two at once pass the barrier.
            let (open, pair) = (Arc::new(AtomicBool::new(false)), Arc::new(Barrier::new(2)));
            let work: Vec<_> = (0..10)
                .map(|_| {
                    let (at_once, most) = (Arc::clone(&at_once), Arc::clone(&most));
                    let (open, pair) = (Arc::clone(&open), Arc::clone(&pair));
                    runtime::spawn_blocking(move || {
                        while !open.load(Ordering::SeqCst) {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        most.fetch_max(at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        pair.wait();
                        at_once.fetch_sub(1, Ordering::SeqCst);
                    })
                })
                .collect();
            let begun = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&begun);
            let aborted = runtime::spawn_blocking(move || counted.fetch_add(1, Ordering::SeqCst));
            assert!(Handle::current().blocking_metrics().threads <= 2);
            aborted.abort();
            assert!(aborted.await.unwrap_err().is_cancelled());
            open.store(true, Ordering::SeqCst);
            for task in work {
                runtime::timeout(LIMIT, task).await.expect("a closure was lost").unwrap();
            }
            assert_eq!((most.load(Ordering::SeqCst), begun.load(Ordering::SeqCst)), (2, 0), "on {driver}");
        });
    }
}

#[test]
fn blocking_threads_are_not_pinned_to_the_core_of_the_worker_that_starts_them() {
    use rustix::thread::{current_timer_slack, sched_getaffinity};
    let settings = || (sched_getaffinity(None).unwrap(), current_timer_slack().unwrap());
    let expected = settings();
    let core = (0..1024).find(|&core| expected.0.is_set(core)).unwrap().to_string();
    for driver in drivers() {
        for worker in [0, 1] {
            let runtime = builder(driver).cores(core.parse().unwrap()).build().unwrap();
            let task = runtime.handle().spawn_on(worker, move || async move {
                // Its own thread is started here.
                let blocking = runtime::spawn_blocking(settings).await.unwrap();
                (blocking, settings())
            });
            let (blocking, workers) = runtime.block_on(task).unwrap();
            assert_eq!(blocking, expected, "worker {worker} on {driver}");
            assert_eq!((workers.0.count(), workers.1), (1, 1), "worker {worker} on {driver}");
        }
    }
}

#[test]
fn hooks_run_on_each_worker_at_its_start_and_at_its_stop() {
    for driver in drivers() {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let (starts, stops) = (Arc::clone(&calls), Arc::clone(&calls));
        let runtime = builder(driver)
            .on_worker_start(move |worker| starts.lock().unwrap().push((worker, "start")))
            .on_worker_stop(move |worker| stops.lock().unwrap().push((worker, "stop")))
            .build()
            .unwrap();
        runtime.block_on(async { runtime::spawn_on(1, || async {}).await.unwrap() });
        runtime.block_on(async {});
        drop(runtime);
        let mut calls = calls.lock().unwrap().clone();
        calls.sort_unstable();
        assert_eq!(calls, [(0, "start"), (0, "stop"), (1, "start"), (1, "stop")], "on {driver}");
    }
}

#[test]
fn a_hook_may_wait_for_what_it_asks_of_another_worker() {
    for driver in drivers() {
        let asked = Arc::new((AtomicBool::new(false), futures_util::task::AtomicWaker::new()));
        let asking = Arc::clone(&asked);
        let (answer, answered) = mpsc::channel();
        let answered = Mutex::new(answered);
        let (outcome, outcomes) = mpsc::channel();
        let runtime = builder(driver)
            .on_worker_start(move |worker| {
                if worker == 0 {
                    asking.0.store(true, Ordering::SeqCst);
                    asking.1.wake();
                    outcome.send(answered.lock().unwrap().recv_timeout(LIMIT)).unwrap();
                }
            })
            .build()
            .unwrap();
        let (waits, waiting) = mpsc::channel();
        let task = runtime.handle().spawn_on(1, move || async move {
            waits.send(()).unwrap();
            std::future::poll_fn(|context| {
                asked.1.register(context.waker());
                if asked.0.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            answer.send(()).unwrap();
        });
        waiting.recv().unwrap();
        runtime.block_on(task).unwrap();
        assert_eq!(outcomes.recv().unwrap(), Ok(()), "on {driver}");
    }
}

#[test]
fn a_shutdown_with_a_limit_does_not_wait_for_what_blocks() {
    for driver in drivers() {
        let runtime = build(driver);
        let (release, held) = mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let begun = Instant::now();
        runtime.block_on(async {
            let (blocked, waiting) = (Arc::clone(&held), Arc::clone(&held));
            drop(runtime::spawn_blocking(move || blocked.lock().unwrap().recv()));
            drop(runtime::spawn_on(1, move || async move { waiting.lock().unwrap().recv() }));
            runtime::sleep(Duration::from_millis(20)).await;
        });
        runtime.shutdown_timeout(Duration::from_millis(50));
        assert!(begun.elapsed() < LIMIT, "on {driver}");
        drop(release);
    }
}

/// Sends each line that is logged.
struct Lines(mpsc::Sender<String>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let _ = self.0.send(String::from_utf8_lossy(bytes).into_owned());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_end_of_a_runtime_names_the_worker_that_it_waits_for() {
    let (logged, lines) = mpsc::channel();
    let writer = move || Lines(logged.clone());
    let _logs = tracing_subscriber::fmt().with_writer(writer).set_default();
    let (begin, begun) = mpsc::channel();
    let (outcome, ended) = mpsc::channel();
    let runtime = build(DriverKind::Epoll);
    drop(runtime.spawn_on(1, move || async move {
        begin.send(()).unwrap();
        let mut lines = std::iter::from_fn(|| lines.recv_timeout(LIMIT).ok());
        let _ = outcome.send(lines.any(|line| line.contains("waits for worker 1")));
    }));
    begun.recv().unwrap();
    drop(runtime);
    assert_eq!(ended.recv(), Ok(true));
}

#[test]
fn dropping_a_runtime_waits_for_blocking_work_that_has_begun() {
    for driver in drivers() {
        let done = Arc::new(AtomicUsize::new(0));
        let runtime = build(driver);
        let (begin, begun) = mpsc::channel();
        runtime.block_on(async {
            let done = Arc::clone(&done);
            drop(runtime::spawn_blocking(move || {
                begin.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(30));
                done.fetch_add(1, Ordering::SeqCst);
            }));
        });
        // The task is detached, and its closure goes on.
        begun.recv_timeout(LIMIT).unwrap();
        drop(runtime);
        assert_eq!(done.load(Ordering::SeqCst), 1, "on {driver}");
    }
}

#[test]
fn a_task_for_worker_0_of_a_runtime_that_never_ran_is_cancelled_with_it() {
    for driver in drivers() {
        let runtime = build(driver);
        let (before, handle) = (runtime.handle().spawn_on(0, || async {}), runtime.handle());
        drop(runtime);
        let after = handle.spawn_on(0, || async {});
        build(driver).block_on(async {
            for task in [before, after] {
                let joined =
                    runtime::timeout(LIMIT, task).await.expect("the task is neither run nor dropped");
                assert!(joined.unwrap_err().is_cancelled());
            }
        });
    }
}

#[test]
fn in_the_background_every_worker_runs_without_a_block_on() {
    for driver in drivers() {
        let (stopped, stops) = mpsc::channel();
        let runtime = builder(driver)
            .thread_name("svc")
            .thread_stack_size(512 << 10)
            .on_worker_stop(move |worker| stopped.send(worker).unwrap())
            .build_background()
            .unwrap();
        let on_both: Vec<_> = (0..2)
            .map(|worker| {
                runtime.spawn_on(worker, || async {
                    runtime::sleep(Duration::from_millis(1)).await;
                    let name = std::thread::current().name().unwrap_or_default().to_owned();
                    (runtime::current_worker(), name)
                })
            })
            .collect();
        for (worker, task) in on_both.into_iter().enumerate() {
            assert_eq!(runtime.block_on(task).unwrap(), (worker, format!("svc-{worker}")), "on {driver}");
        }
        // Tasks that may be on any worker are on worker 0, too.
        let tasks: Vec<_> = (0..2).map(|_| runtime.spawn(async { runtime::current_worker() })).collect();
        let mut workers: Vec<_> = tasks.into_iter().map(|task| runtime.block_on(task).unwrap()).collect();
        workers.sort_unstable();
        assert_eq!(workers, [0, 1]);
        let name = runtime.spawn_blocking(|| std::thread::current().name().map(str::to_owned));
        assert_eq!(runtime.block_on(name).unwrap().as_deref(), Some("svc-blocking-1"));
        drop(runtime);
        let mut ended: Vec<_> = stops.iter().collect();
        ended.sort_unstable();
        assert_eq!(ended, [0, 1], "on {driver}");
    }
    let refused = Builder::new().ignore_environment().interface("lull-none").build_background();
    assert!(refused.unwrap_err().to_string().contains("lull-none"));
}

#[test]
fn a_background_runtime_does_not_wait_for_a_stuck_task_longer_than_it_is_told() {
    let runtime = builder(DriverKind::Epoll).build_background().unwrap();
    let (begin, begun) = mpsc::channel();
    let (end, ends) = mpsc::channel::<()>();
    drop(runtime.spawn_on(0, move || async move {
        begin.send(()).unwrap();
        let _ = ends.recv_timeout(LIMIT);
    }));
    begun.recv().unwrap();
    let before = Instant::now();
    runtime.shutdown_timeout(Duration::from_millis(10));
    assert!(before.elapsed() < LIMIT / 2);
    drop(end);
}
