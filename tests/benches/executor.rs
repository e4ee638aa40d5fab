//! Lull's executor compared with others, without I/O: `cargo bench -p tests --bench executor`.
//!
//! Each benchmark runs on one thread, except the round trip between threads, whose two runtimes are
//! pinned to two cores. All executors run the same code.

#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::hint::black_box;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use async_executor::LocalExecutor;
use criterion::{Criterion, criterion_group, criterion_main};
use runtime::{Builder, DriverKind};

use self::awaited_number::AwaitedNumber;

#[path = "../../runtime/tests/suite/awaited_number.rs"]
mod awaited_number;

/// A single-threaded executor with timers.
trait Executor: 'static {
    const NAME: &'static str;

    fn block_on<F: Future + 'static>(future: F) -> F::Output
    where
        F::Output: 'static;
    /// Spawns a task. The returned future completes with the task.
    fn spawn<F: Future<Output = u64> + 'static>(future: F) -> impl Future<Output = u64>;
    /// A timer that expires after `duration`.
    fn timer(duration: Duration) -> impl Future;
}

thread_local! {
    static EXECUTOR: Cell<Option<&'static LocalExecutor<'static>>> = const { Cell::new(None) };
}

macro_rules! executor {
    ($name:ident, $text:literal, $timer:expr, |$future:ident| $block_on:expr, |$task:ident| $spawn:expr) => {
        struct $name;

        impl Executor for $name {
            const NAME: &'static str = $text;

            fn block_on<F: Future + 'static>($future: F) -> F::Output
            where
                F::Output: 'static,
            {
                $block_on
            }

            fn spawn<F: Future<Output = u64> + 'static>($task: F) -> impl Future<Output = u64> {
                $spawn
            }

            fn timer(duration: Duration) -> impl Future {
                $timer(duration)
            }
        }
    };
}

fn lull<F: Future>(driver: DriverKind, future: F) -> F::Output {
    let builder = Builder::new().ignore_environment().workers(1).driver(driver);
    builder.build().expect("start a runtime").block_on(future)
}

async fn completed<E>(handle: impl Future<Output = Result<u64, E>>) -> u64 {
    handle.await.ok().expect("the task completes")
}

executor!(LullUring, "lull uring", runtime::sleep, |future| lull(DriverKind::Uring, future), |task| {
    completed(runtime::spawn(task))
});
executor!(LullEpoll, "lull epoll", runtime::sleep, |future| lull(DriverKind::Epoll, future), |task| {
    completed(runtime::spawn(task))
});
executor!(
    Tokio,
    "tokio",
    tokio::time::sleep,
    |future| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        tokio::task::LocalSet::new().block_on(&runtime.expect("start a runtime"), future)
    },
    |task| completed(tokio::task::spawn_local(task))
);
executor!(
    Monoio,
    "monoio",
    monoio::time::sleep,
    |future| {
        let runtime = monoio::RuntimeBuilder::<monoio::IoUringDriver>::new().enable_timer().build();
        runtime.expect("start a runtime").block_on(future)
    },
    |task| monoio::spawn(task)
);
executor!(
    AsyncExecutor,
    "async-executor",
    async_io::Timer::after,
    |future| {
        let executor: &'static LocalExecutor<'static> = Box::leak(Box::new(LocalExecutor::new()));
        EXECUTOR.set(Some(executor));
        async_io::block_on(executor.run(future))
    },
    |task| EXECUTOR.get().expect("inside block_on").spawn(task)
);

/// Wakes its own task, and yields to the executor once.
async fn yield_once() {
    let mut yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

async fn spawn_and_join<E: Executor>(rounds: u64) {
    for round in 0..rounds {
        black_box(E::spawn(async move { black_box(round) }).await);
    }
}

async fn yields(rounds: u64) {
    for _ in 0..rounds {
        yield_once().await;
    }
}

async fn timed(future: impl Future<Output = ()>) -> Duration {
    let begun = Instant::now();
    future.await;
    begun.elapsed()
}

/// A slot for one value, which one task puts in and another takes out.
#[derive(Default)]
struct Slot {
    value: Cell<Option<u64>>,
    waker: RefCell<Option<Waker>>,
}

impl Slot {
    fn put(&self, value: u64) {
        self.value.set(Some(value));
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    async fn take(&self) -> u64 {
        poll_fn(|context| match self.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                *self.waker.borrow_mut() = Some(context.waker().clone());
                Poll::Pending
            }
        })
        .await
    }
}

