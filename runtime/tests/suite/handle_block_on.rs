//! Threads that are no workers wait for workers: `Handle::block_on`.

use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use policies::thread_time::this_thread_cpu_time;
use runtime::{Builder, DriverKind, Handle, Runtime, WaitStrategy};

use crate::awaited_number::AwaitedNumber;
use crate::drivers::drivers;

fn build(driver: DriverKind, wait: WaitStrategy) -> Runtime {
    Builder::new().ignore_environment().workers(2).driver(driver).thread_wait(wait).build().unwrap()
}

#[test]
fn fifty_thousand_round_trips_lose_no_wake() {
    for wait in [WaitStrategy::Adaptive, WaitStrategy::Block] {
        let runtime = build(DriverKind::Epoll, wait);
        let handle = runtime.handle();
        let slots = Arc::new([AwaitedNumber::default(), AwaitedNumber::default()]);
        let worker = Arc::clone(&slots);
        const COUNT: u64 = 50_000;
        let echo = handle.spawn_on(1, move || async move {
            for number in 1..=COUNT {
                worker[0].reaches(number).await;
                worker[1].set(number);
            }
        });
        for number in 1..=COUNT {
            slots[0].set(number);
            handle.block_on(slots[1].reaches(number));
        }
        handle.block_on(echo).unwrap();
    }
}

#[test]
fn a_task_is_joined_by_a_thread() {
    for driver in drivers() {
        let runtime = build(driver, WaitStrategy::Adaptive);
        let handle = runtime.handle();
        for number in 0..1_000 {
            assert_eq!(handle.block_on(handle.spawn_on(1, move || async move { number })).unwrap(), number);
        }
        assert_eq!(handle.block_on(handle.spawn_blocking(|| 5)).unwrap(), 5);
        let failed =
            handle.block_on(handle.spawn_on(1, || async { panic!("expected in the test's output") }));
        assert!(failed.unwrap_err().is_panic(), "on {driver}");
        // The runtime is entered.
        let spawned =
            handle.block_on(async { runtime::spawn_on(1, || async { runtime::current_worker() }).await });
        assert_eq!(spawned.unwrap(), 1);
        assert!(Handle::try_current().is_none(), "it is left again");
    }
}

#[test]
#[ignore = "timing"]
fn a_long_wait_costs_no_cpu_time() {
    const WAIT: Duration = Duration::from_millis(500);
    for wait in [WaitStrategy::Adaptive, WaitStrategy::Block] {
        let runtime = build(DriverKind::Epoll, wait);
        let handle = runtime.handle();
        let task = handle.spawn_on(1, || async { runtime::sleep(WAIT).await });
        let (begun, cpu) = (Instant::now(), this_thread_cpu_time());
        handle.block_on(task).unwrap();
        let (elapsed, cpu) = (begun.elapsed(), this_thread_cpu_time() - cpu);
        assert!(elapsed >= WAIT - Duration::from_millis(50), "{elapsed:?}");
        assert!(cpu < WAIT / 50, "{wait}: {cpu:?} of CPU time in {elapsed:?}");
    }
}

#[test]
#[ignore = "timing"]
fn a_thread_that_is_told_to_spin_spins() {
    const WAIT: Duration = Duration::from_millis(100);
    let runtime = build(DriverKind::Epoll, WaitStrategy::Spin);
    let handle = runtime.handle();
    let task = handle.spawn_on(1, || async { runtime::sleep(WAIT).await });
    let (begun, cpu) = (Instant::now(), this_thread_cpu_time());
    handle.block_on(task).unwrap();
    let share = (this_thread_cpu_time() - cpu).as_secs_f64() / begun.elapsed().as_secs_f64();
    // Others may have the core meanwhile. A sleep takes none of it.
    assert!(share > 0.1, "{share}");
}

