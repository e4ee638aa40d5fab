//! An agent's part of a run.

use std::ops::Range;

use serde::Serialize;

use crate::stats::interval_stats::IntervalStats;
use crate::stats::measurement::Measurement;

/// The result of an agent's run.
#[derive(Debug)]
pub(crate) struct AgentOutcome {
    pub(crate) agent: String,
    /// The error is the reason why the agent was lost.
    pub(crate) result: Result<Measurement, String>,
}

/// An agent's part of a run.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct AgentReport {
    /// The agent's name.
    pub agent: String,
    /// Its worker threads; 0 if it was lost.
    pub workers: usize,
    /// Requests with a response.
    pub requests: u64,
    /// Requests per second.
    pub qps: f64,
    /// Median latency, µs.
    pub p50: f64,
    /// 99th percentile, µs.
    pub p99: f64,
    /// Why the agent was lost; `None` if it wasn't.
    pub lost: Option<String>,
}

impl AgentReport {
    pub(crate) fn new(outcome: &AgentOutcome, intervals: Range<u32>, seconds: f64) -> Self {
        let agent = outcome.agent.clone();
        let measurement = match &outcome.result {
            Ok(measurement) => measurement,
            Err(reason) => {
                let lost = Some(reason.clone());
                return Self { agent, workers: 0, requests: 0, qps: 0.0, p50: 0.0, p99: 0.0, lost };
            }
        };
        let timeline = &measurement.timeline;
        let latency = timeline.latency(intervals.clone());
        let answered = intervals.filter_map(|interval| timeline.interval(interval));
        let requests = answered.map(IntervalStats::answered).sum::<u64>();
        Self {
            agent,
            workers: measurement.workers,
            requests,
            qps: requests as f64 / seconds.max(f64::MIN_POSITIVE),
            p50: latency.quantile(0.5) as f64 / 1e3,
            p99: latency.quantile(0.99) as f64 / 1e3,
            lost: None,
        }
    }
}
