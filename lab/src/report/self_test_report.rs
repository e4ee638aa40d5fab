//! The report on the method's self-test.

use std::fmt::Write;
use std::time::Duration;

use loadgen::medians::Interval;
use serde::Serialize;

use super::fleet_report::FleetReport;
use super::table::interval_text;

/// How far from 1 the ratio between equal servers may be.
const EQUAL_WITHIN: f64 = 0.03;

/// The report on the method's self-test: a server, the same again, and one that computes longer for each request.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct SelfTestReport {
    /// Time that the third server computes more for each request, µs.
    pub work_us: f64,
    /// CPU time per reply of the second server over the first one's; `None` without a round.
    pub equal: Option<Interval>,
    /// CPU time per reply of the third server minus the first one's, µs.
    pub difference_us: Option<Interval>,
    /// The comparison.
    pub comparison: FleetReport,
}

impl SelfTestReport {
    /// Judges a comparison of the three.
    pub fn new(comparison: FleetReport, work: Duration) -> Self {
        let class = comparison.result.loads.first().and_then(|load| load.classes.first());
        let row = |index: usize| class.and_then(|class| class.rows.get(index));
        Self {
            work_us: work.as_secs_f64() * 1e6,
            equal: row(1).map(|row| row.cpu_ratio),
            difference_us: row(2).map(|row| row.cpu_difference_us),
            comparison,
        }
    }

    /// Whether the equal servers are found to be equal, and the difference to be what it is.
    pub fn passed(&self) -> bool {
        let within = |interval: &Interval, value: f64| interval.low <= value && value <= interval.high;
        let equal = self
            .equal
            .is_some_and(|ratio| ratio.reaches_target() && (ratio.median - 1.0).abs() <= EQUAL_WITHIN);
        let found = self.difference_us.is_some_and(|difference| {
            difference.reaches_target() && within(&difference, self.work_us) && difference.low > 0.0
        });
        equal && found
    }

    /// One sentence.
    pub fn verdict(&self) -> String {
        let text = |interval: &Option<Interval>| {
            interval.as_ref().map_or_else(|| "not measured".to_owned(), |interval| interval_text(interval, 3))
        };
        format!(
            "equal servers: {} of each other's CPU time per request (passes within {EQUAL_WITHIN} of 1); {} µs of work: {} µs found",
            text(&self.equal),
            self.work_us,
            text(&self.difference_us)
        )
    }

    /// The report as text.
    pub fn text(&self) -> String {
        let mut text = self.comparison.text();
        let outcome = if self.passed() { "passed" } else { "failed" };
        let _ = writeln!(text, "\nself-test {outcome}: {}", self.verdict());
        text
    }
}

#[cfg(test)]
mod tests {
    use loadgen::interleaved_rounds::DistanceClass;
    use loadgen::medians::median_interval;

    use super::super::sample_results::{config, equal, interval, load, result, row};
    use super::*;
    use crate::experiments::CoreAssignment;
    use crate::experiments::fleet_comparison::FleetRow;

    const WORK: Duration = Duration::from_micros(5);

    /// A self-test that found these.
    fn report(equal_ratio: Interval, difference: Interval) -> SelfTestReport {
        let mut result = result(DistanceClass::Single, equal());
        let again = FleetRow { cpu_ratio: equal_ratio, ..row("again") };
        let slower = FleetRow { cpu_difference_us: difference, ..row("slower") };
        result.loads = vec![load(Some(0.5), DistanceClass::Single, vec![row("first"), again, slower])];
        let cores = CoreAssignment { server: 0, client: 1, packing: 1 };
        SelfTestReport::new(FleetReport::new(config(), cores, true, result), WORK)
    }

    #[test]
    fn it_passes_if_equal_servers_are_equal_and_the_work_is_within_its_interval() {
        let report = report(interval(0.99, 1.01, 1.02), interval(4.7, 4.9, 5.1));
        assert!(report.passed());
        assert_eq!(
            report.verdict(),
            "equal servers: 1.010 [0.990, 1.020] of each other's CPU time per request (passes within 0.03 of 1); \
             5 µs of work: 4.900 [4.700, 5.100] µs found"
        );
        assert!(report.text().contains("\nself-test passed: equal servers: 1.010"), "{}", report.text());
    }

    #[test]
    fn it_fails_if_equal_servers_differ() {
        let difference = interval(4.7, 4.9, 5.1);
        // Above, below, and too few rounds.
        for ratio in [interval(0.99, 1.04, 1.05), interval(0.95, 0.96, 1.01), median_interval(&[1.0; 5])] {
            let report = report(ratio, difference);
            assert!(!report.passed(), "{ratio:?}");
            assert!(report.text().contains("\nself-test failed: "), "{}", report.text());
        }
    }

    #[test]
    fn it_fails_if_the_work_is_not_found() {
        // Another amount; none that can be told from 0; too few rounds.
        for difference in [
            interval(3.0, 4.0, 4.9),
            interval(5.1, 5.2, 6.0),
            interval(-1.0, 4.0, 6.0),
            median_interval(&[5.0; 5]),
        ] {
            assert!(!report(equal(), difference).passed(), "{difference:?}");
        }
    }

    #[test]
    fn it_fails_if_nothing_was_measured() {
        let mut comparison = report(equal(), equal()).comparison;
        comparison.result.loads[0].classes.clear();
        let report = SelfTestReport::new(comparison, WORK);
        assert!(!report.passed());
        let verdict = report.verdict();
        assert!(verdict.starts_with("equal servers: not measured of each other's"), "{verdict}");
    }
}
