//! Whether a report's figures are valid, and what to know about them.

use crate::config::{Config, WarmUp};
use crate::report::run_report::Report;

/// Above this CPU utilization the generator limits an open loop, and the run is invalid.
const SATURATED: f64 = 0.97;
/// Above this CPU utilization the generator may limit the run.
const NEARLY_SATURATED: f64 = 0.9;
/// From this share of the service time on the generator's own delays are part of what is measured.
const NOTICEABLE_SEND_LAG: f64 = 0.2;
/// The largest relative deviation from the requested rate.
const RATE_TOLERANCE: f64 = 0.01;

/// The deviation of a rate that chance explains: three standard deviations of a Poisson process.
pub(crate) fn random_deviation(rate: f64, seconds: f64) -> f64 {
    3.0 * (rate / seconds.max(f64::MIN_POSITIVE)).sqrt()
}

/// Why the figures are invalid, if they are. If the generator's own delays exceed the server's, a
/// run measures the generator.
pub(super) fn invalid_reason(report: &Report, config: &Config) -> Option<String> {
    if report.requests == 0 {
        return Some("the measurement contains no responses".to_owned());
    }
    if let Some((agent, reason)) = report.agents.iter().find_map(|it| Some((&it.agent, it.lost.as_ref()?))) {
        return Some(format!(
            "agent {agent} was lost ({reason}): the load was lower than requested, and the agent's results are missing"
        ));
    }
    if report.asked_qps.is_some() && !config.workers_spin && report.client_busy > SATURATED {
        return Some(format!(
            "the generator's threads were {:.0} % busy, which delayed requests by an unknown time; use more \
             threads or a lower rate",
            report.client_busy * 100.0
        ));
    }
    let (which, send_lag, service) = late_by(report, 1.0)?;
    Some(format!(
        "the generator itself was late by {send_lag:.0} µs ({which}), which exceeds the server's service time \
         ({service:.0} µs): use more threads, a dedicated core or a lower rate"
    ))
}

/// At which percentile the generator was late by more than this share of the service time, and both
/// in µs.
fn late_by(report: &Report, share: f64) -> Option<(&'static str, f64, f64)> {
    let (send_lag, service) = (report.send_lag?, report.service?);
    [("median", send_lag.p50, service.p50), ("99th percentile", send_lag.p99, service.p99)]
        .into_iter()
        .find(|(_, send_lag, service)| *send_lag > service * share)
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
    if report.client_busy > NEARLY_SATURATED && !config.workers_spin {
        warnings.push(format!(
            "the generator's threads were {:.0} % busy: the client may be the bottleneck, not the server",
            report.client_busy * 100.0
        ));
    }
    if let Some((which, send_lag, service)) =
        late_by(report, NOTICEABLE_SEND_LAG).filter(|_| report.invalid.is_none())
    {
        warnings.push(format!(
            "the generator itself was late by {send_lag:.0} µs ({which}), {:.0} % of the server's service time \
             ({service:.0} µs), which is part of the latencies: more threads or a dedicated core lower it",
            send_lag / service * 100.0
        ));
    }
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
    use crate::stats::collector::Measurement;
    use crate::stats::metrics::{Metric, RequestClass};
    use crate::stats::recorder::Recorder;
    use crate::stats::slicing::Slicing;
    use crate::stats::timeline::Timeline;
    use crate::workload::arrival::Arrival;

    /// A run whose requests each have a service time of 100 µs, and this send lag.
    fn report(send_lag: u64) -> Report {
        let (origin, slicing) = (Instant::now(), Slicing::new(Duration::from_secs(2)));
        let mut recorder = Recorder::new(origin, slicing, Vec::new());
        for step in 0..2000 {
            let moment = origin + Duration::from_millis(step);
            let class = Metric::Latency(RequestClass::Read);
            for (metric, micros) in
                [(class, 100 + send_lag), (Metric::Service, 100), (Metric::SendLag, send_lag)]
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
        let measured = Measurement { workers: 1, timeline, slicing, intervals, stopped };
        Report::new(&config, measured, Vec::new())
    }

    #[test]
    fn a_send_lag_is_a_warning_from_a_fifth_of_the_service_time_on_and_invalid_beyond_it() {
        let warnings = |send_lag| report(send_lag).warnings;
        assert!(warnings(19).is_empty(), "{:?}", warnings(19));
        assert!(warnings(21)[0].contains("late by 21 µs (median), 21 %"), "{:?}", warnings(21));
        assert_eq!(report(21).invalid, None);
        assert!(report(101).invalid.is_some());
        assert!(warnings(101).is_empty(), "said once: {:?}", warnings(101));
    }
}
