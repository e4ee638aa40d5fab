//! What a worker counts and times, in its own memory. Other threads read it.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A number that any thread may read.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds without a locked instruction. Only for a counter that one thread writes.
    pub(crate) fn add(&self, amount: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    /// Only for a value that one thread writes.
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn increment(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The first bucket is of times up to 2^8 ns.
const FIRST_EXPONENT: u32 = 8;
/// The last bucket with a bound is of times up to 2^30 ns; one more takes what is longer.
const LAST_EXPONENT: u32 = 30;
const BUCKETS: usize = (LAST_EXPONENT - FIRST_EXPONENT) as usize + 2;

/// Which bucket counts a time: the first whose bound is not below it.
fn bucket_of(nanos: u64) -> usize {
    let exponent = u64::BITS - nanos.saturating_sub(1).leading_zeros();
    (exponent.saturating_sub(FIRST_EXPONENT) as usize).min(BUCKETS - 1)
}

/// What one thread records times in. It costs two additions in memory of that thread, and no locked
/// instruction.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    counts: [Counter; BUCKETS],
    sum: Counter,
}

impl Recorder {
    /// Only for the thread that writes the histogram.
    pub(crate) fn record(&self, nanos: u64) {
        self.counts[bucket_of(nanos)].add(1);
        self.sum.add(nanos);
    }

    pub(crate) fn read(&self) -> Histogram {
        Histogram { counts: array::from_fn(|bucket| self.counts[bucket].get()), sum_ns: self.sum.get() }
    }
}

/// A histogram of times since the worker started. The bounds of its buckets are the powers of two
/// from 256 ns to 1.07 s (2^8 to 2^30 ns); a last bucket counts what took longer.
///
/// It is read while the worker writes it: a time may be counted already and not yet be part of the
/// sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Histogram {
    /// How many times each bucket has counted, in the order of the bounds. The counts are not
    /// cumulative.
    counts: [u64; BUCKETS],
    /// The sum of the times, in nanoseconds.
    sum_ns: u64,
}

impl Histogram {
    /// The buckets from the shortest times to the longest: the longest time that the bucket counts
    /// (`None` for the last, which has no bound), and its count. A time is in one bucket only.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> {
        let bound = |bucket: usize| {
            (bucket + 1 < BUCKETS).then(|| Duration::from_nanos(1 << (FIRST_EXPONENT as usize + bucket)))
        };
        self.counts.into_iter().enumerate().map(move |(bucket, count)| (bound(bucket), count))
    }

    /// How many times were recorded.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of the times.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns)
    }
}

#[derive(Debug, Default)]
pub(crate) struct WorkerCounters {
    pub(crate) turns: Counter,
    pub(crate) polls: Counter,
    pub(crate) alive_tasks: Counter,
    pub(crate) forced_yields: Counter,
    pub(crate) stalls: Counter,
    pub(crate) waits: Counter,
    pub(crate) forced_passes: Counter,
    pub(crate) events: Counter,
    pub(crate) received_bytes: Counter,
    pub(crate) sent_bytes: Counter,
    pub(crate) running_ns: Counter,
    pub(crate) polling_ns: Counter,
    pub(crate) parked_ns: Counter,
    pub(crate) turn_times: Recorder,
    /// `None` unless the application has enabled it, as the next.
    pub(crate) poll_times: Option<Box<Recorder>>,
    pub(crate) schedule_latency: Option<Box<Recorder>>,
}

/// A worker's counters since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Metrics {
    /// Turns of its loop: run tasks, wait, dispatch.
    pub turns: u64,
    /// Polls of tasks, those of the future of `block_on` included.
    pub polls: u64,
    /// Tasks that it has taken in and that have not ended: neither returned, nor panicked, nor been
    /// dropped after an abort. Each `spawn_blocking` is one until its closure has ended, which
    /// tokio doesn't count. Without the future of `block_on`, and without tasks spawned on another thread that wait in its
    /// inbox. 0 after the worker has stopped.
    #[doc(alias = "num_alive_tasks")]
    pub alive_tasks: u64,
    /// Polls that were made to yield, because they had completed 128 operations (receives, sends,
    /// accepts, timers) and asked for more.
    pub forced_yields: u64,
    /// Polls that took longer than [`Builder::stall_threshold`](crate::Builder::stall_threshold).
    pub stalls: u64,
    /// Times that another thread has woken it while it was parked.
    pub wakes: u64,
    /// System calls that wait, poll or submit: `epoll_pwait2` on the instance that the worker waits
    /// in, and `io_uring_enter`. In timed mode also those by which it polls in between, three or
    /// four for each poll.
    pub waits: u64,
    /// Extra poll passes, made because a wait had returned only wake-ups or events of the other
    /// epoll instance, without polling the NAPI.
    pub forced_passes: u64,
    /// Events of descriptors and received buffers that the waits returned.
    pub events: u64,
    /// Bytes that its sockets have received.
    pub received_bytes: u64,
    /// Bytes that its streams have sent: those that the kernel has taken. Without datagrams.
    pub sent_bytes: u64,
    /// Time spent running tasks, in nanoseconds.
    pub running_ns: u64,
    /// Time spent in waits that don't block, in nanoseconds.
    pub polling_ns: u64,
    /// Time spent in waits that may block, in nanoseconds. Under kernel polling this includes the
    /// time in which the kernel polls the queue before it puts the thread to sleep.
    pub parked_ns: u64,
    /// How long turns have run tasks. Turns that had none to run are left out.
    pub turn_times: Histogram,
    /// How long polls of tasks took. `None` unless
    /// [`Builder::enable_metrics_poll_time_histogram`](crate::Builder::enable_metrics_poll_time_histogram)
    /// was called.
    pub poll_times: Option<Histogram>,
    /// How long tasks waited from being spawned or woken to being polled. `None` unless
    /// [`Builder::enable_metrics_schedule_latency_histogram`](crate::Builder::enable_metrics_schedule_latency_histogram)
    /// was called.
    pub schedule_latency: Option<Histogram>,
}

