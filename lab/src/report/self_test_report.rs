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
