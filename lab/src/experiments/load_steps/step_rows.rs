//! A row for each contender after each step of each load.

use std::time::Duration;

use crate::engine::DistanceClass;
use loadgen::medians::{Interval, median_interval};
use serde::Serialize;

use super::Outcome;
use super::excess::{ALLOWED_BEYOND_BUDGET, Excess, Percentile, excess};
use super::settling::{Settling, settling};
use crate::engine::{LoadKind, Results, Round};
use crate::experiment::{Contender, Experiment, Load};
use crate::fleet::{AlternatingRate, FleetLatency, FleetWindow, Step};

/// A load that steps up and down, with the cores at one distance.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct LoadSteps {
    /// The name of the load.
    pub load: String,
    /// The rates and times.
    pub rate: AlternatingRate,
    /// The class of distance.
    pub class: DistanceClass,
    /// A row for each contender after each step.
    pub rows: Vec<StepRow>,
}

/// One contender after one kind of step.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct StepRow {
    /// The contender.
    pub name: String,
    /// The contender whose latency it is compared with.
    pub reference: String,
    /// Whether the load steps up or down.
    pub step: Step,
    /// The turns that the row is of.
    pub turns: usize,
    /// Median latency of the first window after the step, µs.
    pub first_p50_us: Interval,
    /// Median latency of the last window before the next step, µs.
    pub last_p50_us: Interval,
    /// When the median latency settles. `None` where the load does not stay for long enough.
    pub settled_p50: Option<Settling>,
    /// When the 99th percentile settles.
    pub settled_p99: Option<Settling>,
    /// By how much a percentile may be beyond the reference's, µs: the latency budget and 1 ms.
    pub allowed_us: f64,
    /// By how much each percentile is beyond the reference's in its worst window. Empty for the reference itself.
    pub excess: Vec<Excess>,
}

impl StepRow {
    /// Whether both percentiles settle in time. `None` where the load does not stay for long enough.
    pub fn settles(&self) -> Option<Outcome> {
        let outcomes = [self.settled_p50?.outcome(), self.settled_p99?.outcome()];
        Some(all(outcomes.into_iter()))
    }

    /// Whether no percentile is too far beyond the reference's. `None` for the reference itself, and without a round.
    pub fn is_within(&self) -> Option<Outcome> {
        let outcomes = self.excess.iter().map(|excess| excess.outcome);
        (!self.excess.is_empty()).then(|| all(outcomes))
    }
}

/// Kept if all are, and broken if one is.
fn all(mut outcomes: impl Iterator<Item = Outcome> + Clone) -> Outcome {
    if outcomes.clone().any(|outcome| outcome == Outcome::Broken) {
        Outcome::Broken
    } else if outcomes.all(|outcome| outcome == Outcome::Kept) {
        Outcome::Kept
    } else {
        Outcome::Undecided
    }
}

/// The rows of all loads that step, which are shares of this capacity.
pub fn load_steps(experiment: &Experiment, capacity: f64, results: &Results) -> Vec<LoadSteps> {
    let rates = experiment.loads.iter().filter_map(|load| match load {
        Load::Steps(alternation) => Some(alternation.rate(capacity)),
        _ => None,
    });
    let rates: Vec<AlternatingRate> = rates.collect();
    let stepping = results.loads.iter().filter(|load| load.kind == LoadKind::Steps);
    let steps = stepping.filter_map(|load| {
        let rate = *rates.iter().find(|rate| rate.to_string() == load.name)?;
        let rounds: Vec<Round<'_>> = results.rounds(load).collect();
        let rows = step_rows(experiment, &rate, &rounds);
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
    let windows: Vec<(usize, f64)> =
        (0..count).map(|window| (first + window, window as f64 * rate.window_seconds)).collect();
    let median_of = |window: usize| {
        let turns = rounds.iter().filter_map(|round| round[index]?.windows.get(window));
        let medians = turns.filter(|it: &&FleetWindow| it.requests > 0).map(|it| it.latency.p50);
        median_interval(&medians.collect::<Vec<_>>())
    };
    let settled = |percentile: fn(&FleetLatency) -> f64| {
        settling(rounds, index, step, rate.seconds_after(step), rate.window_seconds, percentile)
    };
    let allowed = budget(contender) + ALLOWED_BEYOND_BUDGET;
    let excess = |percentile| excess(rounds, index, reference, &windows, percentile, allowed);
    StepRow {
        name: contender.name(),
        reference: experiment.contenders[reference].name(),
        step,
        turns: rounds.iter().filter(|round| round[index].is_some()).count(),
        first_p50_us: median_of(first),
        last_p50_us: median_of(first + count - 1),
        settled_p50: settled(|latency| latency.p50),
        settled_p99: settled(|latency| latency.p99),
        allowed_us: allowed.as_secs_f64() * 1e6,
        excess: if index == reference {
            Vec::new()
        } else {
            Percentile::ALL.into_iter().filter_map(excess).collect()
        },
    }
}

/// The latency budget; zero for others than kernel polling.
fn budget(contender: &Contender) -> Duration {
    match contender {
        Contender::Lull { polling, .. } if contender.polls() => polling.latency_budget.delay(),
        Contender::Program { attached: Some(budget), .. } => budget.delay(),
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Turn;

    const RATE: AlternatingRate =
        AlternatingRate { high: 900.0, low: 100.0, high_seconds: 0.4, low_seconds: 0.4, window_seconds: 0.1 };

    /// A turn whose windows have these latencies in all percentiles, µs.
    fn turn(latencies: [f64; 8]) -> Turn {
        let window = |(index, us): (usize, f64)| FleetWindow {
            step: if index < 4 { Step::Up } else { Step::Down },
            from: (index % 4) as f64 * 0.1,
            requests: 10,
            latency: FleetLatency { mean: us, p50: us, p90: us, p99: us, p999: us, max: us },
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
            rows.iter().map(|row| (row.step, row.turns, row.settles(), row.is_within())).collect();
        let (kept, broken) = (Some(Outcome::Kept), Some(Outcome::Broken));
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
