//! What happens to tasks: results, panics, aborts, other workers, shutdown.

use std::cell::Cell;
use std::future::pending;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use runtime::{Builder, Runtime};

use crate::drivers::{drivers, one_worker};

/// How long something is waited for that must happen.
const LIMIT: Duration = Duration::from_secs(30);

fn runtime(workers: usize) -> Runtime {
    Builder::new().workers(workers).ignore_environment().build().unwrap()
}

#[runtime::test]
async fn a_task_need_not_be_send() {
    let shared = Rc::new(Cell::new(0));
    let task = Rc::clone(&shared);
    runtime::spawn(async move { task.set(7) }).await.unwrap();
    assert_eq!(shared.get(), 7);
}

#[runtime::test]
async fn a_panic_is_carried_to_the_joiner_and_the_worker_goes_on() {
    let error = runtime::spawn(async { panic!("on purpose") }).await.map(|(): ()| ()).unwrap_err();
    assert!(error.is_panic());
    assert_eq!(error.to_string(), "the task panicked: on purpose");
    assert_eq!(runtime::spawn(async { 1 }).await.unwrap(), 1);
}

#[runtime::test]
async fn an_aborted_task_is_dropped_and_its_joiner_told() {
    let held = Rc::new(());
    let task = Rc::clone(&held);
    let handle = runtime::spawn(async move {
        let _held = task;
        pending::<()>().await;
    });
    runtime::yield_now().await;
    assert_eq!(Rc::strong_count(&held), 2);
    handle.abort();
    assert!(handle.await.unwrap_err().is_cancelled());
    assert_eq!(Rc::strong_count(&held), 1);
}

#[runtime::test]
async fn a_task_that_aborts_itself_ends_at_its_next_wait() {
    let slot = Rc::new(Cell::new(None::<runtime::JoinHandle<()>>));
    let inside = Rc::clone(&slot);
    let (done, finished) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let (done_inside, finished_inside) = (Rc::clone(&done), Rc::clone(&finished));
    slot.set(Some(runtime::spawn(async move {
        runtime::yield_now().await;
        if let Some(handle) = inside.take() {
            handle.abort();
        }
        done_inside.set(true);
        runtime::yield_now().await;
        finished_inside.set(true);
    })));
    for _ in 0..10 {
        runtime::yield_now().await;
    }
    assert!(done.get() && !finished.get());
}

#[runtime::test]
async fn dropping_the_handle_detaches_the_task() {
    let done = Rc::new(Cell::new(false));
    let task = Rc::clone(&done);
    drop(runtime::spawn(async move {
        runtime::yield_now().await;
        task.set(true);
    }));
    for _ in 0..10 {
        runtime::yield_now().await;
    }
    assert!(done.get());
}

#[runtime::test]
async fn ready_tasks_take_turns() {
    let order = Rc::new(std::cell::RefCell::new(Vec::new()));
    let handles: Vec<_> = (0..2)
        .map(|task| {
            let order = Rc::clone(&order);
            runtime::spawn(async move {
                for _ in 0..3 {
                    order.borrow_mut().push(task);
                    runtime::yield_now().await;
                }
            })
        })
        .collect();
    for handle in handles {
        handle.await.unwrap();
    }
    assert_eq!(*order.borrow(), [0, 1, 0, 1, 0, 1]);
}

#[runtime::test(workers = 3)]
async fn a_closure_makes_its_future_on_the_other_worker() {
    for worker in 0..3 {
        let handle = runtime::spawn_on(worker, || {
            let local = Rc::new(runtime::current_worker());
            async move {
                runtime::yield_now().await;
                *local
            }
        });
        assert_eq!(handle.await.unwrap(), worker);
    }
}

#[runtime::test(workers = 2)]
async fn a_panic_on_another_worker_is_carried_here() {
    let polled = runtime::spawn_on(1, || async { panic!("in the future") });
    assert!(polled.await.map(|(): ()| ()).unwrap_err().to_string().contains("in the future"));
    let made = runtime::spawn_on(1, || -> std::future::Ready<()> { panic!("in the closure") });
    assert!(made.await.unwrap_err().to_string().contains("in the closure"));
    assert_eq!(runtime::spawn_on(1, || async { 5 }).await.unwrap(), 5);
}

#[runtime::test(workers = 2)]
async fn an_abort_crosses_workers() {
    let handle = runtime::spawn_on(1, pending::<()>);
    runtime::sleep(Duration::from_millis(2)).await;
    handle.abort();
    assert!(handle.await.unwrap_err().is_cancelled());
}

