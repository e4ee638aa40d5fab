//! What a server does when its load steps up or down: how long its latency takes to settle, and by
//! how much it is beyond vanilla's meanwhile. [`crate::experiment::Load::Steps`] measures it.

use std::time::Duration;

use loadgen::medians::{Interval, median, median_interval};
use serde::Serialize;

use crate::experiment::{Contender, Experiment};
use crate::fleet::{AlternatingRate, FleetLatency, FleetPacing, FleetWindow, Step};
use crate::report::tables::{class_suffix, interval_text};
use crate::report::{Section, Table};
use crate::rounds::{Bound, DistanceClass, Results, Round};

/// By how much a percentile may be beyond vanilla's, apart from the latency budget.
const ALLOWED_BEYOND_BUDGET: Duration = Duration::from_millis(1);
/// A window has settled if its percentile is at most this many times the settled one, and not less
/// than the inverse of it.
const SETTLED_WITHIN: f64 = 1.25;
/// The time within which a latency is to settle.
const TIME_TO_SETTLE: Duration = Duration::from_millis(200);
/// The share of the time after a step, at its end, whose windows are what the others are compared
/// with.
const SETTLED_SHARE: f64 = 0.25;
/// The percentiles that are compared with vanilla's. A window has too few requests for higher ones.
const PERCENTILES: [fn(&FleetLatency) -> f64; 3] = [|it| it.p50, |it| it.p90, |it| it.p99];

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
    pub reference: String,
    pub step: Step,
    pub turns: usize,
    /// Median latency of the first window after the step, µs.
    pub first_p50_us: Interval,
    /// Median latency of the last window before the next step, µs.
    pub last_p50_us: Interval,
    /// When the median latency settles. `None` where the load does not stay for long enough.
    pub settled_p50: Option<Settling>,
    pub settled_p99: Option<Settling>,
    pub settles: Option<Bound>,
    /// By how much a percentile may be beyond the reference's, µs: the latency budget and 1 ms.
    pub allowed_us: f64,
    /// By how much the 50th, 90th and 99th percentile are beyond the reference's in their worst
    /// window. Empty for the reference.
    pub excess: Vec<Excess>,
    /// Whether no percentile is too far beyond the reference's. `None` for the reference, and
    /// without a round.
    pub is_within: Option<Bound>,
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

/// The window in which a percentile is most beyond the reference's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Excess {
    /// Seconds from the step to the begin of the window.
    pub from: f64,
    /// The percentile minus the reference's in the same window of the same round, µs.
    pub us: Interval,
    pub outcome: Bound,
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
    let contender = &experiment.contenders[index];
    let reference = experiment.references.first().copied().unwrap_or(0);
    let first = if step == Step::Up { 0 } else { rate.windows_after(Step::Up) };
    let count = rate.windows_after(step);
    let median_of = |window: usize| {
        let turns = rounds.iter().filter_map(|round| round[index]?.windows.get(window));
        let medians = turns.filter(|it: &&FleetWindow| it.requests > 0).map(|it| it.latency.p50);
        median_interval(&medians.collect::<Vec<_>>())
    };
    let settled = |percentile| settling(rounds, index, rate, step, percentile);
    let (settled_p50, settled_p99) = (settled(|it| it.p50), settled(|it| it.p99));
    let settles = settled_p50.zip(settled_p99).map(|(p50, p99)| Bound::all([p50.in_time(), p99.in_time()]));
    // Zero for others than kernel polling.
    let budget = match contender {
        Contender::Lull { polling, .. } if contender.polls() => polling.latency_budget.delay(),
        Contender::Program { attached: Some(budget), .. } => budget.delay(),
        _ => Duration::ZERO,
    };
    let allowed_us = (budget + ALLOWED_BEYOND_BUDGET).as_secs_f64() * 1e6;
    let excess = |percentile: fn(&FleetLatency) -> f64| {
        let window = |round: &Round<'_>, contender: usize, at: usize| -> Option<f64> {
            let window: &FleetWindow = round[contender]?.windows.get(at)?;
            (window.requests > 0).then(|| percentile(&window.latency))
        };
        let compared = (0..count).map(|at| {
            let difference =
                |round| Some(window(round, index, first + at)? - window(round, reference, first + at)?);
            let differences = rounds.iter().filter_map(difference).collect::<Vec<f64>>();
            (at as f64 * rate.window_seconds, median_interval(&differences))
        });
        worst(&compared.filter(|(_, excess)| excess.count > 0).collect::<Vec<_>>(), allowed_us)
    };
    let compared = PERCENTILES.into_iter().filter(|_| index != reference);
    let excess: Vec<Excess> = compared.filter_map(excess).collect();
    StepRow {
        name: contender.name(),
        reference: experiment.contenders[reference].name(),
        step,
        turns: rounds.iter().filter(|round| round[index].is_some()).count(),
        first_p50_us: median_of(first),
        last_p50_us: median_of(first + count - 1),
        settled_p50,
        settled_p99,
        settles,
        allowed_us,
        is_within: (!excess.is_empty()).then(|| Bound::all(excess.iter().map(|it| it.outcome))),
        excess,
    }
}

/// Of windows by their begin, the one with the largest excess; one that is beyond the bound breaks
/// it.
fn worst(windows: &[(f64, Interval)], allowed_us: f64) -> Option<Excess> {
    let &(from, us) = windows.iter().max_by(|(_, one), (_, other)| one.median.total_cmp(&other.median))?;
    let outcome = Bound::all(windows.iter().map(|(_, excess)| Bound::of(excess, allowed_us)));
    Some(Excess { from, us, outcome })
}

