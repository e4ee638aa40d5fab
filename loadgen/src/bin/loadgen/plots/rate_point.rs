//! A point of the latency-over-rate curve.

/// A rate with its latencies, µs.
#[derive(Debug, Clone, Copy)]
pub struct RatePoint {
    pub qps: f64,
    pub p50: f64,
    pub p99: f64,
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Five points with increasing rate and latency.
    pub fn points() -> Vec<RatePoint> {
        (1..6)
            .map(|step| RatePoint { qps: f64::from(step) * 1000.0, p50: 50.0, p99: 70.0 * f64::from(step) })
            .collect()
    }
}
