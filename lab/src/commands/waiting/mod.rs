//! Which wait strategy answers messages soonest, and at what cost in CPU time.
//!
//! The question is the one of Damianakis, Chen and Felten, "Reducing Waiting Costs in User-Level
//! Communication" (1997): is a thread that adapts how long it spins as fast as the better of
//! spinning and blocking, and how much more does it cost than blocking? It is asked for messages
//! between two workers, and between a worker and a plain thread.

mod messages;

use std::time::{Duration, Instant};

use loadgen::medians::Interval;
use policies::host::Machine;
use runtime::{DriverKind, WaitStrategy};
use serde::Serialize;

use messages::Pair;

use crate::Error;
use crate::cores::CoreAssignment;
use crate::report::tables::{class_suffix, classes, table};
use crate::report::{Document, Section};
use crate::rounds::{Figure, LoadKind, LoadPlan, Results, Runner, share_of_time};

const STRATEGIES: [WaitStrategy; 3] = [WaitStrategy::Block, WaitStrategy::Spin, WaitStrategy::Adaptive];
/// Ratios are to the better of block and spin.
const REFERENCES: [usize; 2] = [0, 1];
const ADAPTIVE: usize = 2;

/// What passes between an answer and the next message, in µs: always the same, or one of several in
/// an order without a pattern.
const GAPS: [&[u64]; 6] = [&[1], &[10], &[50], &[100], &[1_000], &[1, 10, 50, 100, 1_000]];

#[derive(Debug, Clone, Serialize)]
pub struct WaitingConfig {
    pub rounds: usize,
    pub gaps: [&'static [u64]; 6],
    /// Seconds of messages at one gap before a measurement, at most.
    pub message_warm_up: f64,
    pub message_duration: f64,
    pub driver: DriverKind,
    /// Seconds that all may take. Rounds that have begun are finished.
    pub seconds: f64,
}

impl WaitingConfig {
    /// About five minutes, or one if `quick`; `seconds` limits it further, or lets it take longer.
    pub fn new(quick: bool, seconds: Option<f64>) -> Self {
        Self {
            rounds: if quick { 7 } else { 16 },
            gaps: GAPS,
            message_warm_up: if quick { 0.02 } else { 0.05 },
            message_duration: if quick { 0.04 } else { 0.12 },
            driver: DriverKind::Epoll,
            seconds: seconds.unwrap_or(if quick { 55.0 } else { 280.0 }),
        }
    }

    pub fn steps(&self) -> usize {
        self.rounds * Pair::ALL.len() * GAPS.len() * STRATEGIES.len()
    }
}

/// Measures messages of each pair at each gap. Calls `progress` before each turn.
pub fn measure(
    config: &WaitingConfig,
    cores: CoreAssignment,
    progress: &mut dyn FnMut(&str),
) -> Result<Results, Error> {
    let loads: Vec<_> = Pair::ALL.into_iter().flat_map(|pair| GAPS.map(|gap| (pair, gap))).collect();
    let (deadline, count) = (Instant::now() + Duration::from_secs_f64(config.seconds), loads.len());
    let mut runner = Runner::new(cores, progress);
    let names = STRATEGIES.map(|strategy| strategy.to_string());
    for (index, (pair, gap)) in loads.into_iter().enumerate() {
        let name = match gap {
            [micros] => format!("{pair}, {micros} µs"),
            _ => format!("{pair}, mixed"),
        };
        let limit = share_of_time(deadline, count - index);
        let plan = LoadPlan::new(name, LoadKind::Closed, 0.0, config.rounds, limit);
        runner.measure(plan, &names, |index| messages::turn(pair, gap, STRATEGIES[index], cores, config))?;
    }
    Ok(runner.finish(&REFERENCES))
}

/// What adaptive waits are to keep: a figure, and what it is at most of the better of spin and
/// block's.
const CLAIMS: [(&str, Figure, f64); 2] = [
    ("round trip of messages", Figure::RoundTrip, 1.1),
    ("CPU time for messages", Figure::CpuPerRequest, 2.0),
];

#[derive(Debug, Serialize)]
pub struct WaitingReport {
    pub machine: Machine,
    pub cores: CoreAssignment,
    pub cores_awake: bool,
    pub config: WaitingConfig,
    pub verdict: Vec<String>,
    pub results: Results,
}

impl WaitingReport {
    pub fn new(cores: CoreAssignment, cores_awake: bool, config: WaitingConfig, results: Results) -> Self {
        let verdict = CLAIMS.iter().map(|claim| sentence(*claim, &results)).collect();
        Self { machine: Machine::read(), cores, cores_awake, config, verdict, results }
    }