/// When a percentile of a contender settles after a step. `None` where the load stays for less than
/// twice [`TIME_TO_SETTLE`], so that nothing is known to be settled, and without a round.
fn settling(
    rounds: &[Round<'_>],
    contender: usize,
    rate: &AlternatingRate,
    step: Step,
    percentile: fn(&FleetLatency) -> f64,
) -> Option<Settling> {
    let (seconds, window_seconds) = (rate.seconds_after(step), rate.window_seconds);
    if seconds < 2.0 * TIME_TO_SETTLE.as_secs_f64() {
        return None;
    }
    let settled_from = seconds * (1.0 - SETTLED_SHARE);
    // The percentiles by window of each turn, over the settled one of the same turn.
    let mut ratios: Vec<Vec<f64>> = Vec::new();
    for turn in rounds.iter().filter_map(|round| round[contender]) {
        // A window that begins a rounding error before.
        let is_settled = |window: &&FleetWindow| window.from > settled_from - window_seconds / 2.0;
        let (settled, unsettled): (Vec<&FleetWindow>, Vec<&FleetWindow>) = turn
            .windows
            .iter()
            .filter(|window| window.step == step && window.requests > 0)
            .partition(is_settled);
        let settled: Vec<f64> = settled.iter().map(|window| percentile(&window.latency)).collect();
        let reference = median(&settled);
        for window in unsettled {
            let index = (window.from / window_seconds).round() as usize;
            ratios.resize_with(ratios.len().max(index + 1), Vec::new);
            if reference > 0.0 {
                ratios[index].push(percentile(&window.latency) / reference);
            }
        }
    }
    let intervals: Vec<Interval> = ratios.iter().map(|ratios| median_interval(ratios)).collect();
    (!intervals.is_empty()).then(|| Settling::of(&intervals, window_seconds * 1e3))
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

    /// Whether it takes at most [`TIME_TO_SETTLE`].
    fn in_time(&self) -> Bound {
        let limit = TIME_TO_SETTLE.as_secs_f64() * 1e3;
        match self.latest {
            Some(latest) if latest <= limit => Bound::Kept,
            _ if self.earliest > limit => Bound::Broken,
            _ => Bound::Undecided,
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

#[cfg(test)]
mod tests {
    use super::*;
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
        assert_eq!(settling.in_time(), Bound::Kept);
        // Too low is not settled either, and a window between that is in the range changes nothing.
        assert_eq!(Settling::of(&ratios(&[5.0, 1.0, 0.5, 1.0], 1.01), 20.0).at, 60.0);
        let settling = Settling::of(&ratios(&[5.0, 1.2, 1.0], 1.1), 150.0);
        assert_eq!(settling, Settling { at: 150.0, earliest: 150.0, latest: Some(300.0) });
        assert_eq!(settling.in_time(), Bound::Undecided);
        let never = Settling::of(&ratios(&[1.0, 2.0, 2.0], 1.1), 150.0);
        assert_eq!((never.earliest, never.latest, never.in_time()), (450.0, None, Bound::Broken));
        let few = Settling::of(&[median_interval(&[1.0; 5]); 2], 20.0);
        assert_eq!(few, Settling { at: 0.0, earliest: 0.0, latest: None });
    }

    const RATE: AlternatingRate =
        AlternatingRate { high: 900.0, low: 100.0, high_seconds: 0.4, low_seconds: 0.4, window_seconds: 0.1 };

    /// A turn whose windows have these latencies in all percentiles, µs.
    fn turn(latencies: [f64; 8]) -> Turn {
        let window = |(index, us): (usize, f64)| FleetWindow {
            step: if index < 4 { Step::Up } else { Step::Down },
            from: (index % 4) as f64 * 0.1,
            requests: 10,
            latency: FleetLatency { mean: us, p50: us, p90: us, p99: us },
        };
        Turn { windows: latencies.into_iter().enumerate().map(window).collect(), ..Turn::default() }
    }

    #[test]
    fn a_server_that_takes_long_after_one_step_breaks_the_bounds_after_that_step() {
        let contenders = ["vanilla:epoll", "kernel-polling:epoll"].map(|name| name.parse().unwrap()).into();
        let experiment = Experiment::new(contenders, true);
        let turns = [turn([30.0; 8]), turn([5000.0, 2000.0, 90.0, 30.0, 31.0, 30.0, 30.0, 30.0])];
        let rounds: Vec<Round<'_>> = vec![turns.iter().map(Some).collect(); 6];
        let rows = step_rows(&experiment, &RATE, &rounds);
        let outcomes: Vec<_> =
            rows.iter().map(|row| (row.step, row.turns, row.settles, row.is_within)).collect();
        let (kept, broken) = (Some(Bound::Kept), Some(Bound::Broken));
        assert_eq!(
            outcomes,
            [
                (Step::Up, 6, kept, None),
                (Step::Up, 6, broken, broken),
                (Step::Down, 6, kept, None),
                (Step::Down, 6, kept, kept),
            ]
        );
        let slow = &rows[1];
        assert_eq!((slow.first_p50_us.median, slow.last_p50_us.median), (5000.0, 30.0));
        assert_eq!(slow.settled_p50.map(|it| it.earliest), Some(300.0));
        assert_eq!((slow.excess[0].from, slow.excess[0].us.median, slow.allowed_us), (0.0, 4970.0, 1000.0));
    }
}
