//! What a server does when its load steps up or down: how long its latency takes to settle, and by
//! how much it is beyond vanilla's meanwhile. [`crate::experiment::Load::Steps`] measures it.

use std::ops::Range;

use loadgen::medians::{Interval, median, median_interval};
use serde::Serialize;

use crate::experiment::Experiment;
use crate::fleet::{AlternatingRate, FleetLatency, FleetPacing, Step};
use crate::report::tables::{class_suffix, interval_text};
use crate::report::{Section, Table};
use crate::rounds::{DistanceClass, Results, Round};

/// A window has settled if its percentile is at most this many times the settled one, and not less
/// than the inverse of it.
const SETTLED_WITHIN: f64 = 1.25;
/// The share of the time after a step, at its end, whose windows are what the others are compared
/// with.
const SETTLED_SHARE: f64 = 0.25;
/// For how many seconds a load has to stay after a step for its latency to count as settled at the
/// end.
const LEAST_SECONDS: f64 = 0.4;
/// What is compared with the reference in the same window. A window has too few requests for
/// percentiles between the last two.
const COMPARED: [Percentile; 3] = [|it| it.p50, |it| it.p99, |it| it.max];

type Percentile = fn(&FleetLatency) -> f64;

/// A load that steps up and down, with the cores at one distance.
#[derive(Debug, Clone, Serialize)]
pub struct LoadSteps {
    pub load: String,
    pub rate: AlternatingRate,
    pub class: DistanceClass,
    pub rows: Vec<StepRow>,
}

#[derive(Debug, Clone, Serialize)]
pub struct StepRow {
    pub name: String,
    pub step: Step,
    pub turns: usize,
    /// Median latency of the first window after the step, µs.
    pub first_p50_us: Interval,
    /// Median latency of the last window before the next step, µs.
    pub last_p50_us: Interval,
    /// When the median latency settles. `None` where the load does not stay for long enough.
    pub settled_p50: Option<Settling>,
    pub settled_p99: Option<Settling>,
    /// By how much the 50th and the 99th percentile and the longest latency are beyond the
    /// reference's in the same window of the same round, µs, in their worst window. Empty for the
    /// reference.
    pub excess: Vec<Interval>,
}

/// When a percentile settles, in ms from the step on: the end of the last window that has not
/// settled. 0 if all have.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Settling {
    /// By the medians of the rounds.
    pub at: f64,
    /// At the earliest: the interval of each later window reaches into the range of settled ones.
    pub earliest: f64,
    /// At the latest: the intervals of all later windows are within that range. `None` if that is
    /// not so of the last window that is compared, and with fewer rounds than an interval needs.
    pub latest: Option<f64>,
}

pub fn load_steps(experiment: &Experiment, results: &Results) -> Vec<LoadSteps> {
    let steps = results.loads.iter().filter_map(|load| {
        let Some(FleetPacing::Alternating(rate)) = load.pacing else { return None };
        let rows = step_rows(experiment, &rate, &results.rounds(load).collect::<Vec<_>>());
        Some(LoadSteps { load: load.name.clone(), rate, class: load.class, rows })
    });
    steps.collect()
}

