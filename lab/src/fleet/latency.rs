//! Latencies, summarised.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest latency that is told from longer ones, in ns: one minute.
pub(super) const LONGEST: u64 = 60_000_000_000;

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct FleetLatency {
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
}

pub(super) fn summary(histogram: &Histogram<u64>) -> FleetLatency {
    let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e3;
    FleetLatency { mean: histogram.mean() / 1e3, p50: at(0.5), p90: at(0.9), p99: at(0.99) }
}
