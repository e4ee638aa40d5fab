//! What happens after steps of the load, as a section.

use super::document::{Section, Table};
use super::figures::class_suffix;
use super::table::interval_text;
use crate::engine::Bound;
use crate::experiments::load_steps::{LoadSteps, SETTLED_WITHIN, Settling, StepRow, TIME_TO_SETTLE};

pub fn steps_section(steps: &[LoadSteps]) -> Section {
    let header = [
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
    let table = |load: &LoadSteps| {
        let title = format!("{}{}", load.load, class_suffix(load.class));
        Table { names: 2, ..Table::new(title, &header, load.rows.iter().map(cells).collect()) }
    };
    let mut section = Section::new("steps", "After a step of the load");
    section.caption = "latency by the time at which a request was due".to_owned();
    section.tables = steps.iter().map(table).collect();
    section.notes = vec![
        format!(
            "settled: the end of the last window whose percentile is not within {SETTLED_WITHIN} times that of the last \
             quarter, by medians of the rounds [at the earliest, at the latest]; in time: {} ms",
            TIME_TO_SETTLE.as_millis()
        ),
        "over vanilla: the percentile minus that of the reference in the same window and round, in the worst window; allowed: \
         the latency budget and 1 ms"
            .to_owned(),
    ];
    section
}

fn cells(row: &StepRow) -> Vec<String> {
    let outcome = |outcome: Option<Bound>| outcome.map_or_else(|| "-".to_owned(), |it| it.to_string());
    let mut cells = vec![
        row.step.to_string(),
        row.name.clone(),
        interval_text(&row.first_p50_us, 1),
        interval_text(&row.last_p50_us, 1),
        settling_text(row.settled_p50),
        settling_text(row.settled_p99),
        outcome(row.settles),
    ];
    cells.extend(row.excess.iter().map(|excess| interval_text(&excess.us, 0)));
    cells.resize(10, "-".to_owned());
    let allowed = if row.excess.is_empty() { "-".to_owned() } else { format!("{:.0}", row.allowed_us) };
    cells.extend([allowed, outcome(row.is_within)]);
    cells
}

/// For example `40 [20, 60]`; `40 [20, -]` if it may take as long as the load stays.
fn settling_text(settling: Option<Settling>) -> String {
    let Some(Settling { at, earliest, latest, .. }) = settling else { return "-".to_owned() };
    let latest = latest.map_or_else(|| "-".to_owned(), |latest| format!("{latest:.0}"));
    format!("{at:.0} [{earliest:.0}, {latest}]")
}
