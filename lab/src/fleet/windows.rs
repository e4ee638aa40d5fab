//! Latencies by the time since the load's last step.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::FleetError;
use super::alternating_rate::{AlternatingRate, Step};
use super::latency::{FleetLatency, LONGEST, summary};

/// Latencies of the requests that were due in one window after a step, of all cycles of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FleetWindow {
    /// Whether the load's last step before the window was up or down.
    pub step: Step,
    /// Seconds from the step to the begin of the window.
    pub from: f64,
    pub requests: u64,
    /// Latencies of these requests, from the time at which each was due to its reply, µs.
    pub latency: FleetLatency,
}

#[derive(Debug)]
pub(super) struct WindowRecorder {
    rate: AlternatingRate,
    /// Those after a step up first.
    latencies: Vec<Histogram<u64>>,
}

impl WindowRecorder {
    pub(super) fn new(rate: AlternatingRate) -> Result<Self, FleetError> {
        let count = rate.windows_after(Step::Up) + rate.windows_after(Step::Down);
        // Two digits: there are many, and their memory is touched while the fleet measures.
        let histogram = |_| Histogram::new_with_bounds(1, LONGEST, 2).map_err(|_| FleetError::Histogram);
        Ok(Self { rate, latencies: (0..count).map(histogram).collect::<Result<_, _>>()? })
    }

    /// Records the latency of a request that was due `at`, in ns from the begin of the measurement
    /// on.
    #[inline]
    pub(super) fn record(&mut self, at: i64, nanos: u64) {
        let window = self.rate.window(at);
        self.latencies[window].saturating_record(nanos);
    }

    pub(super) fn windows(&self) -> Vec<FleetWindow> {
        let high = self.rate.windows_after(Step::Up);
        let window = |(index, histogram): (usize, &Histogram<u64>)| {
            let (step, index) =
                index.checked_sub(high).map_or((Step::Up, index), |index| (Step::Down, index));
            FleetWindow {
                step,
                from: index as f64 * self.rate.window_seconds,
                requests: histogram.len(),
                latency: summary(histogram),
            }
        };
        self.latencies.iter().enumerate().map(window).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_counts_in_the_window_in_which_its_request_was_due() {
        let rate = AlternatingRate {
            high: 1000.0,
            low: 10.0,
            high_seconds: 0.02,
            low_seconds: 0.01,
            window_seconds: 0.01,
        };
        let mut recorder = WindowRecorder::new(rate).unwrap();
        for (at_ms, latency) in [(0, 1000), (30, 3000), (19, 5000), (25, 7000)] {
            recorder.record(at_ms * 1_000_000, latency);
        }
        let windows = recorder.windows();
        let seen: Vec<(Step, f64, u64)> =
            windows.iter().map(|window| (window.step, window.from, window.requests)).collect();
        assert_eq!(seen, [(Step::Up, 0.0, 2), (Step::Up, 0.01, 1), (Step::Down, 0.0, 1)]);
        assert!((windows[2].latency.p50 - 7.0).abs() < 0.1, "{windows:?}");
    }
}
