//! What a fleet measures, and how it is recorded.

use hdrhistogram::Histogram;
use loadgen::stream::Response;
use serde::{Deserialize, Serialize};

/// The longest latency that is recorded as it is, in ns: one minute.
const LONGEST: u64 = 60_000_000_000;

/// A distribution of latencies, µs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct FleetLatency {
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

impl FleetLatency {
    pub(super) fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Self { p50: at(0.5), p99: at(0.99), max: at(1.0) }
    }
}

/// `digits`: how many of a latency are kept.
fn histogram(digits: u8) -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST, digits).expect("valid bounds")
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct FleetMeasurement {
    /// Seconds measured, pauses excluded.
    pub seconds: f64,
    /// Requests that were due in that time; in the closed loop, that were sent.
    pub requests: u64,
    /// Replies per second that arrived in that time.
    pub qps: f64,
    /// Replies of the whole run, warm-up and end included.
    pub all_replies: u64,
    /// From the time at which a request was due to its reply; in the closed loop, from its sending.
    pub latency: FleetLatency,
    /// The same as ends of buckets in ns, ascending, with the number of requests in each; 1 %
    /// apart.
    #[serde(default)]
    pub latencies: Vec<(u64, u64)>,
    /// From the time at which a request was due to its sending, for requests that found an idle
    /// connection, µs: what the fleet itself added. Empty in the closed loop.
    pub send_lag: FleetLatency,
    /// Pauses of the fleet's own core: something else ran on it, or the hypervisor took it away.
    pub pauses: u64,
    /// Their length, in seconds. What would have been due meanwhile is due later.
    pub paused: f64,
    /// Requests that were in flight when a pause began. Their latencies are not counted.
    pub forgiven: u64,
    /// Requests without a reply at the end. Their latency counts as the time until then.
    pub unanswered: u64,
    pub errors: u64,
    pub misses: u64,
    /// During the whole run: packets that the server's queue had no room for, segments that the
    /// fleet sent again, and packets that its own ring had no room for.
    pub dropped: u64,
    pub retransmitted: u64,
    pub ring_drops: u64,
    /// The share of time in which the fleet's thread sent or received, 0 to 1. It never sleeps.
    pub busy: f64,
}

impl FleetMeasurement {
    /// What fleets measured together, at the same time. Of their delays and pauses the longest count.
    pub(crate) fn together(all: Vec<Self>) -> Self {
        let mut all = all.into_iter();
        let Some(mut sum) = all.next() else { return Self::default() };
        for one in all {
            sum.requests += one.requests;
            sum.qps += one.qps;
            sum.all_replies += one.all_replies;
            sum.latencies.extend(one.latencies);
            sum.seconds = sum.seconds.min(one.seconds);
            sum.pauses += one.pauses;
            sum.paused = sum.paused.max(one.paused);
            sum.forgiven += one.forgiven;
            sum.unanswered += one.unanswered;
            sum.errors += one.errors;
            sum.misses += one.misses;
            sum.dropped += one.dropped;
            sum.retransmitted += one.retransmitted;
            sum.ring_drops += one.ring_drops;
            sum.busy = sum.busy.max(one.busy);
            if one.send_lag.p99 > sum.send_lag.p99 {
                sum.send_lag = one.send_lag;
            }
            let mut latencies = histogram(2);
            sum.latencies.iter().for_each(|&(nanos, count)| latencies.saturating_record_n(nanos, count));
            sum.latency = FleetLatency::of(&latencies);
        }
        sum.latencies.sort_unstable();
        sum
    }
}

#[derive(Debug)]
pub(super) struct Recorder {
    pub(super) latencies: Histogram<u64>,
    pub(super) lags: Histogram<u64>,
    pub(super) replies: u64,
    pub(super) counts: FleetMeasurement,
}

impl Recorder {
    pub(super) fn new() -> Self {
        let (latencies, lags) = (histogram(3), histogram(3));
        Self { latencies, lags, replies: 0, counts: FleetMeasurement::default() }
    }

    pub(super) fn outcome(&mut self, outcome: Response, keys: u16) {
        match outcome {
            Response::Values(found) => self.counts.misses += u64::from(keys).saturating_sub(found.into()),
            Response::Error => self.counts.errors += 1,
            Response::NotFound | Response::Exists | Response::NotStored => self.counts.misses += 1,
            _ => {}
        }
    }

    /// The latencies by buckets that are 1 % wide.
    pub(super) fn buckets(&self) -> Vec<(u64, u64)> {
        let mut coarse = histogram(2);
        for step in self.latencies.iter_recorded() {
            coarse.saturating_record_n(step.value_iterated_to(), step.count_at_value());
        }
        let end = |value| coarse.highest_equivalent(value);
        coarse.iter_recorded().map(|step| (end(step.value_iterated_to()), step.count_at_value())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fleets_together_have_the_latencies_of_all_and_the_longest_pause() {
        let one = |latency: u64, count: usize, paused: f64| {
            let mut recorder = Recorder::new();
            (0..count).for_each(|_| recorder.latencies.saturating_record(latency));
            let (latencies, latency) = (recorder.buckets(), FleetLatency::of(&recorder.latencies));
            FleetMeasurement { latencies, latency, paused, qps: count as f64, ..FleetMeasurement::default() }
        };
        let alone = one(10_000, 100, 0.1);
        assert_eq!(FleetMeasurement::together(vec![alone.clone()]).latency, alone.latency);
        let both = FleetMeasurement::together(vec![alone, one(50_000, 10, 0.3)]);
        assert!((both.latency.p50 / 10.0 - 1.0).abs() < 0.01 && (both.latency.p99 / 50.0 - 1.0).abs() < 0.01);
        assert_eq!((both.qps, both.paused), (110.0, 0.3));
        assert!(both.latencies.is_sorted(), "{:?}", both.latencies);
    }
}
