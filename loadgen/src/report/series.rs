//! A run over time.

use serde::Serialize;

use crate::stats::interval_stats::IntervalStats;

/// An interval of a run: a tenth of a second, less in a run below two seconds and more in a run above ten
/// minutes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SeriesPoint {
    /// Start of the interval, in seconds since the start of the measurement.
    pub at: f64,
    /// Requests per second.
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
        let at = |share| latency.quantile(share) as f64 / 1e3;
        Self {
            at: f64::from(index) * seconds,
            qps: stats.answered() as f64 / seconds,
            p50: at(0.5),
            p99: at(0.99),
            max: at(1.0),
            misses: stats.counts.misses,
            errors: stats.counts.errors + stats.counts.wrong,
            left_out,
        }
    }
}
