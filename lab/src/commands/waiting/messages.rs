//! Two threads exchange messages under one strategy. The one that asks computes in the gaps; the
//! one that answers waits for as long as they take.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;
use loadgen::medians::percentile;
use policies::Cpus;
use policies::thread_time::this_thread_cpu_time;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use runtime::{Builder, Handle, WaitStrategy};

use super::WaitingConfig;
use crate::Error;
use crate::cores::{CoreAssignment, joined, run_on};
use crate::rounds::{Figure, Turn};

/// Messages after which a warm-up ends: more than an adaptive wait needs to learn that the gaps
/// have changed.
const WARM_UP_MESSAGES: u64 = 400;
/// The share of the slowest round trips that the mean leaves out: the hypervisor pauses a core now
/// and then, for hundreds of round trips.
const LEFT_OUT: f64 = 0.02;

/// Requests: an answer is wanted at once.
const MESSAGE: u64 = 0;
/// The answer is the CPU time of the answering thread, in ns.
const REPORT: u64 = 1;
const STOP: u64 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pair {
    /// A worker asks, another one answers.
    Workers,
    /// A worker asks, a thread answers, which waits in `Handle::block_on`.
    WorkerAsksThread,
    /// A thread asks and waits for the answer in `Handle::block_on`; a worker answers.
    ThreadAsksWorker,
}

policies::names!(
    Pair, "pair":
    Workers = "worker to worker",
    WorkerAsksThread = "worker to thread",
    ThreadAsksWorker = "thread to worker"
);

/// One direction: a number, and the waker of who waits for it. The next message may be sent when
/// the answer to the last one has come.
#[derive(Debug, Default)]
struct Direction {
    /// The number of the last message, from 1.
    number: AtomicU64,
    value: AtomicU64,
    waker: AtomicWaker,
}

impl Direction {
    fn send(&self, number: u64, value: u64) {
        self.value.store(value, Ordering::Relaxed);
        self.number.store(number, Ordering::Release);
        self.waker.wake();
    }

