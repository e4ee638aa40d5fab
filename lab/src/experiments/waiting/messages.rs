//! What the two sides of an exchange do, and what it costs them.

use std::time::{Duration, Instant};

use loadgen::medians::percentile;
use policies::thread_time::this_thread_cpu_time;

use super::config::WaitingConfig;
use super::exchange::{Direction, Exchange};
use super::gap::Gap;
use crate::engine::{Figure, Turn};

/// The share of the slowest round trips that the mean leaves out: the hypervisor pauses a core now and then, for
/// hundreds of round trips.
const LEFT_OUT: f64 = 0.02;

/// Requests: an answer is wanted at once.
const MESSAGE: u64 = 0;
/// The answer is the CPU time of the answering thread, in ns.
const REPORT: u64 = 1;
/// The exchange is over.
const STOP: u64 = 2;

/// Answers each message, until the end. `wait` waits for the message of a number. Returns the number of messages.
pub(super) async fn answer(exchange: &Exchange, wait: impl AsyncFn(&Direction, u64) -> u64) -> u64 {
    let mut number = 1;
    loop {
        match wait(&exchange.request, number).await {
            STOP => return number - 1,
            REPORT => exchange.reply.send(number, this_thread_cpu_time().as_nanos() as u64),
            _ => exchange.reply.send(number, 0),
        }
        number += 1;
    }
}

/// Measures messages at a gap, and ends the exchange. `wait` waits for the answer of a number. Returns what they cost, and the
/// number of all messages.
pub(super) async fn ask(
    exchange: &Exchange,
    gap: Gap,
    config: &WaitingConfig,
    wait: impl AsyncFn(&Direction, u64) -> u64,
) -> (Turn, u64) {
    let mut asking = Asking { exchange, wait, number: 0 };
    let turn = asking.measure(gap, config).await;
    exchange.request.send(asking.number + 1, STOP);
    (turn, asking.number)
}

struct Asking<'a, W> {
    exchange: &'a Exchange,
    wait: W,
    /// Messages so far.
    number: u64,
}

impl<W: AsyncFn(&Direction, u64) -> u64> Asking<'_, W> {
    async fn ask(&mut self, value: u64) -> u64 {
        self.number += 1;
        self.exchange.request.send(self.number, value);
        (self.wait)(&self.exchange.reply, self.number).await
    }

    async fn measure(&mut self, gap: Gap, config: &WaitingConfig) -> Turn {
        let mut next_gap = gap.times();
        let (begun, limit) = (Instant::now(), Duration::from_secs_f64(config.message_warm_up));
        let until = self.number + WaitingConfig::WARM_UP_MESSAGES;
        while self.number < until && begun.elapsed() < limit {
            compute(next_gap());
            self.ask(MESSAGE).await;
        }
        let mut trips = Vec::new();
        let limit = Duration::from_secs_f64(config.message_duration);
        let answering = self.ask(REPORT).await;
        let (begun, cpu, mut computing) = (Instant::now(), this_thread_cpu_time(), Duration::ZERO);
        while begun.elapsed() < limit {
            computing += compute(next_gap());
            let sent = Instant::now();
            self.ask(MESSAGE).await;
            trips.push(sent.elapsed());
        }
        let asking = (this_thread_cpu_time() - cpu).saturating_sub(computing);
        let answering = Duration::from_nanos(self.ask(REPORT).await.saturating_sub(answering));
        message_cost(trips, asking, answering)
    }
}

/// Computes for this long, as a worker that has other tasks. Returns the CPU time that it took: a thread that is
/// preempted meanwhile has had less.
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
    }

    #[test]
    fn no_messages_have_no_percentile() {
        assert!(message_cost(Vec::new(), Duration::ZERO, Duration::ZERO).get(Figure::P99).is_nan());
    }
}
