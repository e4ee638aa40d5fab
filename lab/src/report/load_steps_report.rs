//! The report on loads that step up and down.

use std::fmt::Write;

use loadgen::interleaved_rounds::DistanceClass;
use serde::Serialize;

use super::fleet_report::FleetReport;
use super::table::{interval_text, plain_table};
use crate::experiments::load_steps::{
    LoadSteps, Outcome, SETTLED_WITHIN, Settling, StepRow, TIME_TO_SETTLE, load_steps,
};
use crate::experiments::order_by_rounds;

/// The report on loads that step up and down.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct LoadStepsReport {
    /// What happens after each step.
    pub steps: Vec<LoadSteps>,
    /// The comparison.
    pub comparison: FleetReport,
}

impl LoadStepsReport {
    /// Looks at what happens after the steps of a comparison.
    pub fn new(comparison: FleetReport) -> Self {
        Self { steps: load_steps(&comparison.config, &comparison.result), comparison }
    }

    /// The report as text.
    pub fn text(&self) -> String {
        let mut text = self.comparison.text();
        let classes = self.steps.iter().flat_map(|load| &load.classes);
        for class in order_by_rounds(classes.map(|class| (class.class, class.rounds))) {
            let _ = writeln!(
                text,
                "\nAfter a step of the load: latency by the time at which a request was due{}",
                match class {
                    DistanceClass::Single => String::new(),
                    class => format!("; cores {class}"),
                }
            );
            text.push_str(&self.table(class));
        }
        let _ = writeln!(
            text,
            "\nsettled: the end of the last window whose percentile is not within {SETTLED_WITHIN} times that of the last quarter, \
             by medians of the rounds [at the earliest, at the latest]; in time: {} ms",
            TIME_TO_SETTLE.as_millis()
        );
        let _ = writeln!(
            text,
            "over vanilla: the percentile minus that of the reference in the same window and round, in the worst window; allowed: \
             the latency budget and 1 ms"
        );
        text
    }

    fn table(&self, class: DistanceClass) -> String {
        let header = [
            "load",
            "step",
            "server",
            "first p50 µs",
            "last p50 µs",
            "settled p50 ms",
            "settled p99 ms",
            "in time",
            "p50 over vanilla µs",
            "p90 over vanilla µs",
            "p99 over vanilla µs",
            "allowed µs",
            "within",
        ];
        let mut rows = Vec::new();
        for load in &self.steps {
            for class in load.classes.iter().filter(|it| it.class == class) {
                rows.extend(class.rows.iter().map(|row| cells(load, row)));
            }
        }
        format!("{}\n", plain_table(header, rows, &[0, 1, 2]))
    }
}

fn cells(load: &LoadSteps, row: &StepRow) -> Vec<String> {
    let outcome = |outcome: Option<Outcome>| outcome.map_or_else(|| "-".to_owned(), |it| it.to_string());
    let mut cells = vec![
        load.load.clone(),
        row.step.to_string(),
        row.name.clone(),
        interval_text(&row.first_p50_us, 1),
        interval_text(&row.last_p50_us, 1),
        settling_text(row.settled_p50),
        settling_text(row.settled_p99),
        outcome(row.settles()),
    ];
    match &row.excess[..] {
        [] => cells.extend(["-", "-", "-"].map(str::to_owned)),
        excess => cells.extend(excess.iter().map(|excess| interval_text(&excess.us, 0))),
    }
    let allowed = if row.excess.is_empty() { "-".to_owned() } else { format!("{:.0}", row.allowed_us) };
    cells.extend([allowed, outcome(row.is_within())]);
    cells
}

/// For example `40 [20, 60]`; `40 [20, -]` if it may take as long as the load stays.
fn settling_text(settling: Option<Settling>) -> String {
    let Some(Settling { at, earliest, latest, .. }) = settling else { return "-".to_owned() };
    let latest = latest.map_or_else(|| "-".to_owned(), |latest| format!("{latest:.0}"));
    format!("{at:.0} [{earliest:.0}, {latest}]")
}