    /// Waits for the message of this number, and returns its value.
    async fn receive(&self, number: u64) -> u64 {
        let sent = || self.number.load(Ordering::Acquire) >= number;
        poll_fn(|context| {
            if sent() {
                return Poll::Ready(());
            }
            self.waker.register(context.waker());
            // It may have been sent before the waker was there.
            if sent() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        self.value.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
struct Exchange {
    request: Direction,
    reply: Direction,
}

pub(super) fn turn(
    pair: Pair,
    gaps: &[u64],
    strategy: WaitStrategy,
    cores: CoreAssignment,
    config: &WaitingConfig,
) -> Result<Turn, Error> {
    // On new threads, which have learned nothing.
    run_on(cores.client, || run_on(cores.server, || measure(pair, gaps, strategy, cores, config)))
}

fn measure(
    pair: Pair,
    gaps: &[u64],
    strategy: WaitStrategy,
    cores: CoreAssignment,
    config: &WaitingConfig,
) -> Result<Turn, Error> {
    let exchange = Arc::new(Exchange::default());
    // Worker 0 is on the lower one.
    let pinned: Cpus = match pair {
        Pair::Workers => [cores.server, cores.client].into_iter().collect(),
        _ => Cpus::one(cores.server),
    };
    let builder = Builder::new().ignore_environment().driver(config.driver);
    let builder = builder.wait(strategy).thread_wait(strategy).workers(pinned.len()).cores(pinned);
    let mut runtime = builder.build()?;
    let handle = runtime.handle();
    if pair == Pair::Workers {
        let answering = Arc::clone(&exchange);
        let answering = handle.spawn_on(1, move || async move { answer(&answering, on_worker).await });
        let turn = runtime.block_on(ask(&exchange, gaps, config, on_worker));
        runtime.block_on(answering).map_err(io::Error::other)?;
        return Ok(turn);
    }
    thread::scope(|scope| {
        let exchange = &exchange;
        if pair == Pair::WorkerAsksThread {
            let answering = scope.spawn(|| {
                on_thread(cores.client, || handle.block_on(answer(exchange, waiting_thread(&handle))))
            });
            let turn = runtime.block_on(ask(exchange, gaps, config, on_worker));
            joined(answering)?;
            return Ok(turn);
        }
        let asking = scope.spawn(|| {
            on_thread(cores.client, || handle.block_on(ask(exchange, gaps, config, waiting_thread(&handle))))
        });
        runtime.block_on(answer(exchange, on_worker));
        Ok(joined(asking)?)
    })
}

async fn on_worker(direction: &Direction, number: u64) -> u64 {
    direction.receive(number).await
}

/// Waits as a non-worker thread does: by a `block_on` for each message.
fn waiting_thread(handle: &Handle) -> impl AsyncFn(&Direction, u64) -> u64 {
    async |direction: &Direction, number| handle.block_on(direction.receive(number))
}

/// Runs on a core. Without the core it runs all the same, because the other side waits for it, and
/// returns the error.
fn on_thread<T>(core: u32, run: impl FnOnce() -> T) -> io::Result<T> {
    let pinned = Cpus::one(core).pin(None);
    let result = run();
    pinned.map(|()| result)
}

/// Answers each message, until the end. `wait` waits for the message of a number.
async fn answer(exchange: &Exchange, wait: impl AsyncFn(&Direction, u64) -> u64) {
    for number in 1.. {
        match wait(&exchange.request, number).await {
            STOP => return,
            REPORT => exchange.reply.send(number, this_thread_cpu_time().as_nanos() as u64),
            _ => exchange.reply.send(number, 0),
        }
    }
}

/// Measures what messages cost, and ends the exchange. `wait` waits for the answer of a number.
async fn ask(
    exchange: &Exchange,
    gaps: &[u64],
    config: &WaitingConfig,
    wait: impl AsyncFn(&Direction, u64) -> u64,
) -> Turn {
    let mut number = 0;
    let mut ask = async |value| {
        number += 1;
        exchange.request.send(number, value);
        wait(&exchange.reply, number).await
    };
    // The same mix in every turn.
    let mut random = SmallRng::seed_from_u64(1);
    let mut next_gap = || Duration::from_micros(gaps[random.random_range(0..gaps.len())]);
    let (begun, limit) = (Instant::now(), Duration::from_secs_f64(config.message_warm_up));
    for _ in 0..WARM_UP_MESSAGES {
        if begun.elapsed() >= limit {
            break;
        }
        compute(next_gap());
        ask(MESSAGE).await;
    }
    let mut trips = Vec::new();
    let limit = Duration::from_secs_f64(config.message_duration);
    let answering = ask(REPORT).await;
    let (begun, cpu, mut computing) = (Instant::now(), this_thread_cpu_time(), Duration::ZERO);
    while begun.elapsed() < limit {
        computing += compute(next_gap());
        let sent = Instant::now();
        ask(MESSAGE).await;
        trips.push(sent.elapsed());
    }
    let asking = (this_thread_cpu_time() - cpu).saturating_sub(computing);
    let answering = Duration::from_nanos(ask(REPORT).await.saturating_sub(answering));
    exchange.request.send(number + 1, STOP);
    message_cost(trips, asking, answering)
}

/// Computes for this long, as a worker that has other tasks. Returns the CPU time that it took: a
/// thread that is preempted meanwhile has had less.
fn compute(gap: Duration) -> Duration {
    let (begun, cpu) = (Instant::now(), this_thread_cpu_time());
    while begun.elapsed() < gap {
        std::hint::spin_loop();
    }
    this_thread_cpu_time() - cpu
}

/// The figures of messages: CPU time is that of both threads, without what is computed in the gaps.
fn message_cost(mut trips: Vec<Duration>, asking: Duration, answering: Duration) -> Turn {
    let p99 = percentile(&mut trips, 99);
    trips.sort_unstable();
    let count = trips.len().max(1) as f64;
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let kept = trips.len() - (trips.len() as f64 * LEFT_OUT) as usize;
    Turn::new([
        (Figure::RoundTrip, micros(trips[..kept].iter().sum()) / kept.max(1) as f64),
        (Figure::P99, p99.map_or(f64::NAN, micros)),
        (Figure::CpuPerRequest, micros(asking + answering) / count),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_leaves_out_the_slowest_and_cpu_time_is_per_message() {
        let mut trips = vec![Duration::from_micros(10); 98];
        trips.extend([Duration::from_millis(50); 2]);
        let cost = message_cost(trips, Duration::from_micros(300), Duration::from_micros(100));
        assert_eq!(cost.get(Figure::P99), 50_000.0);
        assert!((cost.get(Figure::RoundTrip) - 10.0).abs() < 1e-9, "{cost:?}");
        assert!((cost.get(Figure::CpuPerRequest) - 4.0).abs() < 1e-9, "{cost:?}");
        assert!(message_cost(Vec::new(), Duration::ZERO, Duration::ZERO).get(Figure::P99).is_nan());
    }
}