#[test]
fn dropping_the_runtime_drops_tasks_on_every_worker() {
    for driver in drivers() {
        let held = Arc::new(());
        let runtime = Builder::new().ignore_environment().workers(3).driver(driver).build().unwrap();
        let task = Arc::clone(&held);
        let handles = runtime.block_on(async move {
            let handles: Vec<_> = (0..3)
                .map(|worker| {
                    let held = Arc::clone(&task);
                    runtime::spawn_on(worker, move || async move {
                        let _held = held;
                        pending::<()>().await;
                    })
                })
                .collect();
            runtime::sleep(Duration::from_millis(5)).await;
            handles
        });
        drop(runtime);
        assert_eq!(Arc::strong_count(&held), 1, "on {driver}");
        assert!(handles.iter().all(runtime::JoinHandle::is_finished), "on {driver}");
    }
}

#[test]
fn a_panic_in_the_root_future_reaches_the_caller() {
    let runtime = runtime(1);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        runtime.block_on(async {
            drop(runtime::spawn(runtime::sleep(Duration::from_secs(60))));
            runtime::yield_now().await;
            panic!("root")
        })
    }));
    assert_eq!(*result.map(|(): ()| ()).unwrap_err().downcast_ref::<&str>().unwrap(), "root");
    assert_eq!(runtime.block_on(async { 3 }), 3);
}

#[test]
fn only_a_parked_worker_is_written_to() {
    let runtime = runtime(2);
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    runtime.block_on(async move {
        // The first wakes the worker, which is then kept busy; the others must not write.
        let (start, started) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let busy = runtime::spawn_on(1, move || async move {
            start.send(()).unwrap();
            released.recv().unwrap_err();
        });
        started.recv_timeout(LIMIT).expect("the worker was not woken");
        let before = runtime::metrics()[1].wakes;
        let handles: Vec<_> = (0..100)
            .map(|_| {
                let count = Arc::clone(&counted);
                runtime::spawn_on(1, move || async move { count.fetch_add(1, Ordering::Relaxed) })
            })
            .collect();
        assert_eq!(runtime::metrics()[1].wakes, before);
        drop(release);
        busy.await.unwrap();
        for handle in handles {
            handle.await.unwrap();
        }
    });
    assert_eq!(count.load(Ordering::Relaxed), 100);
}

#[test]
fn wakes_from_many_threads_are_never_lost() {
    let runtime = runtime(2);
    runtime.block_on(async {
        for _ in 0..2000 {
            let (a, b) = (
                runtime::spawn_on(1, || async { runtime::yield_now().await }),
                runtime::spawn_on(0, || async {}),
            );
            a.await.unwrap();
            b.await.unwrap();
        }
    });
}

#[test]
fn a_worker_reports_what_it_runs() {
    let runtime = runtime(2);
    let reports = runtime.block_on(async { runtime::reports() });
    assert_eq!(reports.len(), 2);
    assert!(reports.iter().all(|report| report.running == runtime::Running::Vanilla));
}

#[test]
fn kernel_polling_without_an_interface_blocks_and_says_why() {
    let runtime = Builder::new()
        .workers(1)
        .policy(runtime::policy::Policy::KernelPolling)
        .ignore_environment()
        .build()
        .unwrap();
    let reports = runtime.block_on(async { runtime::reports() });
    assert_eq!(reports[0].running, runtime::Running::Blocking);
    assert!(reports[0].to_string().contains("no interface is named"), "{}", reports[0]);
}

#[test]
fn an_interface_that_is_not_there_is_an_error_that_lists_the_others() {
    let error = Builder::new().interface("nonesuch0").ignore_environment().build().unwrap_err();
    assert!(error.to_string().contains("nonesuch0") && error.to_string().contains("lo"), "{error}");
}

/// Sleeps that are longer than a worker looks for messages before it parks.
const APART: Duration = Duration::from_millis(2);

#[test]
fn with_every_wait_strategy_workers_wake_each_other_however_long_they_have_slept() {
    for driver in drivers() {
        for wait in runtime::WaitStrategy::ALL {
            let builder = Builder::new().workers(2).driver(driver).wait(wait).ignore_environment();
            builder.build().unwrap().block_on(async {
                for round in 0..50_u32 {
                    let there = runtime::spawn_on(1, move || async move { round });
                    assert_eq!(there.await.unwrap(), round);
                    if round % 5 == 0 {
                        runtime::sleep(APART).await;
                    }
                }
            });
        }
    }
}

