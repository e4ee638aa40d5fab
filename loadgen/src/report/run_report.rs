//! The report of a run.

use std::ops::Range;
use std::time::Duration;

use serde::Serialize;

use crate::config::{Config, Loop};
use crate::report::agent_report::{AgentOutcome, AgentReport};
use crate::report::series::SeriesPoint;
use crate::report::summary::Summary;
use crate::report::validity;
use crate::stats::batch_means::{Estimate, Figure, estimate};
use crate::stats::interval_stats::IntervalStats;
use crate::stats::measurement::Measurement;
use crate::stats::metrics::{Metric, RequestClass};
use crate::stats::slicing::Slicing;
use crate::stats::timeline::Timeline;
use crate::stats::warm_up::first_counted_interval;

/// The report of a run.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Seconds that count.
    pub seconds: f64,
    /// Seconds at the beginning that were excluded as warm-up.
    pub left_out: f64,
    /// Requests with a response. Open loop: those that were due in the time that counts.
    pub requests: u64,
    /// Requests per second.
    pub qps: f64,
    /// Requests per second, with an interval; `None` for a short run.
    pub qps_estimate: Option<Estimate>,
    /// The requested rate; `None` in the closed loop.
    pub asked_qps: Option<f64>,
    /// Latency of all requests, µs. Open loop: from the time at which each was due.
    pub latency: Summary,
    /// Median latency, µs, with an interval; `None` for a short run.
    pub p50_estimate: Option<Estimate>,
    /// 99th percentile of the latency, µs, with an interval; `None` for a short run.
    pub p99_estimate: Option<Estimate>,
    /// Latency of `get` and `mg`, µs.
    pub read: Summary,
    /// Latency of operations that store, µs.
    pub update: Summary,
    /// Latency of the other operations, µs.
    pub other: Summary,
    /// Open loop: time from when a request was sent to its response, µs.
    pub service: Option<Summary>,
    /// Open loop: how late the generator sent requests, µs. Waiting for a busy connection doesn't count.
    pub send_lag: Option<Summary>,
    /// With kernel timestamps: time from when the kernel sent a request to when it received the response, µs,
    /// as in a packet capture.
    pub wire: Option<Summary>,
    /// With kernel timestamps: the rest of the service time, µs, which the generator and its kernel take.
    pub client_overhead: Option<Summary>,
    /// Time to reconnect, µs; `None` without reconnects.
    pub connect: Option<Summary>,
    /// Requests in flight on a connection, at each request.
    pub op_q: Summary,
    /// Keys that were found.
    pub hits: u64,
    /// Keys that were not found.
    pub misses: u64,
    /// `cas` requests that failed because the record had changed.
    pub conflicts: u64,
    /// Error responses, warm-up included.
    pub errors: u64,
    /// Values that differed from what was stored, warm-up included.
    pub wrong: u64,
    /// Requests without a response.
    pub unanswered: u64,
    /// Requests that were skipped because their connection was busy (`skip`).
    pub skipped: u64,
    /// Records that were stored after a miss (`fill`).
    pub fills: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// CPU utilization of the generator's threads, 0 to 1, averaged over the threads.
    pub client_busy: f64,
    /// CPU time of the generator's threads per request, µs.
    pub client_cpu_us_per_request: f64,
    /// The agents' parts.
    pub agents: Vec<AgentReport>,
    /// Why the figures are invalid; `None` if they are valid.
    pub invalid: Option<String>,
    /// What to know before trusting the figures.
    pub warnings: Vec<String>,
    /// The run over time.
    pub series: Vec<SeriesPoint>,
    /// The timeline of the latencies.
    #[serde(skip)]
    pub(super) timeline: Timeline,
    #[serde(skip)]
    interval_seconds: f64,
    /// The intervals that count.
    #[serde(skip)]
    pub(super) intervals: Range<u32>,
}

