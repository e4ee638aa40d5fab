//! The executor alone, beside others: `cargo bench -p lab --bench executor`.
//!
//! Everything runs on one thread, but for the round trip across threads, whose two runtimes are
//! pinned to two cores. The code of a row is the same for all; only the executor differs.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::hint::black_box;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use async_executor::LocalExecutor;
use criterion::{Criterion, criterion_group, criterion_main};
use futures_util::task::AtomicWaker;
use runtime::{Builder, DriverKind};

/// An executor of one thread, with timers.
trait Executor: 'static {
    const NAME: &'static str;
    type Timer: Future;

    fn block_on<F: Future + 'static>(future: F) -> F::Output
    where
        F::Output: 'static;
    /// Spawns a task; the future that is returned ends with it.
    fn spawn<F: Future<Output = u64> + 'static>(future: F) -> impl Future<Output = u64>;
    fn timer(duration: Duration) -> Self::Timer;
}

fn lull<F: Future>(driver: DriverKind, future: F) -> F::Output {
    let builder = Builder::new().ignore_environment().workers(1).driver(driver);
    builder.build().expect("a runtime").block_on(future)
}

macro_rules! lull {
    ($name:ident, $text:literal, $driver:expr) => {
        struct $name;

        impl Executor for $name {
            const NAME: &'static str = $text;
            type Timer = runtime::Sleep;

            fn block_on<F: Future + 'static>(future: F) -> F::Output
            where
                F::Output: 'static,
            {
                lull($driver, future)
            }

            fn spawn<F: Future<Output = u64> + 'static>(future: F) -> impl Future<Output = u64> {
                let handle = runtime::spawn(future);
                async { handle.await.expect("the task's result") }
            }

            fn timer(duration: Duration) -> Self::Timer {
                runtime::sleep(duration)
            }
        }
    };
}

lull!(LullUring, "lull uring", DriverKind::Uring);
lull!(LullEpoll, "lull epoll", DriverKind::Epoll);

struct Tokio;

impl Executor for Tokio {
    const NAME: &'static str = "tokio";
    type Timer = tokio::time::Sleep;

    fn block_on<F: Future + 'static>(future: F) -> F::Output
    where
        F::Output: 'static,
    {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        tokio::task::LocalSet::new().block_on(&runtime, future)
    }

    fn spawn<F: Future<Output = u64> + 'static>(future: F) -> impl Future<Output = u64> {
        let handle = tokio::task::spawn_local(future);
        async { handle.await.expect("the task's result") }
    }

    fn timer(duration: Duration) -> Self::Timer {
        tokio::time::sleep(duration)
    }
}

struct Monoio;

impl Executor for Monoio {
    const NAME: &'static str = "monoio";
    type Timer = monoio::time::Sleep;

    fn block_on<F: Future + 'static>(future: F) -> F::Output
    where
        F::Output: 'static,
    {
        let runtime = monoio::RuntimeBuilder::<monoio::IoUringDriver>::new().enable_timer().build();
        runtime.expect("a runtime").block_on(future)
    }

    fn spawn<F: Future<Output = u64> + 'static>(future: F) -> impl Future<Output = u64> {
        monoio::spawn(future)
    }

    fn timer(duration: Duration) -> Self::Timer {
        monoio::time::sleep(duration)
    }
}

struct AsyncExecutor;

thread_local! {
    static LOCAL: Cell<Option<&'static LocalExecutor<'static>>> = const { Cell::new(None) };
}

impl Executor for AsyncExecutor {
    const NAME: &'static str = "async-executor";
    type Timer = async_io::Timer;

    fn block_on<F: Future + 'static>(future: F) -> F::Output
    where
        F::Output: 'static,
    {
        let executor: &'static LocalExecutor<'static> = Box::leak(Box::new(LocalExecutor::new()));
        LOCAL.set(Some(executor));
        async_io::block_on(executor.run(future))
    }

    fn spawn<F: Future<Output = u64> + 'static>(future: F) -> impl Future<Output = u64> {
        LOCAL.get().expect("an executor").spawn(future)
    }

    fn timer(duration: Duration) -> Self::Timer {
        async_io::Timer::after(duration)
    }
}

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

async fn spawn_and_join<E: Executor>(rounds: u64) -> Duration {
    let begun = Instant::now();
    for round in 0..rounds {
        black_box(E::spawn(async move { black_box(round) }).await);
    }
    begun.elapsed()
}

async fn yields(rounds: u64) -> Duration {
    let begun = Instant::now();
    for _ in 0..rounds {
        yield_once().await;
    }
    begun.elapsed()
}

/// A value that one task puts in and another takes out.
#[derive(Default)]
struct Hand {
    value: Cell<Option<u64>>,
    waker: RefCell<Option<Waker>>,
}