#[test]
fn a_waker_of_a_runtime_that_has_ended_does_nothing() {
    for driver in drivers() {
        let own_waker = || std::future::poll_fn(|context| std::task::Poll::Ready(context.waker().clone()));
        let wakers = one_worker(driver).block_on(async {
            // The root future's, and a task's.
            [own_waker().await, runtime::spawn(own_waker()).await.unwrap()]
        });
        wakers.iter().for_each(std::task::Waker::wake_by_ref);
        one_worker(driver).block_on(async {
            wakers.iter().for_each(std::task::Waker::wake_by_ref);
            runtime::sleep(APART).await;
            wakers.into_iter().for_each(std::task::Waker::wake);
        });
    }
}

#[test]
fn a_task_that_is_aborted_before_its_own_worker_takes_it_in_ends() {
    runtime(1).block_on(async {
        let handle = runtime::spawn_on(0, || async { pending::<()>().await });
        handle.abort();
        let ended = runtime::timeout(LIMIT, handle).await.expect("the task never ended");
        assert!(ended.unwrap_err().is_cancelled());
    });
}

#[test]
fn other_workers_reach_worker_0_in_a_second_block_on() {
    let runtime = runtime(2);
    for round in 0..3 {
        let answer = runtime.block_on(async move {
            let there = runtime::spawn_on(1, move || async move {
                // Back to worker 0 from another thread.
                runtime::spawn_on(0, move || async move { round }).await.unwrap()
            });
            runtime::timeout(LIMIT, there).await.expect("no answer").unwrap()
        });
        assert_eq!(answer, round);
    }
}

#[runtime::test(workers = 2)]
async fn a_task_of_another_worker_may_be_waited_for_by_blocking_the_thread() {
    // So that the other worker sleeps.
    runtime::sleep(APART).await;
    let (sender, receiver) = mpsc::channel();
    let task = runtime::spawn_on(1, move || async move { sender.send(7).unwrap() });
    assert_eq!(receiver.recv_timeout(LIMIT).expect("the worker was not woken"), 7);
    task.await.unwrap();
}

#[test]
fn a_runtime_may_be_dropped_within_a_task_of_another() {
    let outer = runtime(1);
    outer.block_on(async {
        let inner = runtime(2);
        std::thread::sleep(APART);
        runtime::spawn(async move { drop(inner) }).await.unwrap();
    });
}

#[test]
fn a_timer_that_outlives_its_block_on_takes_no_timer_of_the_next() {
    let runtime = runtime(1);
    let mut old = None;
    runtime.block_on(async {
        let mut sleep = Box::pin(runtime::sleep(Duration::from_secs(60)));
        assert!(runtime::timeout(Duration::from_millis(1), sleep.as_mut()).await.is_err());
        old = Some(sleep);
    });
    runtime.block_on(async move {
        let sleeping = runtime::spawn(runtime::sleep(Duration::from_millis(5)));
        runtime::yield_now().await;
        drop(old);
        runtime::timeout(LIMIT, sleeping).await.expect("the timer was lost").unwrap();
    });
}

/// Panics when it is dropped, with a value that does, too.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            std::panic::panic_any(Bomb);
        }
    }
}

#[runtime::test]
async fn a_future_whose_drop_panics_with_what_panics_again_is_dropped_once() {
    let held = Rc::new(());
    let task = Rc::clone(&held);
    let handle = runtime::spawn(async move {
        let _held = (task, Bomb);
        pending::<()>().await;
    });
    runtime::yield_now().await;
    handle.abort();
    assert!(handle.await.unwrap_err().is_cancelled());
    assert_eq!(Rc::strong_count(&held), 1);
}

#[runtime::test]
async fn results_whose_drop_panics_neither_unwind_into_who_drops_them_nor_end_the_process() {
    let mut set = runtime::task::JoinSet::new();
    (0..3).for_each(|_| drop(set.spawn(async { Bomb })));
    let handle = runtime::spawn(async { Bomb });
    let blocking = runtime::spawn_blocking(|| Box::new(Bomb));
    while !(handle.is_finished() && blocking.is_finished()) {
        runtime::sleep(Duration::from_millis(1)).await;
    }
    // Dropping them in a panic would end the process at the first.
    drop((set, handle, blocking));
    runtime::spawn(async {}).await.unwrap();
}

#[runtime::test]
async fn a_joiners_waker_that_panics_does_not_stop_the_worker() {
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: std::sync::Arc<Self>) {
            // Without memory: the payload of a contained panic is leaked.
            std::panic::panic_any(());
        }
    }
    let mut handle = runtime::spawn(runtime::yield_now());
    let waker = std::sync::Arc::new(Panics).into();
    assert!(std::pin::Pin::new(&mut handle).poll(&mut std::task::Context::from_waker(&waker)).is_pending());
    runtime::yield_now().await;
    runtime::yield_now().await;
    handle.await.unwrap();
    runtime::spawn(async {}).await.unwrap();
}
