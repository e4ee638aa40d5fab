//! A paused clock: it moves by `advance`, or to the next timer when the runtime is idle.

use std::cell::RefCell;
use std::future::pending;
use std::rc::Rc;
use std::time::{Duration, Instant};

use runtime::time::{advance, now, pause, resume};
use runtime::{Builder, MissedTickBehavior, interval, sleep, spawn, timeout};

const HOUR: Duration = Duration::from_secs(3600);
const SECOND: Duration = Duration::from_secs(1);

#[runtime::test]
async fn a_paused_clock_jumps_to_the_next_timer_in_order() {
    let begun = Instant::now();
    pause();
    let paused = now();
    let woken = Rc::new(RefCell::new(Vec::new()));
    let sleepers: Vec<_> = [3, 1, 2]
        .map(|hours| {
            let woken = Rc::clone(&woken);
            spawn(async move {
                sleep(HOUR * hours).await;
                woken.borrow_mut().push((hours, now() - paused));
            })
        })
        .into();
    for sleeper in sleepers {
        sleeper.await.unwrap();
    }
    assert_eq!(*woken.borrow(), [1, 2, 3].map(|hours| (hours, HOUR * hours)));
    assert!(timeout(HOUR, pending::<()>()).await.is_err());
    assert_eq!(now() - paused, HOUR * 4);
    assert!(begun.elapsed() < HOUR);
}

#[runtime::test]
async fn a_paused_clock_stands_while_tasks_run() {
    pause();
    let paused = now();
    std::thread::sleep(Duration::from_millis(5));
    for _ in 0..1000 {
        runtime::yield_now().await;
    }
    assert_eq!(now(), paused);
}

#[runtime::test]
async fn an_advance_fires_the_timers_that_are_due_and_no_others() {
    pause();
    let paused = now();
    let woken = Rc::new(RefCell::new(Vec::new()));
    for seconds in [10, 20] {
        let woken = Rc::clone(&woken);
        drop(spawn(async move {
            sleep(SECOND * seconds).await;
            woken.borrow_mut().push(seconds);
        }));
    }
    runtime::yield_now().await;
    advance(SECOND * 9).await;
    assert!(woken.borrow().is_empty());
    advance(SECOND).await;
    assert_eq!(*woken.borrow(), [10]);
    advance(SECOND * 5).await;
    assert_eq!(*woken.borrow(), [10]);
    assert_eq!(now() - paused, SECOND * 15);
    advance(HOUR).await;
    assert_eq!(*woken.borrow(), [10, 20]);
}

#[runtime::test]
async fn an_interval_ticks_on_the_paused_clock() {
    pause();
    let start = now();
    let mut interval = interval(SECOND);
    interval.set_missed_tick_behavior(MissedTickBehavior::Burst);
    assert_eq!(interval.tick().await, start);
    advance(SECOND * 7 / 2).await;
    for tick in 1..=3 {
        assert_eq!(interval.tick().await, start + SECOND * tick);
        assert_eq!(now(), start + SECOND * 7 / 2);
    }
    assert_eq!(interval.tick().await, start + SECOND * 4);
    assert_eq!(now(), start + SECOND * 4);
}

#[runtime::test]
async fn a_clock_that_is_resumed_goes_on_from_where_it_stood() {
    let begun = Instant::now();
    pause();
    sleep(HOUR).await;
    resume();
    let resumed = Instant::now();
    sleep(Duration::from_millis(20)).await;
    assert!(resumed.elapsed() >= Duration::from_millis(20), "a timer fired early");
    assert!(now() - begun >= HOUR && begun.elapsed() < HOUR);
}

#[runtime::test]
async fn a_clock_that_was_only_paused_is_behind_and_fires_no_timer_early() {
    let real = Instant::now();
    pause();
    let paused = now();
    std::thread::sleep(Duration::from_millis(20));
    resume();
    assert!(now() - paused + Duration::from_millis(20) <= real.elapsed());
    let before = Instant::now();
    sleep(Duration::from_millis(10)).await;
    assert!(before.elapsed() >= Duration::from_millis(10), "a timer fired early");
}

#[runtime::test]
async fn a_paused_clock_waits_for_blocking_work() {
    pause();
    let paused = now();
    let work = runtime::spawn_blocking(|| std::thread::sleep(Duration::from_millis(30)));
    timeout(HOUR, work).await.expect("the clock jumped over the work").unwrap();
    assert_eq!(now(), paused);
    // Also if nobody waits for it.
    drop(runtime::spawn_blocking(|| std::thread::sleep(Duration::from_millis(5))));
    sleep(HOUR).await;
    assert_eq!(now(), paused + HOUR);
}

#[runtime::test]
async fn time_can_be_paused_once_and_not_resumed_or_advanced_while_it_runs() {
    async fn panics(task: impl Future<Output = ()> + 'static) -> bool {
        spawn(task).await.is_err_and(|error| error.is_panic())
    }
    assert!(panics(async { resume() }).await);
    assert!(panics(advance(SECOND)).await);
    pause();
    assert!(panics(async { pause() }).await);
}

#[test]
fn time_of_several_workers_can_not_be_paused() {
    let runtime = Builder::new().ignore_environment().workers(2).build().unwrap();
    let paused = runtime.block_on(async { spawn(async { pause() }).await });
    assert!(paused.unwrap_err().is_panic());
}
