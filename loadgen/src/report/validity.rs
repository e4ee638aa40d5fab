//! Whether a report's figures are valid, and what to know about them.

use crate::config::{Config, WarmUp};
use crate::report::run_report::Report;

/// Above this CPU utilization the generator limits an open loop, and the run is invalid.
const SATURATED: f64 = 0.97;
/// Above this CPU utilization the generator may limit the run.
const NEARLY_SATURATED: f64 = 0.9;
/// The largest relative deviation from the requested rate.
const RATE_TOLERANCE: f64 = 0.01;

/// The deviation of a rate that chance explains: three standard deviations of a Poisson process.
pub(crate) fn random_deviation(rate: f64, seconds: f64) -> f64 {
    3.0 * (rate / seconds.max(f64::MIN_POSITIVE)).sqrt()
}

/// Why the figures are invalid, if they are. If the generator's own delays exceed the server's, a run measures
/// the generator.
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
    let (send_lag, service) = (report.send_lag?, report.service?);
    let compared =
        [("median", send_lag.p50, service.p50), ("99th percentile", send_lag.p99, service.p99)].into_iter();
    let mut late = compared.filter(|(_, send_lag, service)| send_lag > service);
    let (which, send_lag, service) = late.next()?;
    Some(format!(
        "the generator itself was late by {send_lag:.0} µs ({which}), which exceeds the server's service time \
         ({service:.0} µs): use more threads, a dedicated core or a lower rate"
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
    if report.client_busy > NEARLY_SATURATED && !config.workers_spin {
        warnings.push(format!(
            "the generator's threads were {:.0} % busy: the client may be the bottleneck, not the server",
            report.client_busy * 100.0
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
