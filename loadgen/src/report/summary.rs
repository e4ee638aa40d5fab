//! A distribution in figures.

use hdrhistogram::Histogram;
use serde::Serialize;

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
        let empty = histogram.is_empty();
        let unless_empty = |value: f64| if empty { 0.0 } else { value / unit };
        Self {
            count: histogram.len(),
            avg: unless_empty(histogram.mean()),
            std: unless_empty(histogram.stdev()),
            min: unless_empty(histogram.min() as f64),
            p5: at(0.05),
            p10: at(0.10),
            p50: at(0.50),
            p90: at(0.90),
            p95: at(0.95),
            p99: at(0.99),
            p999: at(0.999),
            max: unless_empty(histogram.max() as f64),
        }
    }

    /// The figures in mutilate's order, followed by those that mutilate doesn't have.
    pub(crate) fn figures(&self) -> [f64; 11] {
        let Self { avg, std, min, p5, p10, p50, p90, p95, p99, p999, max, .. } = *self;
        [avg, std, min, p5, p10, p90, p95, p99, p50, p999, max]
    }
}
