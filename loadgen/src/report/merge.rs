//! Merges the measurements of a run into its report.

use crate::config::{Config, Loop};
use crate::report::run_report::{AgentOutcome, AgentReport, Report, SeriesPoint};
use crate::report::summary::Summary;
use crate::report::validity;
use crate::stats::batch_means::{Figure, estimate};
use crate::stats::collector::Measurement;
use crate::stats::metrics::{Metric, RequestClass};
use crate::stats::slicing::Slicing;
use crate::stats::warm_up::first_counted_interval;

impl Report {
    /// Merges the coordinator's measurement with those of the agents. If measurement overrides are
    /// set, latencies are the coordinator's only, and everything else covers all generators.
    pub(crate) fn new(config: &Config, local: Measurement, outcomes: Vec<AgentOutcome>) -> Self {
        let overrides = &config.measurement_overrides;
        let local_latency = overrides.is_any() && !outcomes.is_empty();
        let remote = || measurements(&outcomes);
        let end = counted_intervals(&measurements(&outcomes).chain([&local]).collect::<Vec<_>>());
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
        let seconds = interval_seconds * f64::from(end.saturating_sub(intervals.start));
        let total = timeline.total(intervals.clone());
        let histogram = total.latency();
        let cpu = total.counts.cpu as f64 / 1e9;
        let cpu_requests = total.counts.replies;
        let total_of_all = local_latency.then(|| everyone.total(intervals.clone()));
        let counts = total_of_all.as_ref().unwrap_or(&total).counts;
        let requests = counts.replies;
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
                    let replies = everyone.interval(index).map_or(0, |stats| stats.counts.replies);
                    let left_out = index < intervals.start;
                    let stats = timeline.interval(index);
                    SeriesPoint {
                        qps: replies as f64 / interval_seconds,
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
}

fn measurements(outcomes: &[AgentOutcome]) -> impl Iterator<Item = &Measurement> {
    outcomes.iter().filter_map(|outcome| outcome.result.as_ref().ok())
}

/// The number of intervals that count. A stopped run is as long as its shortest part.
fn counted_intervals(all: &[&Measurement]) -> u32 {
    let stopped = all.iter().filter(|part| part.stopped).map(|part| part.intervals).min();
    stopped.or_else(|| all.iter().map(|part| part.intervals).max()).unwrap_or(0)
}