impl Hand {
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

/// Two tasks of one thread wake each other in turn; a round is two wakes.
async fn wakes<E: Executor>(rounds: u64) -> Duration {
    let (there, back) = (Rc::new(Hand::default()), Rc::new(Hand::default()));
    let (theirs, ours) = (Rc::clone(&there), Rc::clone(&back));
    let echo = E::spawn(async move {
        for _ in 0..rounds {
            ours.put(theirs.take().await);
        }
        0
    });
    let begun = Instant::now();
    let asking = E::spawn(async move {
        for round in 0..rounds {
            there.put(round);
            black_box(back.take().await);
        }
        0
    });
    asking.await;
    let elapsed = begun.elapsed();
    echo.await;
    elapsed
}

/// A number that one thread raises and another waits for.
#[derive(Default)]
struct Counter {
    value: AtomicU64,
    waker: AtomicWaker,
}

impl Counter {
    fn raise(&self, value: u64) {
        self.value.store(value, Ordering::Release);
        self.waker.wake();
    }

    async fn reaches(&self, value: u64) {
        poll_fn(|context| {
            if self.value.load(Ordering::Acquire) >= value {
                return Poll::Ready(());
            }
            self.waker.register(context.waker());
            if self.value.load(Ordering::Acquire) >= value { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

fn pin(core: u32) {
    policies::Cpus::one(core).pin(None).expect("a second core");
}

/// Two runtimes on two threads and cores wake each other in turn; a round is there and back.
fn round_trips<E: Executor>(rounds: u64) -> Duration {
    let (there, back) = (Arc::new(Counter::default()), Arc::new(Counter::default()));
    let (theirs, ours) = (Arc::clone(&there), Arc::clone(&back));
    let echo = std::thread::spawn(move || {
        pin(1);
        in_a_task::<E, _>(async move {
            for round in 1..=rounds {
                theirs.reaches(round).await;
                ours.raise(round);
            }
            Duration::ZERO
        })
    });
    let asking = std::thread::spawn(move || {
        pin(0);
        in_a_task::<E, _>(async move {
            let begun = Instant::now();
            for round in 1..=rounds {
                there.raise(round);
                back.reaches(round).await;
            }
            begun.elapsed()
        })
    });
    let elapsed = asking.join().expect("the asking thread");
    echo.join().expect("the answering thread");
    elapsed
}

const PENDING: u64 = 100_000;

fn poll_once<F: Future>(future: Pin<&mut F>) {
    let polled = future.poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "a timer of half a minute is over");
}

/// A timer is set and taken back while so many others are pending.
async fn timers<E: Executor>(rounds: u64) -> Duration {
    // As deadlines of connections are: spread over a minute, in no order.
    let apart = |number: u64| Duration::from_micros(30_000_000 + number * 7_919 % 100_000 * 600);
    let mut pending: Vec<_> = (0..PENDING).map(|number| Box::pin(E::timer(apart(number)))).collect();
    pending.iter_mut().for_each(|timer| poll_once(timer.as_mut()));
    let begun = Instant::now();
    for round in 0..rounds {
        let mut timer = std::pin::pin!(E::timer(apart(round)));
        poll_once(timer.as_mut());
    }
    begun.elapsed()
}

/// Not as the root future, which some executors poll in another way than tasks.
fn in_a_task<E: Executor, F: Future<Output = Duration> + 'static>(future: F) -> Duration {
    E::block_on(async {
        let elapsed =
            E::spawn(async { u64::try_from(future.await.as_nanos()).expect("less than centuries") });
        Duration::from_nanos(elapsed.await)
    })
}

fn rows<E: Executor>(criterion: &mut Criterion) {
    let mut row = |name: &str, run: fn(u64) -> Duration| {
        let mut group = criterion.benchmark_group(name);
        group.bench_function(E::NAME, |bencher| bencher.iter_custom(run));
        group.finish();
    };
    row("spawn and join", |rounds| in_a_task::<E, _>(spawn_and_join::<E>(rounds)));
    row("yield", |rounds| in_a_task::<E, _>(yields(rounds)));
    row("wake, same thread, there and back", |rounds| in_a_task::<E, _>(wakes::<E>(rounds)));
    row("wake, other thread, there and back", round_trips::<E>);
    row("timer set and cancelled, 100,000 pending", |rounds| in_a_task::<E, _>(timers::<E>(rounds)));
}

fn all(criterion: &mut Criterion) {
    rows::<LullUring>(criterion);
    rows::<LullEpoll>(criterion);
    rows::<Tokio>(criterion);
    rows::<AsyncExecutor>(criterion);
    rows::<Monoio>(criterion);
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