    pub fn document(&self) -> Document {
        let mut messages = Section::new("messages", "Messages");
        for class in classes(&self.results.loads) {
            let loads = self.results.loads.iter().filter(|load| load.class == class);
            let figures = [Figure::RoundTrip, Figure::P99, Figure::CpuPerRequest];
            let title = format!("Medians, and ratios to the better of block and spin{}", class_suffix(class));
            let ratios = CLAIMS.map(|(_, figure, _)| figure);
            messages.tables.push(table(&title, &loads.collect::<Vec<_>>(), &figures, &ratios));
        }
        messages.notes.clone_from(&self.results.notes);
        let CoreAssignment { server, client, .. } = self.cores;
        if server == client {
            let note = "both sides share one core: who spins keeps the other one from answering";
            messages.notes.push(note.to_owned());
        }
        if !self.cores_awake {
            let note =
                "idle cores may sleep deeply, which a block pays for: /dev/cpu_dma_latency can't be written";
            messages.notes.push(note.to_owned());
        }
        Document {
            title: "Spin or block".to_owned(),
            findings: self.verdict.clone(),
            conditions: vec![format!(
                "{}; cores {server} and {client}, {}",
                self.machine, self.config.driver
            )],
            sections: vec![messages],
        }
    }
}

/// Whether a limit is kept. `None`: the interval contains it, or there are too few rounds.
fn is_kept(ratio: &Interval, limit: f64) -> Option<bool> {
    let is_decided = ratio.reaches_target() && (ratio.high <= limit || ratio.low > limit);
    is_decided.then_some(ratio.high <= limit)
}

/// In how many rows a claim is kept.
fn sentence((what, figure, limit): (&str, Figure, f64), results: &Results) -> String {
    let ratios = results.loads.iter().filter_map(|load| load.rows[ADAPTIVE].ratio(figure));
    let outcomes: Vec<Option<bool>> = ratios.map(|ratio| is_kept(ratio, limit)).collect();
    let count = |outcome| outcomes.iter().filter(|it| **it == outcome).count();
    let (all, kept, broken) = (outcomes.len(), count(Some(true)), count(Some(false)));
    if all == 0 {
        return format!("Adaptive's {what}: not measured, because the machine disturbed every round.");
    }
    let mut text = format!(
        "Adaptive's {what} is at most {limit} of the better of spin and block's in {kept} of {all} rows"
    );
    for (count, words) in [(broken, "above it"), (count(None), "not decided")] {
        if count > 0 {
            text.push_str(&format!("; in {count} {words}"));
        }
    }
    text + "."
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounds::{Turn, results_of};

    #[test]
    fn adaptive_is_compared_with_the_better_one_of_spin_and_block_in_each_figure() {
        let loads = ["1 µs", "1000 µs"].map(|name| (name, LoadKind::Closed, 0.0, None));
        let of = |rounds| {
            let names = ["block", "spin", "adaptive"];
            let results = results_of(&loads, &names, &[0, 1], rounds, |load, contender, _| {
                let (trip, cpu) = match load {
                    "1 µs" => ([12.0, 2.0, 2.1][contender], [16.0, 6.0, 8.0][contender]),
                    _ => ([15.0, 30.0, 18.0][contender], [20.0, 1000.0, 50.0][contender]),
                };
                Turn::new([(Figure::RoundTrip, trip), (Figure::CpuPerRequest, cpu)])
            });
            let cores = CoreAssignment::choose().unwrap();
            WaitingReport::new(cores, true, WaitingConfig::new(true, None), results)
        };
        let few = of(5).verdict;
        assert!(few.iter().all(|it| it.ends_with("in 0 of 2 rows; in 2 not decided.")), "{few:?}");
        let report = of(8);
        let text = report.document().text();
        for part in [
            "1.05 [1.05, 1.05]",
            "2.50 [2.50, 2.50]",
            "round trip of messages is at most 1.1 of the better of spin and block's in 1 of 2 rows; in 1 above it.",
            "CPU time for messages is at most 2 of the better of spin and block's in 1 of 2 rows; in 1 above it.",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
    }
}