/// Two tasks on one thread wake each other alternately; a round is two wakes.
async fn wakes<E: Executor>(rounds: u64) -> Duration {
    let (requests, replies) = (Rc::new(Slot::default()), Rc::new(Slot::default()));
    let (incoming, outgoing) = (Rc::clone(&requests), Rc::clone(&replies));
    let echo = E::spawn(async move {
        for _ in 0..rounds {
            outgoing.put(incoming.take().await);
        }
        0
    });
    let begun = Instant::now();
    let requester = E::spawn(async move {
        for round in 0..rounds {
            requests.put(round);
            black_box(replies.take().await);
        }
        0
    });
    requester.await;
    let elapsed = begun.elapsed();
    echo.await;
    elapsed
}

fn pin(core: u32) {
    policies::Cpus::one(core).pin(None).expect("a machine of two cores");
}

/// Two runtimes on two threads and cores wake each other alternately; a round is two wakes.
fn round_trips<E: Executor>(rounds: u64) -> Duration {
    let (requests, replies) = (Arc::new(AwaitedNumber::default()), Arc::new(AwaitedNumber::default()));
    let (incoming, outgoing) = (Arc::clone(&requests), Arc::clone(&replies));
    let echo = std::thread::spawn(move || {
        pin(1);
        in_a_task::<E, _>(async move {
            for round in 1..=rounds {
                incoming.reaches(round).await;
                outgoing.set(round);
            }
            Duration::ZERO
        })
    });
    let requester = std::thread::spawn(move || {
        pin(0);
        in_a_task::<E, _>(async move {
            let begun = Instant::now();
            for round in 1..=rounds {
                requests.set(round);
                replies.reaches(round).await;
            }
            begun.elapsed()
        })
    });
    let elapsed = requester.join().expect("the requesting thread doesn't panic");
    echo.join().expect("the replying thread doesn't panic");
    elapsed
}

/// Pending timers beside the one that is measured.
const PENDING: u64 = 100_000;

fn poll_once<F: Future>(future: Pin<&mut F>) {
    let polled = future.poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "a timer of half a minute has expired");
}

/// Sets and cancels a timer while [`PENDING`] others are pending.
async fn timers<E: Executor>(rounds: u64) -> Duration {
    // Like the deadlines of connections: spread over a minute, in no order.
    let delay = |number: u64| Duration::from_micros(30_000_000 + number * 7_919 % 100_000 * 600);
    let mut pending: Vec<_> = (0..PENDING).map(|number| Box::pin(E::timer(delay(number)))).collect();
    pending.iter_mut().for_each(|timer| poll_once(timer.as_mut()));
    let begun = Instant::now();
    for round in 0..rounds {
        let mut timer = std::pin::pin!(E::timer(delay(round)));
        poll_once(timer.as_mut());
    }
    begun.elapsed()
}

/// Runs `future` as a task, because some executors poll the root future in another way.
fn in_a_task<E: Executor, F: Future<Output = Duration> + 'static>(future: F) -> Duration {
    E::block_on(async {
        let elapsed =
            E::spawn(async { u64::try_from(future.await.as_nanos()).expect("less than 584 years") });
        Duration::from_nanos(elapsed.await)
    })
}

fn benchmarks<E: Executor>(criterion: &mut Criterion) {
    let mut benchmark = |name: &str, run: fn(u64) -> Duration| {
        let mut group = criterion.benchmark_group(name);
        group.bench_function(E::NAME, |bencher| bencher.iter_custom(run));
        group.finish();
    };
    benchmark("spawn and join", |rounds| in_a_task::<E, _>(timed(spawn_and_join::<E>(rounds))));
    benchmark("yield", |rounds| in_a_task::<E, _>(timed(yields(rounds))));
    benchmark("wake, same thread, there and back", |rounds| in_a_task::<E, _>(wakes::<E>(rounds)));
    benchmark("wake, other thread, there and back", round_trips::<E>);
    benchmark("timer set and cancelled, 100,000 pending", |rounds| in_a_task::<E, _>(timers::<E>(rounds)));
}

fn all(criterion: &mut Criterion) {
    benchmarks::<LullUring>(criterion);
    benchmarks::<LullEpoll>(criterion);
    benchmarks::<Tokio>(criterion);
    benchmarks::<AsyncExecutor>(criterion);
    benchmarks::<Monoio>(criterion);
}

criterion_group! {
    name = executors;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(20);
    targets = all
}
criterion_main!(executors);
