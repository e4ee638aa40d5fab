//! The report of a run.

use std::ops::Range;

use serde::Serialize;

use crate::report::agent_report::AgentReport;
use crate::report::percentiles::Summary;
use crate::report::series::SeriesPoint;
use crate::stats::batch_means::{Estimate, Figure, estimate};
use crate::stats::timeline::Timeline;

/// The report of a run.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Seconds that count.
    pub seconds: f64,
    /// Seconds at the beginning that were excluded as warm-up.
    pub left_out: f64,
    /// Requests with a response. Open loop: those that were due in the time that counts.
    pub requests: u64,
    /// Requests per second.
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
    /// Open loop: how late the generator sent requests, µs. Waiting for a busy connection doesn't count.
    pub send_lag: Option<Summary>,
    /// With kernel timestamps: time from when the kernel sent a request to when it received the response, µs,
    /// as in a packet capture.
    pub wire: Option<Summary>,
    /// With kernel timestamps: the rest of the service time, µs, which the generator and its kernel take.
    pub client_overhead: Option<Summary>,
    /// Time to reconnect, µs; `None` without reconnects.
    pub connect: Option<Summary>,
    /// Requests in flight on a connection, at each request.
    pub op_q: Summary,
    /// Keys that were found.
    pub hits: u64,
    /// Keys that were not found.
    pub misses: u64,
    /// `cas` requests that failed because the record had changed.
    pub conflicts: u64,
    /// Error responses, warm-up included.
    pub errors: u64,
    /// Values that differed from what was stored, warm-up included.
    pub wrong: u64,
    /// Requests without a response.
    pub unanswered: u64,
    /// Requests that were skipped because their connection was busy (`skip`).
    pub skipped: u64,
    /// Records that were stored after a miss (`fill`).
    pub fills: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// CPU utilization of the generator's threads, 0 to 1, averaged over the threads.
    pub client_busy: f64,
    /// CPU time of the generator's threads per request, µs.
    pub client_cpu_us_per_request: f64,
    /// The agents' parts.
    pub agents: Vec<AgentReport>,
    /// Why the figures are invalid; `None` if they are valid.
    pub invalid: Option<String>,
    /// What to know before trusting the figures.
    pub warnings: Vec<String>,
    /// The run over time.
    pub series: Vec<SeriesPoint>,
    /// The timeline of the latencies.
    #[serde(skip)]
    pub(super) timeline: Timeline,
    #[serde(skip)]
    pub(super) interval_seconds: f64,
    /// The intervals that count.
    #[serde(skip)]
    pub(super) intervals: Range<u32>,
}

impl Report {
    /// A quantile of the latency (0.99 is the 99th percentile), µs, with its interval; `None` for a short run.
    pub fn quantile(&self, share: f64) -> Option<Estimate> {
        estimate(&self.timeline, self.intervals.clone(), self.interval_seconds, Figure::Quantile(share))
    }

    /// Whether requests received errors, wrong values or no response.
    pub fn has_failures(&self) -> bool {
        self.errors + self.wrong + self.unanswered > 0
    }
}
