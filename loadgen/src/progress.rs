//! How far a run is, while it runs.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::tally::{Cut, Timeline};

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Time since the start, warm-up included.
    pub elapsed: Duration,
    /// Requests answered so far.
    pub requests: u64,
    /// Requests a second over the last second.
    pub qps: f64,
    /// The median latency of the last second, µs.
    pub p50_us: f64,
    /// The 99th percentile of the last second, µs.
    pub p99_us: f64,
    /// Errors and wrong values so far.
    pub errors: u64,
}

impl Progress {
    pub(crate) fn of(timeline: &Timeline, elapsed: Duration, warm_up: Duration, cut: Cut) -> Self {
        // The newest pieces that are whole, and that all workers have told of.
        let now = elapsed.saturating_sub(warm_up).as_nanos() / cut.piece.as_nanos();
        let end = u32::try_from(now).unwrap_or(u32::MAX).saturating_sub(1).min(cut.pieces);
        let first = end.saturating_sub(10);
        // As they are kept: this is done ten times a second.
        let latency = timeline.latency(first..end);
        let seconds = cut.piece.as_secs_f64() * f64::from(end - first);
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