impl Metrics {
    /// [`running_ns`](Self::running_ns) as a duration.
    pub fn running(&self) -> Duration {
        Duration::from_nanos(self.running_ns)
    }

    /// [`polling_ns`](Self::polling_ns) as a duration.
    pub fn polling(&self) -> Duration {
        Duration::from_nanos(self.polling_ns)
    }

    /// [`parked_ns`](Self::parked_ns) as a duration.
    pub fn parked(&self) -> Duration {
        Duration::from_nanos(self.parked_ns)
    }
}

impl WorkerCounters {
    /// Counters, with the histograms that take a reading of the clock at each poll or each wake.
    pub(crate) fn new(poll_times: bool, schedule_latency: bool) -> Self {
        let recorder = |enabled: bool| enabled.then(Box::default);
        Self {
            poll_times: recorder(poll_times),
            schedule_latency: recorder(schedule_latency),
            ..Self::default()
        }
    }

    pub(crate) fn times_polls(&self) -> bool {
        self.poll_times.is_some() || self.schedule_latency.is_some()
    }

    /// Reads the counters; `wakes` is counted by the threads that wake the worker.
    pub(crate) fn read(&self, wakes: u64) -> Metrics {
        Metrics {
            turns: self.turns.get(),
            polls: self.polls.get(),
            alive_tasks: self.alive_tasks.get(),
            forced_yields: self.forced_yields.get(),
            stalls: self.stalls.get(),
            wakes,
            waits: self.waits.get(),
            forced_passes: self.forced_passes.get(),
            events: self.events.get(),
            received_bytes: self.received_bytes.get(),
            sent_bytes: self.sent_bytes.get(),
            running_ns: self.running_ns.get(),
            polling_ns: self.polling_ns.get(),
            parked_ns: self.parked_ns.get(),
            turn_times: self.turn_times.read(),
            poll_times: self.poll_times.as_ref().map(|recorder| recorder.read()),
            schedule_latency: self.schedule_latency.as_ref().map(|recorder| recorder.read()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_first_bucket_whose_bound_it_does_not_exceed() {
        for nanos in [0, 1, 255, 256, 257, 511, 512, 513, 1_000_000, 1 << 30, (1 << 30) + 1, u64::MAX] {
            let recorder = Recorder::default();
            recorder.record(nanos);
            let histogram = recorder.read();
            let expected = histogram
                .buckets()
                .position(|(bound, _)| bound.is_none_or(|bound| u128::from(nanos) <= bound.as_nanos()))
                .unwrap();
            let counted: Vec<usize> = (0..BUCKETS).filter(|&bucket| histogram.counts[bucket] == 1).collect();
            assert_eq!(counted, [expected], "{nanos} ns");
            assert_eq!((histogram.count(), histogram.sum()), (1, Duration::from_nanos(nanos)));
        }
    }

    #[test]
    fn bounds_double_from_256_ns_to_a_second_and_the_last_bucket_has_none() {
        let histogram = Histogram::default();
        let bounds: Vec<_> = histogram.buckets().map(|(bound, _)| bound).collect();
        assert_eq!(bounds.len(), BUCKETS);
        assert_eq!(bounds[0], Some(Duration::from_nanos(256)));
        assert!(bounds.windows(2).all(|pair| match (pair[0], pair[1]) {
            (Some(bound), Some(next)) => next == 2 * bound,
            (Some(bound), None) => bound == Duration::from_nanos(1 << 30),
            (None, _) => false,
        }));
    }
}
