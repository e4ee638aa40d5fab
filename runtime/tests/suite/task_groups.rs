//! Sets of tasks, their names and numbers, and values that belong to them.

use std::cell::Cell;
use std::future::pending;
use std::rc::Rc;
use std::time::Duration;

use runtime::task::{self, JoinSet};

#[runtime::test(workers = 2)]
async fn a_set_returns_results_in_the_order_in_which_tasks_end() {
    let mut set = JoinSet::new();
    let released = Rc::new(Cell::new(false));
    let is_released = Rc::clone(&released);
    let slow = set.spawn(async move {
        while !is_released.get() {
            runtime::yield_now().await;
        }
        "slow"
    });
    let fast = set.spawn_on(1, || async { "fast" });
    assert_eq!(set.len(), 2);
    let (id, result) = set.join_next_with_id().await.unwrap();
    assert_eq!((id, result.unwrap()), (fast.id(), "fast"));
    assert!(set.try_join_next().is_none());
    released.set(true);
    let (id, result) = set.join_next_with_id().await.unwrap();
    assert_eq!((id, result.unwrap()), (slow.id(), "slow"));
    assert!(set.is_empty() && set.join_next().await.is_none());
}

#[runtime::test(workers = 2)]
async fn a_set_of_many_tasks_on_two_workers_loses_none() {
    let mut set = JoinSet::new();
    for number in 0..1000_u32 {
        match number % 2 {
            0 => drop(set.spawn(async move {
                runtime::yield_now().await;
                number
            })),
            _ => drop(set.spawn_on(1, move || async move { number })),
        }
    }
    let mut results =
        runtime::timeout(Duration::from_secs(30), set.join_all()).await.expect("a task was lost");
    results.sort_unstable();
    assert!(results.into_iter().eq(0..1000));
}

#[runtime::test]
async fn a_dropped_set_aborts_its_tasks_and_a_detached_one_does_not() {
    let held = Rc::new(Cell::new(0));
    let waiting = |set: &mut JoinSet<()>| {
        let held = Rc::clone(&held);
        set.spawn(async move {
            runtime::yield_now().await;
            held.set(held.get() + 1);
            pending::<()>().await;
        });
    };
    let mut dropped = JoinSet::new();
    waiting(&mut dropped);
    drop(dropped);
    let mut detached = JoinSet::new();
    waiting(&mut detached);
    detached.detach_all();
    drop(detached);
    let mut ended = JoinSet::new();
    waiting(&mut ended);
    ended.shutdown().await;
    runtime::sleep(Duration::from_millis(5)).await;
    assert_eq!((held.get(), Rc::strong_count(&held)), (1, 2));
}

#[runtime::test]
async fn a_panic_in_a_set_is_an_error_of_its_task_only() {
    let mut set = JoinSet::new();
    set.spawn(async { panic!("on purpose") });
    assert!(set.join_next().await.unwrap().map(|(): ()| ()).unwrap_err().is_panic());
    set.spawn(async {});
    set.join_next().await.unwrap().unwrap();
}

#[runtime::test]
async fn a_set_waits_for_closures_that_block_as_for_tasks() {
    let mut set = JoinSet::new();
    let worker = std::thread::current().id();
    let blocking = set.spawn_blocking(move || (std::thread::current().id() != worker, "closure"));
    set.spawn(async { (true, "task") });
    assert!(!blocking.is_finished());
    let mut results = set.join_all().await;
    results.sort_unstable();
    assert_eq!(results, [(true, "closure"), (true, "task")]);
}

#[runtime::test(workers = 2)]
async fn an_error_names_its_task_and_has_the_panic() {
    let panicked = runtime::spawn_on(1, || async { std::panic::panic_any(7_u8) });
    let id = panicked.id();
    let error = panicked.await.map(|(): ()| ()).unwrap_err();
    assert_eq!((error.id(), error.is_panic()), (id, true));
    assert_eq!(error.into_panic().downcast_ref(), Some(&7_u8));
    let cancelled = runtime::spawn(pending::<()>());
    let id = cancelled.id();
    cancelled.abort();
    let error = cancelled.await.unwrap_err();
    assert_eq!((error.id(), error.is_cancelled()), (id, true));
    let misused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| error.into_panic()));
    assert!(misused.is_err(), "it has not panicked");
    let blocking = runtime::spawn_blocking(|| panic!("on purpose"));
    let id = blocking.id();
    assert_eq!(blocking.await.map(|(): ()| ()).unwrap_err().id(), id);
}

#[runtime::test(workers = 2)]
async fn a_task_has_a_number_of_its_own_and_the_name_that_it_was_given() {
    let root = task::id();
    let handle = task::Builder::new().name("reader").spawn_on(1, || async { task::id() });
    assert_eq!(handle.name(), Some("reader"));
    let id = handle.id();
    assert_eq!(handle.await.unwrap(), id);
    let other = runtime::spawn(async { task::id() });
    assert_eq!(other.name(), None);
    let other = other.await.unwrap();
    assert!(id != other && id != root && other != root);
    assert_eq!(task::id(), root);
    assert_eq!(std::thread::spawn(task::try_id).join().unwrap(), None);
}

runtime::task_local! {
    static NUMBER: u32;
    static NAME: String;
}

#[runtime::test]
async fn a_task_local_value_belongs_to_its_scope_across_awaits() {
    let count = |start: u32| async move {
        for _ in 0..3 {
            assert_eq!(NUMBER.get(), start);
            runtime::yield_now().await;
        }
        let inner = NUMBER.scope(start + 1, async {
            runtime::yield_now().await;
            NUMBER.get()
        });
        assert_eq!(inner.await, start + 1);
        NUMBER.get()
    };
    let first = runtime::spawn(NUMBER.scope(10, count(10)));
    let second = runtime::spawn(NUMBER.scope(20, count(20)));
    assert_eq!((first.await.unwrap(), second.await.unwrap()), (10, 20));
    assert!(NUMBER.try_with(|_| ()).is_err());
    let seen = NAME.sync_scope("outer".to_owned(), || NAME.with(String::len));
    assert_eq!(seen, 5);
}

#[runtime::test]
async fn a_value_is_left_when_its_scope_panics() {
    let panicked = runtime::spawn(NUMBER.scope(1, async {
        runtime::yield_now().await;
        panic!("on purpose")
    }));
    assert!(panicked.await.map(|(): ()| ()).unwrap_err().is_panic());
    assert!(NUMBER.try_with(|_| ()).is_err());
}

#[runtime::test]
async fn a_scope_that_is_cancelled_drops_its_future_with_the_value() {
    struct Reads(std::sync::Arc<std::sync::atomic::AtomicU64>);
    impl Drop for Reads {
        fn drop(&mut self) {
            self.0.store(u64::from(NUMBER.with(|number| *number)), std::sync::atomic::Ordering::Relaxed);
        }
    }
    let read = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let reads = Reads(std::sync::Arc::clone(&read));
    let scope = NUMBER.scope(7, async move {
        let _reads = reads;
        std::future::pending::<()>().await;
    });
    let task = runtime::spawn(scope);
    runtime::yield_now().await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert_eq!(read.load(std::sync::atomic::Ordering::Relaxed), 7);
    assert!(NUMBER.try_with(|_| ()).is_err());
}
