//! Merges the measurements of a run into its report, and judges whether its figures are valid.

use crate::config::{Config, Loop, WarmUp};
use crate::error::Error;
use crate::report::{AgentOutcome, AgentReport, Report, SeriesPoint, Summary};
use crate::stats::batch_means::{Figure, estimate};
use crate::stats::collector::Measurement;
use crate::stats::warm_up::first_counted_interval;
use crate::stats::{Metric, Slicing};

impl Report {
    /// As [`new`](Self::new), on another thread: thousands of intervals take a worker too long.
    pub(crate) async fn compute(
        config: &Config,
        local: Measurement,
        outcomes: Vec<AgentOutcome>,
    ) -> Result<Self, Error> {
        let config = config.clone();
        Ok(runtime::spawn_blocking(move || Self::new(&config, local, outcomes)).await?)
    }

    /// Merges the coordinator's measurement with those of the agents. If measurement overrides are
    /// set, latencies are the coordinator's only, and everything else covers all generators.
    fn new(config: &Config, local: Measurement, outcomes: Vec<AgentOutcome>) -> Self {
        let overrides = &config.measurement_overrides;
        let local_latency = overrides.is_any() && !outcomes.is_empty();
        let remote = || measurements(&outcomes);
        let end = counted_intervals(&measurements(&outcomes).chain([&local]).collect::<Vec<_>>());
        let busiest = remote().map(|it| it.busiest).fold(local.busiest, f64::max);
        let first_broken = local.broken.clone().or_else(|| remote().find_map(|it| it.broken.clone()));
        let Measurement { workers, timeline: mine, slicing: Slicing { interval, .. }, .. } = local;
        let local_workers = workers;
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
        let of_class = |class| Summary::new(total.histogram(class), 1e3);
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
            read: of_class(Metric::Read),
            update: of_class(Metric::Update),
            other: of_class(Metric::Other),
            service: if_open(Metric::Service),
            send_lag: if_open(Metric::SendLag),
            connect: if_any(Metric::Connect),
            op_q: Summary::new(total.histogram(Metric::Queue), 1.0),
            hits: counts.hits,
            misses: counts.misses,
            conflicts: counts.conflicts,
            errors: everyone.errors,
            wrong: everyone.wrong,
            unanswered: counts.unanswered,
            broken: everyone.broken,
            skipped: counts.skipped,
            fills: counts.fills,
            rx_bytes: counts.received,
            tx_bytes: counts.sent,
            client_busy: per_second(cpu) / workers as f64,
            busiest_thread: busiest,
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
        report.invalid = invalid_reason(&report, config);
        report.warnings = warnings(&report, config);
        if let Some(first) = first_broken {
            let broken = report.broken;
            report.warnings.push(format!(
                "{broken} connections broke, and the others went on; the first one to {first}"
            ));
        }
        let cores = std::thread::available_parallelism().map_or(usize::MAX, usize::from);
        if local_workers > cores {
            let problem = format!("{local_workers} threads of the generator share {cores} cores");
            report.warnings.push(format!("{problem}: their delays are part of the latencies"));
        }
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

/// Above this CPU utilization the generator limits an open loop, and the run is invalid.
const SATURATED: f64 = 0.97;
/// Above this CPU utilization the generator may limit the run.
const NEARLY_SATURATED: f64 = 0.9;
/// From this share of the service time on the generator's own delays are part of what is measured.
const NOTICEABLE_SEND_LAG: f64 = 0.2;
/// Beyond these shares, of the median and of the 99th percentile, they are what is measured.
const LARGEST_SEND_LAGS: [f64; 2] = [NOTICEABLE_SEND_LAG, 1.0];
/// The largest relative deviation from the requested rate.
const RATE_TOLERANCE: f64 = 0.01;

/// The deviation of a rate that chance explains: three standard deviations of a Poisson process.
pub(crate) fn random_deviation(rate: f64, seconds: f64) -> f64 {
    3.0 * (rate / seconds.max(f64::MIN_POSITIVE)).sqrt()
}

/// Why the figures are invalid, if they are.
pub(super) fn invalid_reason(report: &Report, config: &Config) -> Option<String> {
    if report.requests == 0 {
        return Some("the measurement contains no responses".to_owned());
    }
    if let Some((agent, reason)) = report.agents.iter().find_map(|it| Some((&it.agent, it.lost.as_ref()?))) {
        return Some(format!(
            "agent {agent} was lost ({reason}): the load was lower than requested, and the agent's results are missing"
        ));
    }
    if report.asked_qps.is_some() && !config.workers_spin && report.busiest_thread > SATURATED {
        return Some(format!(
            "a thread of the generator was {:.0} % busy, which delayed requests by an unknown time; use more \
             threads or a lower rate",
            report.busiest_thread * 100.0
        ));
    }
    late_by(report, LARGEST_SEND_LAGS)
}

/// What to say if the median or the 99th percentile of the generator's delays is more than these
/// shares of the service time.
fn late_by(report: &Report, shares: [f64; 2]) -> Option<String> {
    let (send_lag, service) = (report.send_lag?, report.service?);
    let percentiles = [("median", send_lag.p50, service.p50), ("99th percentile", send_lag.p99, service.p99)];
    let late = |((_, send_lag, service), share): &((_, f64, f64), f64)| *send_lag > service * share;
    let ((which, send_lag, service), _) = percentiles.into_iter().zip(shares).find(late)?;
    Some(format!(
        "the generator itself was late by {send_lag:.0} µs ({which}), {:.0} % of the server's service time \
         ({service:.0} µs): let its threads keep their cores awake (--wait spin), or use more of them",
        send_lag / service * 100.0
    ))
}

/// What to know before trusting the figures.
pub(super) fn warnings(report: &Report, config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    let per_second = |count: u64| count as f64 / report.seconds.max(f64::MIN_POSITIVE);
    // Fills are sent in addition to the requested rate.
    let offered = report.qps + per_second(report.skipped) - per_second(report.fills);
    let kept =
        |asked: f64| offered >= asked * (1.0 - RATE_TOLERANCE) - random_deviation(asked, report.seconds);
    if let Some(asked) = report.asked_qps.filter(|asked| !kept(*asked)) {
        warnings.push(format!("the rate was {:.0}/s instead of the requested {asked:.0}/s", report.qps));
    }
    if report.busiest_thread > NEARLY_SATURATED && !config.workers_spin {
        warnings.push(format!(
            "a thread of the generator was {:.0} % busy: the client may be the bottleneck, not the server",
            report.busiest_thread * 100.0
        ));
    }
    let late = late_by(report, [NOTICEABLE_SEND_LAG; 2]);
    warnings.extend(late.filter(|_| report.invalid.is_none()));
    let unsteady = report.left_out >= report.seconds * 0.9 && report.left_out > 0.0;
    if config.warm_up == WarmUp::UntilSteady && unsteady {
        warnings.push("the run was not steady for half of its time: measure longer".to_owned());
    }
    let mut count = |number: u64, what: &str| {
        if number > 0 {
            warnings.push(format!("{number} {what}"));
        }
    };
    count(report.errors, "requests received an error response");
    count(report.wrong, "values differed from what was stored");
    count(report.unanswered, "requests received no response");
    warnings
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::config::Loop;
    use crate::stats::Metric;
    use crate::stats::Slicing;
    use crate::stats::collector::Measurement;
    use crate::stats::recorder::Recorder;
    use crate::stats::timeline::Timeline;
    use crate::workload::arrival::Arrival;

    /// A run whose requests each have a service time of 100 µs, and this send lag.
    fn report(send_lag: u64) -> Report {
        let (origin, slicing) = (Instant::now(), Slicing::new(Duration::from_secs(2)));
        let mut recorder = Recorder::new(origin, slicing, Vec::new());
        for step in 0..2000 {
            let moment = origin + Duration::from_millis(step);
            for (metric, micros) in
                [(Metric::Read, 100 + send_lag), (Metric::Service, 100), (Metric::SendLag, send_lag)]
            {
                recorder.record(moment, metric, Duration::from_micros(micros));
            }
            recorder.counts(moment).replies += 1;
        }
        let mut timeline = Timeline::default();
        timeline.add(recorder.take());
        let pacing = Loop::Open { rate: 1000.0, arrival: Arrival::EXPONENTIAL };
        let config = Config { pacing, ..Config::default() };
        let (intervals, stopped) = (slicing.count, false);
        let (broken, busiest) = (None, 0.5);
        let measured = Measurement { workers: 1, timeline, slicing, intervals, stopped, broken, busiest };
        Report::new(&config, measured, Vec::new())
    }

    #[test]
    fn a_send_lag_above_a_fifth_of_the_service_time_is_invalid() {
        assert_eq!(report(19).invalid, None);
        let invalid = report(21).invalid.unwrap();
        assert!(invalid.contains("late by 21 µs (median), 21 %"), "{invalid}");
        assert!(report(21).warnings.is_empty(), "said once: {:?}", report(21).warnings);
    }
}