fn step_rows(experiment: &Experiment, rate: &AlternatingRate, rounds: &[Round<'_>]) -> Vec<StepRow> {
    let contenders = 0..experiment.contenders.len();
    let rows = |step| contenders.clone().map(move |index| step_row(experiment, rate, rounds, step, index));
    rate.steps().into_iter().flat_map(rows).collect()
}

fn step_row(
    experiment: &Experiment,
    rate: &AlternatingRate,
    rounds: &[Round<'_>],
    step: Step,
    index: usize,
) -> StepRow {
    let reference = experiment.references.first().copied().unwrap_or(0);
    let first = if step == Step::Up { 0 } else { rate.windows() };
    let windows = first..first + rate.windows();
    let median_of = |at: usize| {
        let medians = rounds.iter().filter_map(|round| latency(round, index, at, COMPARED[0]));
        median_interval(&medians.collect::<Vec<_>>())
    };
    let settled = |percentile: Percentile| {
        let stays = rate.seconds >= LEAST_SECONDS;
        let ratios = settling_ratios(rounds, index, windows.clone(), percentile);
        let has_turns = rounds.iter().any(|round| round[index].is_some());
        (stays && has_turns).then(|| Settling::of(&ratios, rate.window_seconds * 1e3))
    };
    let [settled_p50, settled_p99, _] = COMPARED.map(settled);
    let excess = |percentile: Percentile| {
        let compared = windows.clone().map(|at| {
            let of = |round: &Round<'_>, contender: usize| latency(round, contender, at, percentile);
            let differences =
                rounds.iter().filter_map(|round| Some(of(round, index)? - of(round, reference)?));
            median_interval(&differences.collect::<Vec<f64>>())
        });
        let compared = compared.filter(|it| it.count > 0);
        compared.max_by(|one, other| one.median.total_cmp(&other.median))
    };
    StepRow {
        name: experiment.contenders[index].name(),
        step,
        turns: rounds.iter().filter(|round| round[index].is_some()).count(),
        first_p50_us: median_of(windows.start),
        last_p50_us: median_of(windows.end - 1),
        settled_p50,
        settled_p99,
        excess: COMPARED.into_iter().filter(|_| index != reference).filter_map(excess).collect(),
    }
}

/// A percentile in a window of a contender's turn, if the window has requests.
fn latency(round: &Round<'_>, contender: usize, at: usize, percentile: Percentile) -> Option<f64> {
    let window = round[contender]?.windows.get(at)?;
    (window.requests > 0).then(|| percentile(&window.latency))
}

/// The percentile in each window after a step that may not have settled, over the settled one of
/// the same turn.
fn settling_ratios(
    rounds: &[Round<'_>],
    contender: usize,
    windows: Range<usize>,
    percentile: Percentile,
) -> Vec<Interval> {
    let settled_from = windows.end - (windows.len() as f64 * SETTLED_SHARE) as usize;
    let of = |round: &Round<'_>, at: usize| latency(round, contender, at, percentile);
    let ratio = |round: &Round<'_>, at: usize| {
        let settled: Vec<f64> = (settled_from..windows.end).filter_map(|at| of(round, at)).collect();
        Some(of(round, at)? / median(&settled)).filter(|ratio| ratio.is_finite())
    };
    let ratios = (windows.start..settled_from)
        .map(|at| rounds.iter().filter_map(|round| ratio(round, at)).collect::<Vec<f64>>());
    ratios.map(|ratios| median_interval(&ratios)).collect()
}

impl Settling {
    /// Of windows of this length (ms) whose percentiles are these ratios of the settled one.
    fn of(ratios: &[Interval], window_ms: f64) -> Self {
        let range = 1.0 / SETTLED_WITHIN..=SETTLED_WITHIN;
        let last = |unsettled: &dyn Fn(&Interval) -> bool| {
            ratios.iter().rposition(unsettled).map_or(0.0, |index| (index + 1) as f64 * window_ms)
        };
        let latest = last(&|ratio| {
            !(ratio.reaches_target() && range.contains(&ratio.low) && range.contains(&ratio.high))
        });
        Self {
            at: last(&|ratio| ratio.count > 0 && !range.contains(&ratio.median)),
            earliest: last(&|ratio| {
                ratio.reaches_target() && (ratio.low > *range.end() || ratio.high < *range.start())
            }),
            latest: (latest < ratios.len() as f64 * window_ms).then_some(latest),
        }
    }
}

/// What happens after each step, as a section of the report.
pub fn steps_section(steps: &[LoadSteps]) -> Section {
    let header = [
        "step",
        "server",
        "first p50 µs",
        "last p50 µs",
        "settled p50 ms",
        "settled p99 ms",
        "p50 over vanilla µs",
        "p99 over vanilla µs",
        "longest over vanilla µs",
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
             quarter, by medians of the rounds [at the earliest, at the latest]"
        ),
        "over vanilla: the latency minus that of the reference in the same window and round, in the worst window"
            .to_owned(),
    ];
    section
}

fn cells(row: &StepRow) -> Vec<String> {
    let mut cells = vec![
        row.step.to_string(),
        row.name.clone(),
        interval_text(&row.first_p50_us, 1),
        interval_text(&row.last_p50_us, 1),
        settling_text(row.settled_p50),
        settling_text(row.settled_p99),
    ];
    cells.extend(row.excess.iter().map(|excess| interval_text(excess, 0)));
    cells.resize(9, "-".to_owned());
    cells
}

/// For example `40 [20, 60]`; `40 [20, -]` if it may take as long as the load stays.
fn settling_text(settling: Option<Settling>) -> String {
    let Some(Settling { at, earliest, latest, .. }) = settling else { return "-".to_owned() };
    let latest = latest.map_or_else(|| "-".to_owned(), |latest| format!("{latest:.0}"));
    format!("{at:.0} [{earliest:.0}, {latest}]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::FleetWindow;
    use crate::rounds::Turn;

    fn ratios(medians: &[f64], spread: f64) -> Vec<Interval> {
        let around =
            |&it: &f64| median_interval(&[it / spread, it / spread, it, it, it * spread, it * spread]);
        medians.iter().map(around).collect()
    }

    #[test]
    fn a_latency_settles_at_the_end_of_its_last_window_outside_the_range() {
        let settling = Settling::of(&ratios(&[5.0, 2.0, 1.1, 1.0], 1.01), 20.0);
        assert_eq!(settling, Settling { at: 40.0, earliest: 40.0, latest: Some(40.0) });
        // Too low is not settled either, and a window between that is in the range changes nothing.
        assert_eq!(Settling::of(&ratios(&[5.0, 1.0, 0.5, 1.0], 1.01), 20.0).at, 60.0);
        let settling = Settling::of(&ratios(&[5.0, 1.2, 1.0], 1.1), 150.0);
        assert_eq!(settling, Settling { at: 150.0, earliest: 150.0, latest: Some(300.0) });
        let never = Settling::of(&ratios(&[1.0, 2.0, 2.0], 1.1), 150.0);
        assert_eq!((never.earliest, never.latest), (450.0, None));
        let few = Settling::of(&[median_interval(&[1.0; 5]); 2], 20.0);
        assert_eq!(few, Settling { at: 0.0, earliest: 0.0, latest: None });
    }

    const RATE: AlternatingRate =
        AlternatingRate { high: 900.0, low: 100.0, seconds: 0.4, window_seconds: 0.1 };

    /// A turn whose windows have these latencies in all percentiles, µs.
    fn turn(latencies: [f64; 8]) -> Turn {
        let window = |us| FleetWindow { requests: 10, latency: FleetLatency { p50: us, p99: us, max: us } };
        Turn { windows: latencies.map(window).into(), ..Turn::default() }
    }

    #[test]
    fn a_server_that_takes_long_after_one_step_settles_late_after_that_step() {
        let contenders = ["vanilla:epoll", "kernel-polling:epoll"].map(|name| name.parse().unwrap()).into();
        let experiment = Experiment::new(contenders, true);
        let turns = [turn([30.0; 8]), turn([5000.0, 2000.0, 90.0, 30.0, 31.0, 30.0, 30.0, 30.0])];
        let rounds: Vec<Round<'_>> = vec![turns.iter().map(Some).collect(); 6];
        let rows = step_rows(&experiment, &RATE, &rounds);
        let seen: Vec<_> = rows
            .iter()
            .map(|row| {
                (row.step, row.turns, row.settled_p50.unwrap().at, row.excess.first().map(|it| it.median))
            })
            .collect();
        assert_eq!(
            seen,
            [
                (Step::Up, 6, 0.0, None),
                (Step::Up, 6, 300.0, Some(4970.0)),
                (Step::Down, 6, 0.0, None),
                (Step::Down, 6, 0.0, Some(1.0)),
            ]
        );
        let slow = &rows[1];
        assert_eq!((slow.first_p50_us.median, slow.last_p50_us.median), (5000.0, 30.0));
        assert_eq!(slow.settled_p99.map(|it| (it.earliest, it.latest)), Some((300.0, None)));
    }
}
