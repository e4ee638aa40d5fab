//! The paper's performance model.

use std::time::Duration;

use serde::Serialize;

use super::perf::PerfReading;

/// The performance model of Cai and Karsten (2023), section 3.1: `QPT = CPT × IPC / IPQ`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PerformanceModel {
    /// Queries per second.
    pub qpt: f64,
    /// Cycles per second; `None` on a machine without performance counters.
    pub cpt: Option<f64>,
    /// Instructions per query.
    pub ipq: Option<f64>,
    /// Instructions per cycle.
    pub ipc: Option<f64>,
}

impl PerformanceModel {
    /// Computes the model of a run.
    pub fn new(queries: u64, elapsed: Duration, perf: Option<PerfReading>) -> Self {
        let seconds = elapsed.as_secs_f64();
        Self {
            qpt: queries as f64 / seconds,
            cpt: perf.map(|perf| perf.cycles as f64 / seconds),
            ipq: perf.map(|perf| perf.instructions as f64 / queries as f64),
            ipc: perf.map(|perf| perf.instructions as f64 / perf.cycles as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_consistent_with_its_equation() {
        let perf = PerfReading { cycles: 3_000_000, instructions: 1_500_000, cache_misses: None };
        let model = PerformanceModel::new(1000, Duration::from_millis(10), Some(perf));
        let right = model.cpt.unwrap() * model.ipc.unwrap() / model.ipq.unwrap();
        assert!((model.qpt - right).abs() / model.qpt < 1e-9);
        assert_eq!(PerformanceModel::new(1, Duration::from_secs(1), None).ipc, None);
    }
}
