//! Timers, intervals and limits.

use std::future::{Future, pending};
use std::pin::pin;
use std::time::{Duration, Instant};

use runtime::MissedTickBehavior;

const PERIOD: Duration = Duration::from_millis(20);
const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn timers_are_send_and_sync_and_so_are_futures_that_contain_them() {
    fn check<T: Send + Sync>(value: T) {
        drop(value);
    }
    fn check_send<T: Send>(value: T) {
        drop(value);
    }
    check(runtime::sleep(PERIOD));
    check(runtime::interval(PERIOD));
    check_send(runtime::timeout(PERIOD, pending::<()>()));
    check_send(async {
        runtime::sleep(PERIOD).await;
        runtime::interval(PERIOD).tick().await;
        runtime::timeout_at(Instant::now(), pending::<()>()).await.unwrap_err();
    });
}

#[runtime::test(workers = 2)]
async fn a_sleep_may_be_awaited_on_another_worker_than_it_was_polled_on() {
    let begun = Instant::now();
    let mut sleep = Box::pin(runtime::sleep(PERIOD));
    // Polled once here.
    let _ = runtime::timeout(Duration::ZERO, sleep.as_mut()).await;
    let slept = runtime::spawn_on(1, move || async move {
        sleep.await;
        begun.elapsed()
    });
    let slept = runtime::timeout(LIMIT, slept).await.expect("the timer was lost").unwrap();
    assert!(slept >= PERIOD);
    // The timer that was left behind fires for nobody.
    runtime::sleep(PERIOD).await;
}

#[runtime::test]
async fn a_sleep_that_is_reset_wakes_its_task_at_the_new_deadline() {
    let begun = Instant::now();
    let mut sleep = pin!(runtime::sleep(Duration::from_secs(60)));
    std::future::poll_fn(|context| {
        assert!(sleep.as_mut().poll(context).is_pending());
        std::task::Poll::Ready(())
    })
    .await;
    sleep.reset(begun + PERIOD);
    // Without another poll: the timer has the task's waker.
    let woken = std::future::poll_fn(|_| match begun.elapsed() >= PERIOD {
        true => std::task::Poll::Ready(()),
        false => std::task::Poll::Pending,
    });
    runtime::timeout(LIMIT, woken).await.expect("the task was not woken");
    sleep.as_mut().await;
    sleep.as_mut().reset(Instant::now() + 2 * LIMIT);
    assert!(!sleep.is_elapsed());
    sleep.as_mut().reset(Instant::now() + PERIOD);
    runtime::timeout(LIMIT, sleep.as_mut()).await.expect("a sleep that was ready is used again");
    assert!(sleep.is_elapsed() && begun.elapsed() >= 2 * PERIOD);
}

#[runtime::test]
async fn an_interval_of_the_longest_duration_ticks_once() {
    let mut interval = runtime::interval(Duration::MAX);
    interval.tick().await;
    let second = runtime::timeout(Duration::from_millis(2), interval.tick()).await;
    assert!(second.is_err());
}

/// The ticks of an interval after the first, three and a half periods after it was due.
async fn late_ticks(behavior: MissedTickBehavior) -> (Instant, Instant, Vec<Instant>) {
    let (start, mut interval) = loop {
        let start = Instant::now() + PERIOD;
        let mut interval = runtime::interval_at(start, PERIOD);
        interval.set_missed_tick_behavior(behavior);
        assert_eq!(interval.tick().await, start);
        // The first may come late itself.
        if start.elapsed() < PERIOD {
            break (start, interval);
        }
    };
    std::thread::sleep(PERIOD * 7 / 2);
    let late = Instant::now();
    let mut ticks = Vec::new();
    for _ in 0..4 {
        ticks.push(interval.tick().await);
    }
    (start, late, ticks)
}

#[runtime::test]
async fn missed_ticks_are_made_up_for_or_delayed_or_skipped() {
    let (start, late, ticks) = late_ticks(MissedTickBehavior::Burst).await;
    assert_eq!(ticks, (1..=4).map(|tick| start + PERIOD * tick).collect::<Vec<_>>());
    assert!(ticks[2] <= late);
    let (start, late, ticks) = late_ticks(MissedTickBehavior::Delay).await;
    assert!(ticks[0] >= start + PERIOD);
    assert!(ticks[1] >= late + PERIOD && ticks[2] >= ticks[1] + PERIOD);
    assert_eq!(runtime::interval(PERIOD).missed_tick_behavior(), MissedTickBehavior::Skip);
    let (start, late, ticks) = late_ticks(MissedTickBehavior::Skip).await;
    assert_eq!(ticks[0], start + PERIOD);
    assert!(ticks[1] > late && ticks[2] > ticks[1]);
    assert!(ticks.iter().all(|tick| (*tick - start).as_nanos() % PERIOD.as_nanos() == 0));
}

#[runtime::test]
async fn a_dropped_wait_for_a_tick_loses_none_and_a_reset_moves_it() {
    runtime::time::pause();
    let mut interval = runtime::interval(PERIOD);
    let first = interval.tick().await;
    assert!(runtime::timeout(Duration::from_millis(1), interval.tick()).await.is_err());
    assert_eq!(interval.tick().await, first + PERIOD);
    interval.reset_at(first + 10 * PERIOD);
    assert_eq!(interval.tick().await, first + 10 * PERIOD);
    assert_eq!(interval.period(), PERIOD);
}

#[runtime::test]
async fn a_deadline_ends_a_future_and_one_that_is_ready_comes_first() {
    assert!(runtime::timeout_at(Instant::now() + PERIOD, pending::<()>()).await.is_err());
    assert_eq!(runtime::timeout_at(Instant::now(), async { 3 }).await, Ok(3));
}

#[runtime::test]
async fn a_timeout_has_a_name_and_gives_its_future_back() {
    struct Waits {
        limited: runtime::Timeout<std::pin::Pin<Box<dyn Future<Output = u8>>>>,
    }
    let boxed = || -> std::pin::Pin<Box<dyn Future<Output = u8>>> { Box::pin(pending()) };
    let mut waits = Waits { limited: runtime::timeout(Duration::from_millis(1), boxed()) };
    assert!((&mut waits.limited).await.is_err());
    *waits.limited.get_mut() = Box::pin(std::future::ready(5));
    assert_eq!(waits.limited.into_inner().await, 5);
    let asked = runtime::timeout_at(Instant::now() + LIMIT, std::future::ready(7));
    assert_eq!((asked.get_ref().clone().await, asked.await), (7, Ok(7)));
    // The future is in it once.
    let large = async {
        let bytes = [0_u8; 4000];
        runtime::yield_now().await;
        bytes.len()
    };
    let size = size_of_val(&large);
    assert!(size_of_val(&runtime::timeout(LIMIT, large)) < size + 100);
}

#[runtime::test]
async fn a_timer_that_is_never_due_does_not_keep_the_worker_busy() {
    let never = runtime::spawn(runtime::sleep(Duration::from_millis(u64::MAX)));
    let turns = || runtime::metrics()[0].turns;
    runtime::yield_now().await;
    let before = turns();
    // No other timer is there for the wait to end at.
    runtime::spawn_blocking(|| std::thread::sleep(Duration::from_millis(50))).await.unwrap();
    let made = turns() - before;
    assert!(made < 20, "{made} turns");
    never.abort();
}
