//! The progress of a run.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::stats::slicing::Slicing;
use crate::stats::timeline::Timeline;

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Progress {
    /// Time since the start, warm-up included.
    pub elapsed: Duration,
    pub requests: u64,
    /// Requests per second, over the last second.
    pub qps: f64,
    /// Median latency of the last second, µs.
    pub p50_us: f64,
    /// 99th percentile of the last second, µs.
    pub p99_us: f64,
    /// Error responses and wrong values so far.
    pub errors: u64,
}

impl Progress {
    pub(crate) fn new(timeline: &Timeline, elapsed: Duration, warm_up: Duration, slicing: Slicing) -> Self {
        // Up to the newest interval that is complete and that all workers have handed over.
        let now = elapsed.saturating_sub(warm_up).as_nanos() / slicing.interval.as_nanos();
        let end = u32::try_from(now).unwrap_or(u32::MAX).saturating_sub(1).min(slicing.count);
        let first = end.saturating_sub(10);
        // Runs ten times per second, so avoid full histograms.
        let latency = timeline.latency(first..end);
        let seconds = slicing.interval.as_secs_f64() * f64::from(end - first);
        Self {
            elapsed,
            requests: timeline.requests(),
            qps: if seconds > 0.0 { latency.count() as f64 / seconds } else { 0.0 },
            p50_us: latency.quantile(0.5) as f64 / 1e3,
            p99_us: latency.quantile(0.99) as f64 / 1e3,
            errors: timeline.errors() + timeline.wrong(),
        }
    }
}