#[test]
fn a_worker_may_not_block_on_its_runtime() {
    let runtime = build(DriverKind::Epoll, WaitStrategy::Adaptive);
    let handle = runtime.handle();
    let within = handle.clone();
    let refused = runtime.block_on(async move {
        catch_unwind(AssertUnwindSafe(|| within.block_on(async {}))).map_err(|panic| panic.downcast::<&str>())
    });
    let message = *refused.unwrap_err().unwrap();
    assert!(message.starts_with("Handle::block_on was called on a worker's thread"), "{message}");
    // It may be called from spawn_blocking.
    let within = handle.clone();
    let work = handle.spawn_blocking(move || within.block_on(within.spawn_on(1, || async { 3 })).unwrap());
    assert_eq!(runtime.block_on(work).unwrap(), 3);
}

#[test]
fn what_needs_a_worker_names_the_line_that_waits_for_it_elsewhere() {
    let runtime = build(DriverKind::Epoll, WaitStrategy::Adaptive);
    let handle = runtime.handle();
    let refused =
        |action: &dyn Fn()| *catch_unwind(AssertUnwindSafe(action)).unwrap_err().downcast().unwrap();
    let of_spawn: String = refused(&|| {
        let _entered = handle.enter();
        drop(runtime::spawn(async {}));
    });
    let of_block_on: String = refused(&|| handle.block_on(async { drop(runtime::spawn(async {})) }));
    for (message, line) in [(of_spawn, line!() - 4), (of_block_on, line!() - 1)] {
        let place = format!("entered the runtime at runtime/tests/suite/handle_block_on.rs:{line}:");
        let mends = ["Handle::current().spawn(future)", "spawn_on"];
        assert!(message.contains(&place) && mends.iter().all(|mend| message.contains(mend)), "{message}");
    }
    // As it says.
    let slept = || runtime::sleep(Duration::from_millis(1));
    handle.block_on(async move {
        runtime::Handle::current().spawn(slept()).await.unwrap();
        runtime::spawn_on(1, slept).await.unwrap();
    });
}

#[test]
fn a_worker_keeps_the_timers_of_a_thread_that_is_none() {
    for driver in drivers() {
        let runtime = build(driver, WaitStrategy::Adaptive);
        let handle = runtime.handle();
        let begin = Instant::now();
        handle.block_on(async {
            runtime::sleep(Duration::from_millis(20)).await;
            assert!(begin.elapsed() >= Duration::from_millis(20));
            runtime::timeout(Duration::from_millis(1), pending::<()>()).await.unwrap_err();
            assert_eq!(runtime::timeout(Duration::from_secs(600), async { 7 }).await.unwrap(), 7);
            let mut ticks = runtime::interval(Duration::from_millis(1));
            for _ in 0..3 {
                ticks.tick().await;
            }
            // Polled, and then reset by somebody else than the one who waits.
            let sleep = std::cell::RefCell::new(runtime::sleep(Duration::from_secs(600)));
            let waiting = std::future::poll_fn(|context| Pin::new(&mut *sleep.borrow_mut()).poll(context));
            let resetting = async {
                runtime::sleep(Duration::from_millis(1)).await;
                sleep.borrow_mut().reset(Instant::now());
                runtime::sleep(Duration::from_millis(1)).await;
            };
            // Polls each only when it has woken it.
            let mut both: FuturesUnordered<Pin<Box<dyn Future<Output = ()>>>> = FuturesUnordered::new();
            both.push(Box::pin(waiting));
            both.push(Box::pin(resetting));
            while both.next().await.is_some() {}
        });
        assert!(begin.elapsed() < Duration::from_secs(60));
    }
}

#[test]
fn a_task_of_a_runtime_that_ends_is_joined_as_cancelled() {
    let runtime = build(DriverKind::Epoll, WaitStrategy::Adaptive);
    let handle = runtime.handle();
    let joining = std::thread::spawn({
        let handle = handle.clone();
        move || handle.block_on(handle.spawn_on(1, pending::<()>))
    });
    std::thread::sleep(Duration::from_millis(20));
    drop(runtime);
    assert!(joining.join().unwrap().unwrap_err().is_cancelled());
    assert!(handle.block_on(handle.spawn_on(1, || async {})).unwrap_err().is_cancelled());
}
