//! The report of a run: its figures, its course over time and the agents' parts.

pub(crate) mod merge;
mod text;

use std::ops::Range;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::stats::IntervalStats;
use crate::stats::batch_means::{Estimate, Figure, estimate};
use crate::stats::collector::Measurement;
use crate::stats::timeline::Timeline;

#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Report {
    pub seconds: f64,
    /// Seconds at the beginning that were excluded as warm-up.
    pub left_out: f64,
    /// Requests whose response arrived in the time that counts.
    pub requests: u64,
    pub qps: f64,
    /// Requests per second, with an interval; `None` for a short run.
    pub qps_estimate: Option<Estimate>,
    /// The requested rate; `None` in the closed loop.
    pub asked_qps: Option<f64>,
    /// Latency of all requests, µs. Open loop: from the time at which each was due.
    pub latency: Summary,
    /// Median latency, µs, with an interval; `None` for a short run.
    pub p50_estimate: Option<Estimate>,
    /// 99th percentile of the latency, µs, with an interval; `None` for a short run.
    pub p99_estimate: Option<Estimate>,
    /// Latency of `get` and `mg`, µs.
    pub read: Summary,
    /// Latency of operations that store, µs.
    pub update: Summary,
    /// Latency of the other operations, µs.
    pub other: Summary,
    /// Open loop: time from when a request was sent to its response, µs.
    pub service: Option<Summary>,
    /// Open loop: how late the generator sent requests, µs. Waiting for a busy connection doesn't
    /// count.
    pub send_lag: Option<Summary>,
    /// Time to reconnect, µs; `None` without reconnects.
    pub connect: Option<Summary>,
    /// Requests in flight on a connection, at each request.
    pub op_q: Summary,
    pub hits: u64,
    /// Keys that were not found.
    pub misses: u64,
    /// `cas` requests that failed because the record had changed.
    pub conflicts: u64,
    /// Error responses, warm-up included.
    pub errors: u64,
    /// Values that differed from what was stored, warm-up included.
    pub wrong: u64,
    pub unanswered: u64,
    /// Connections that broke; the others went on.
    pub broken: u64,
    /// Requests that were skipped because their connection was busy (`skip`).
    pub skipped: u64,
    /// Records that were stored after a miss (`fill`).
    pub fills: u64,
    pub rx_bytes: u64,
    pub tx_bytes: u64,
    /// CPU utilization of the generator's threads, 0 to 1, averaged over the threads.
    pub client_busy: f64,
    /// CPU utilization of the busiest of these threads, 0 to 1.
    pub busiest_thread: f64,
    /// CPU time of the generator's threads per request, µs.
    pub client_cpu_us_per_request: f64,
    pub agents: Vec<AgentReport>,
    /// Why the figures are invalid; `None` if they are valid.
    pub invalid: Option<String>,
    /// What to know before trusting the figures.
    pub warnings: Vec<String>,
    /// The run over time.
    pub series: Vec<SeriesPoint>,
    #[serde(skip)]
    pub(super) timeline: Timeline,
    #[serde(skip)]
    pub(super) interval_seconds: f64,
    #[serde(skip)]
    pub(super) intervals: Range<u32>,
}

impl Report {
    /// A quantile of the latency (0.99 is the 99th percentile), µs, with its interval; `None` for a
    /// short run.
    pub fn quantile(&self, share: f64) -> Option<Estimate> {
        estimate(&self.timeline, self.intervals.clone(), self.interval_seconds, Figure::Quantile(share))
    }

    /// Whether requests received errors, wrong values or no response, or connections broke.
    pub fn has_failures(&self) -> bool {
        self.errors + self.wrong + self.unanswered + self.broken > 0
    }
}

/// An interval of a run: a tenth of a second, less in a run below two seconds and more in a run
/// above ten minutes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SeriesPoint {
    /// Start of the interval, in seconds since the start of the measurement.
    pub at: f64,
    pub qps: f64,
    /// Median latency, µs.
    pub p50: f64,
    /// 99th percentile, µs.
    pub p99: f64,
    /// Maximum latency, µs.
    pub max: f64,
    /// Keys that were not found.
    pub misses: u64,
    /// Error responses and wrong values.
    pub errors: u64,
    /// Whether the interval was excluded as warm-up.
    pub left_out: bool,
}

impl SeriesPoint {
    pub(crate) fn new(stats: Option<&IntervalStats>, index: u32, seconds: f64, left_out: bool) -> Self {
        let empty = IntervalStats::default();
        let stats = stats.unwrap_or(&empty);
        let latency = stats.latency();
        let at = |share| latency.value_at_quantile(share) as f64 / 1e3;
        Self {
            at: f64::from(index) * seconds,
            qps: stats.counts.replies as f64 / seconds,
            p50: at(0.5),
            p99: at(0.99),
            max: at(1.0),
            misses: stats.counts.misses,
            errors: stats.counts.errors + stats.counts.wrong,
            left_out,
        }
    }
}

#[derive(Debug)]
pub(crate) struct AgentOutcome {
    pub(crate) agent: String,
    /// The error is the reason why the agent was lost.
    pub(crate) result: Result<Measurement, String>,
}

#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct AgentReport {
    pub agent: String,
    /// Its worker threads; 0 if it was lost.
    pub workers: usize,
    pub requests: u64,
    pub qps: f64,
    /// Median latency, µs.
    pub p50: f64,
    /// 99th percentile, µs.
    pub p99: f64,
    /// Why the agent was lost; `None` if it wasn't.
    pub lost: Option<String>,
}

impl AgentReport {
    pub(crate) fn new(outcome: &AgentOutcome, intervals: Range<u32>, seconds: f64) -> Self {
        let agent = outcome.agent.clone();
        let measurement = match &outcome.result {
            Ok(measurement) => measurement,
            Err(reason) => {
                let lost = Some(reason.clone());
                return Self { agent, workers: 0, requests: 0, qps: 0.0, p50: 0.0, p99: 0.0, lost };
            }
        };
        let timeline = &measurement.timeline;
        let latency = timeline.latency(intervals.clone());
        let intervals = intervals.filter_map(|interval| timeline.interval(interval));
        let requests = intervals.map(|stats| stats.counts.replies).sum::<u64>();
        Self {
            agent,
            workers: measurement.workers,
            requests,
            qps: requests as f64 / seconds.max(f64::MIN_POSITIVE),
            p50: latency.value_at_quantile(0.5) as f64 / 1e3,
            p99: latency.value_at_quantile(0.99) as f64 / 1e3,
            lost: None,
        }
    }
}

/// A distribution in figures. Latencies are in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct Summary {
    pub count: u64,
    pub avg: f64,
    pub std: f64,
    pub min: f64,
    pub p5: f64,
    pub p10: f64,
    pub p50: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    pub max: f64,
}

impl Summary {
    /// `unit` is the number of the histogram's units in one unit of the summary.
    pub(crate) fn new(histogram: &Histogram<u64>, unit: f64) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / unit;
        Self {
            count: histogram.len(),
            avg: histogram.mean() / unit,
            std: histogram.stdev() / unit,
            min: histogram.min() as f64 / unit,
            p5: at(0.05),
            p10: at(0.10),
            p50: at(0.50),
            p90: at(0.90),
            p95: at(0.95),
            p99: at(0.99),
            p999: at(0.999),
            max: histogram.max() as f64 / unit,
        }
    }
}
