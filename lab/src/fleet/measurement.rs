//! What a fleet measures.

use hdrhistogram::Histogram;
use loadgen::stream::Outcome;
use serde::{Deserialize, Serialize};

use super::FleetError;
use super::latency::{FleetLatency, LONGEST, summary};
use super::windows::FleetWindow;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct FleetMeasurement {
    /// Seconds measured, pauses excluded.
    pub seconds: f64,
    /// Requests that were due in that time; in the closed loop, that were sent.
    pub requests: u64,
    /// Replies per second that arrived in that time.
    pub qps: f64,
    /// Replies of the whole run, warm-up and end included.
    pub all_replies: u64,
    /// From the time at which a request was due to its reply; in the closed loop, from its sending.
    pub latency: FleetLatency,
    /// The same as ends of buckets in ns, ascending, with the number of requests in each; 1 %
    /// apart.
    #[serde(default)]
    pub latencies: Vec<(u64, u64)>,
    /// Under an alternating rate, the latency by the time since the last step. Windows after a step
    /// up come first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<FleetWindow>,
    /// From the time at which a request was due to its sending, for requests that found an idle
    /// connection, µs: what the fleet itself added. Empty in the closed loop.
    pub send_lag: FleetLatency,
    /// Pauses of the fleet's own core: something else ran on it, or the hypervisor took it away.
    pub pauses: u64,
    /// Their length, in seconds. What would have been due meanwhile is due later.
    pub paused: f64,
    /// Requests that were in flight when a pause began. Their latencies are not counted.
    pub forgiven: u64,
    pub waited: u64,
    /// Requests without a reply at the end. Their latency counts as the time until then.
    pub unanswered: u64,
    pub errors: u64,
    pub misses: u64,
    /// Packets that the server's queue had no room for, during the whole run.
    pub dropped: u64,
    /// Segments that the fleet sent again, during the whole run.
    pub retransmitted: u64,
    /// Packets that the fleet's own ring had no room for, during the whole run.
    pub ring_drops: u64,
    /// The share of time in which the fleet's thread sent or received, 0 to 1. It never sleeps.
    pub busy: f64,
}

#[derive(Debug)]
pub(super) struct Recorder {
    latencies: Histogram<u64>,
    lags: Histogram<u64>,
    pub(super) replies: u64,
    pub(super) counts: FleetMeasurement,
}

impl Recorder {
    pub(super) fn new() -> Result<Self, FleetError> {
        let histogram = || Histogram::new_with_bounds(1, LONGEST, 3).map_err(|_| FleetError::Histogram);
        Ok(Self {
            latencies: histogram()?,
            lags: histogram()?,
            replies: 0,
            counts: FleetMeasurement::default(),
        })
    }

    pub(super) fn latency(&mut self, nanos: u64) {
        self.latencies.saturating_record(nanos);
    }

    pub(super) fn lag(&mut self, nanos: u64) {
        self.lags.saturating_record(nanos);
    }

    pub(super) fn outcome(&mut self, outcome: Outcome, keys: u16) {
        match outcome {
            Outcome::Values(found) => self.counts.misses += u64::from(keys).saturating_sub(found.into()),
            Outcome::Error => self.counts.errors += 1,
            Outcome::NotDone => self.counts.misses += 1,
            _ => {}
        }
    }

    pub(super) fn latencies(&self) -> FleetLatency {
        summary(&self.latencies)
    }

    /// The latencies by buckets that are 1 % wide.
    pub(super) fn buckets(&self) -> Result<Vec<(u64, u64)>, FleetError> {
        let mut coarse =
            Histogram::<u64>::new_with_bounds(1, LONGEST, 2).map_err(|_| FleetError::Histogram)?;
        for step in self.latencies.iter_recorded() {
            coarse.saturating_record_n(step.value_iterated_to(), step.count_at_value());
        }
        let end = |value| coarse.highest_equivalent(value);
        Ok(coarse
            .iter_recorded()
            .map(|step| (end(step.value_iterated_to()), step.count_at_value()))
            .collect())
    }

    pub(super) fn lags(&self) -> FleetLatency {
        summary(&self.lags)
    }
}