impl Report {
    /// Merges the coordinator's measurement with those of the agents. If measurement overrides are set,
    /// latencies are the coordinator's only, and everything else covers all generators.
    pub(crate) fn new(config: &Config, local: Measurement, outcomes: Vec<AgentOutcome>) -> Self {
        let overrides = &config.measurement_overrides;
        let local_latency = overrides.is_any() && !outcomes.is_empty();
        let remote = || measurements(&outcomes);
        let (end, recording_length) = span(&measurements(&outcomes).chain([&local]).collect::<Vec<_>>());
        let Measurement { workers, timeline: mine, slicing: Slicing { interval, .. }, .. } = local;
        let merged = (!outcomes.is_empty()).then(|| {
            let mut all = mine.clone();
            remote().for_each(|measurement| all.merge(measurement.timeline.clone()));
            all
        });
        let everyone = merged.as_ref().unwrap_or(&mine);
        let workers =
            if local_latency { workers } else { workers + remote().map(|it| it.workers).sum::<usize>() };
        let timeline = if local_latency { &mine } else { everyone };
        let intervals = first_counted_interval(config, timeline, end)..end;
        let interval_seconds = interval.as_secs_f64();
        let until = recording_length.map_or(interval_seconds * f64::from(end), |length| length.as_secs_f64());
        let seconds = (until - interval_seconds * f64::from(intervals.start)).max(0.0);
        let total = timeline.total(intervals.clone());
        let histogram = total.latency();
        let cpu = total.counts.cpu as f64 / 1e9;
        let cpu_requests = histogram.len().saturating_sub(total.counts.unanswered);
        let total_of_all = local_latency.then(|| everyone.total(intervals.clone()));
        let counts = total_of_all.as_ref().unwrap_or(&total).counts;
        let recorded = total_of_all.as_ref().map_or(histogram.len(), |total| total.latency().len());
        let requests = recorded.saturating_sub(counts.unanswered);
        let per_second = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
        let if_any = |metric| {
            let histogram = total.histogram(metric);
            (!histogram.is_empty()).then(|| Summary::new(histogram, 1e3))
        };
        let if_open = |metric| {
            let any = if_any(metric);
            any.or_else(|| (!config.pacing.is_closed()).then(|| Summary::new(total.histogram(metric), 1e3)))
        };
        let of_class = |class| Summary::new(total.histogram(Metric::Latency(class)), 1e3);
        let rate = estimate(everyone, intervals.clone(), interval_seconds, Figure::Rate);
        let estimate = |figure| estimate(timeline, intervals.clone(), interval_seconds, figure);
        let agents =
            outcomes.iter().map(|outcome| AgentReport::new(outcome, intervals.clone(), seconds)).collect();
        let mut report = Self {
            seconds,
            left_out: interval_seconds * f64::from(intervals.start),
            requests,
            qps: per_second(requests as f64),
            qps_estimate: rate,
            asked_qps: match config.pacing {
                // A coordinator in the closed loop adds as many requests as it can.
                Loop::Open { .. } if local_latency && overrides.rate == Some(0.0) => None,
                Loop::Open { rate, .. } => {
                    Some(rate + overrides.rate.filter(|_| local_latency).unwrap_or(0.0))
                }
                _ => None,
            },
            latency: Summary::new(&histogram, 1e3),
            p50_estimate: estimate(Figure::Quantile(0.5)),
            p99_estimate: estimate(Figure::Quantile(0.99)),
            read: of_class(RequestClass::Read),
            update: of_class(RequestClass::Update),
            other: of_class(RequestClass::Other),
            service: if_open(Metric::Service),
            send_lag: if_open(Metric::SendLag),
            wire: if_any(Metric::Wire),
            client_overhead: if_any(Metric::ClientOverhead),
            connect: if_any(Metric::Connect),
            op_q: Summary::new(total.histogram(Metric::Queue), 1.0),
            hits: counts.hits,
            misses: counts.misses,
            conflicts: counts.conflicts,
            errors: everyone.errors(),
            wrong: everyone.wrong(),
            unanswered: counts.unanswered,
            skipped: counts.skipped,
            fills: counts.fills,
            rx_bytes: counts.received,
            tx_bytes: counts.sent,
            client_busy: per_second(cpu) / workers as f64,
            client_cpu_us_per_request: if cpu_requests == 0 { 0.0 } else { cpu * 1e6 / cpu_requests as f64 },
            agents,
            invalid: None,
            warnings: Vec::new(),
            series: (0..intervals.end)
                .map(|index| {
                    let answered = everyone.interval(index).map_or(0, IntervalStats::answered);
                    let left_out = index < intervals.start;
                    let stats = timeline.interval(index);
                    SeriesPoint {
                        qps: answered as f64 / interval_seconds,
                        ..SeriesPoint::new(stats, index, interval_seconds, left_out)
                    }
                })
                .collect(),
            interval_seconds,
            intervals,
            timeline: if local_latency { mine } else { merged.unwrap_or(mine) },
        };
        report.invalid = validity::invalid_reason(&report, config);
        report.warnings = validity::warnings(&report, config);
        report
    }

    /// A quantile of the latency (0.99 is the 99th percentile), µs, with its interval; `None` for a short run.
    pub fn quantile(&self, share: f64) -> Option<Estimate> {
        estimate(&self.timeline, self.intervals.clone(), self.interval_seconds, Figure::Quantile(share))
    }

    /// Whether requests received errors, wrong values or no response.
    pub fn has_failures(&self) -> bool {
        self.errors + self.wrong + self.unanswered > 0
    }
}

/// The measurements of the agents that were not lost.
fn measurements(outcomes: &[AgentOutcome]) -> impl Iterator<Item = &Measurement> {
    outcomes.iter().filter_map(|outcome| outcome.result.as_ref().ok())
}

/// The number of intervals that count, and the duration if recordings ended before the measurement. A stopped
/// run is as long as its shortest part, recordings are as long as the longest one.
fn span(all: &[&Measurement]) -> (u32, Option<Duration>) {
    let stopped = all.iter().filter(|part| part.stopped).map(|part| part.intervals).min();
    let longest = all.iter().map(|part| part.intervals).max();
    let lengths: Option<Vec<Duration>> = all.iter().map(|part| part.recording_length).collect();
    let length = lengths.filter(|_| stopped.is_none()).and_then(|all| all.into_iter().max());
    (stopped.or(longest).unwrap_or(0), length)
}
