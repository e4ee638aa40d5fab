//! Which wait strategy answers messages soonest, and at what cost in CPU time.
//!
//! The question is the one of Damianakis, Chen and Felten, "Reducing Waiting Costs in User-Level
//! Communication" (1997): is a thread that adapts how long it spins as fast as the better of
//! spinning and blocking, and how much more does it cost than blocking? It is asked for messages
//! between two workers, between a worker and a plain thread, and for a memcached server at low
//! load.

mod messages;

use loadgen::medians::Interval;
use policies::host::Machine;
use runtime::{DriverKind, WaitStrategy};
use serde::Serialize;

use messages::Pair;

use super::kernel_client::KernelClientTurn;
use crate::Error;
use crate::cores::CoreAssignment;
use crate::report::tables::{class_suffix, classes, interval_text, table};
use crate::report::{Document, Section, Table};
use crate::rounds::{
    Bound, DistanceClass, Figure, LoadKind, LoadPlan, LoadResult, Phases, Results, Runner, Turn,
};

const STRATEGIES: [WaitStrategy; 3] = [WaitStrategy::Block, WaitStrategy::Spin, WaitStrategy::Adaptive];
/// Ratios are to the better of block and spin.
const REFERENCES: [usize; 2] = [0, 1];
const ADAPTIVE: usize = 2;
const SERVER: &str = "memcached";

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
    pub rate: f64,
    pub connections: usize,
    pub server_warm_up: f64,
    pub server_duration: f64,
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
            rate: 5_000.0,
            connections: 8,
            server_warm_up: if quick { 0.1 } else { 0.2 },
            server_duration: if quick { 0.4 } else { 1.0 },
            seconds: seconds.unwrap_or(if quick { 55.0 } else { 280.0 }),
        }
    }

    pub fn steps(&self) -> usize {
        self.rounds * (Pair::ALL.len() * GAPS.len() + 1) * STRATEGIES.len()
    }
}

/// Measures messages of each pair at each gap, and the memcached server. Calls `progress` before
/// each turn.
pub fn measure(
    config: &WaitingConfig,
    cores: CoreAssignment,
    progress: &mut dyn FnMut(&str),
) -> Result<Results, Error> {
    const SERVER_SHARE: f64 = 0.3;
    let loads: Vec<_> = Pair::ALL.into_iter().flat_map(|pair| GAPS.map(|gap| (pair, gap))).collect();
    let mut shares = vec![(1.0 - SERVER_SHARE) / loads.len() as f64; loads.len()];
    shares.push(SERVER_SHARE);
    let mut phases = Phases::new(config.seconds, &shares);
    let mut runner = Runner::new(cores, progress);
    let names = STRATEGIES.map(|strategy| strategy.to_string());
    for (pair, gap) in loads {
        let name = match gap {
            [micros] => format!("{pair}, {micros} µs"),
            _ => format!("{pair}, mixed"),
        };
        let plan = LoadPlan::new(name, LoadKind::Closed, 0.0, config.rounds, phases.next_limit()?);
        runner.measure(plan, &names, |index| messages::turn(pair, gap, STRATEGIES[index], cores, config))?;
    }
    let plan = LoadPlan::new(SERVER, LoadKind::Open, config.rate, config.rounds, phases.next_limit()?);
    runner.measure(plan, &names, |index| server_turn(STRATEGIES[index], cores, config))?;
    Ok(runner.finish(&REFERENCES))
}

/// The memcached server at low load. A turn in which requests failed does not count: the latency is
/// not that of the load asked for.
fn server_turn(wait: WaitStrategy, cores: CoreAssignment, config: &WaitingConfig) -> Result<Turn, Error> {
    let turn = KernelClientTurn {
        cores,
        driver: config.driver,
        wait,
        connections: config.connections,
        rate: Some(config.rate),
        records: 1_000,
        warm_up: config.server_warm_up,
        duration: config.server_duration,
    };
    let (report, server) = turn.measure()?;
    let failed = report.errors + report.unanswered + report.misses;
    if failed > 0 {
        return Ok(Turn::invalid(format!("{failed} requests failed")));
    }
    Ok(Turn::new([
        (Figure::P50, report.latency.p50),
        (Figure::P99, report.latency.p99),
        (Figure::CpuShare, server.cpu_seconds / server.seconds * 100.0),
    ]))
}

/// What adaptive waits are to keep: a figure under loads of a kind, and what it is at most of the
/// better of spin and block's.
const CLAIMS: [(&str, LoadKind, Figure, f64); 4] = [
    ("round trip of messages", LoadKind::Closed, Figure::RoundTrip, 1.1),
    ("CPU time for messages", LoadKind::Closed, Figure::CpuPerRequest, 2.0),
    ("p99 at the memcached server", LoadKind::Open, Figure::P99, 1.1),
    ("CPU time at the memcached server", LoadKind::Open, Figure::CpuShare, 2.0),
];

/// A claim under one load.
#[derive(Debug, Serialize)]
pub struct Target {
    claim: usize,
    load: String,
    class: DistanceClass,
    ratio: Interval,
    /// How the ratio's interval lies to the limit.
    outcome: Bound,
}

fn targets(results: &Results) -> Vec<Target> {
    let mut targets = Vec::new();
    for (claim, (_, kind, figure, limit)) in CLAIMS.iter().enumerate() {
        for load in results.loads.iter().filter(|load| load.kind == *kind) {
            let Some(&ratio) = load.rows[ADAPTIVE].ratio(*figure) else { continue };
            let (load, class, outcome) = (load.name.clone(), load.class, Bound::of(&ratio, *limit));
            targets.push(Target { claim, load, class, ratio, outcome });
        }
    }
    targets
}

#[derive(Debug, Serialize)]
pub struct WaitingReport {
    pub machine: Machine,
    pub cores: CoreAssignment,
    pub cores_awake: bool,
    pub config: WaitingConfig,
    /// How adaptive waits compare, in a sentence each.
    pub verdict: Vec<String>,
    /// Each claim under each load that it is about.
    pub targets: Vec<Target>,
    pub results: Results,
}

impl WaitingReport {
    pub fn new(cores: CoreAssignment, cores_awake: bool, config: WaitingConfig, results: Results) -> Self {
        let targets = targets(&results);
        let verdict = (0..CLAIMS.len()).map(|claim| sentence(claim, &targets)).collect();
        Self { machine: Machine::read(), cores, cores_awake, config, verdict, targets, results }
    }

    pub fn document(&self) -> Document {
        let mut section = Section::new("strategies", "Messages, and a memcached server on loopback");
        section.caption =
            format!("{:.0} requests/s on {} connections", self.config.rate, self.config.connections);
        section.only_in_page = true;
        for class in classes(&self.results.loads) {
            let loads: Vec<&LoadResult> =
                self.results.loads.iter().filter(|load| load.class == class).collect();
            let figures =
                [Figure::RoundTrip, Figure::P50, Figure::P99, Figure::CpuPerRequest, Figure::CpuShare];
            section.tables.push(table(&format!("Medians{}", class_suffix(class)), &loads, &figures, &[]));
        }
        let row = |target: &Target| {
            let (what, _, _, limit) = CLAIMS[target.claim];
            vec![
                format!("{}{}", target.load, class_suffix(target.class)),
                format!("{what}: at most {limit} of the better's"),
                interval_text(&target.ratio, 2),
                target.outcome.to_string(),
            ]
        };
        let rows = self.targets.iter().map(row).collect();
        let claims = Table { names: 2, ..Table::new("", &["load", "claim", "ratio", ""], rows) };
        let mut notes = self.results.notes.clone();
        if self.cores.server == self.cores.client {
            notes.push("both sides share one core: who spins keeps the other one from answering".to_owned());
        }
        if !self.cores_awake {
            notes.push(
                "idle cores may sleep deeply, which a block pays for: /dev/cpu_dma_latency can't be written"
                    .to_owned(),
            );
        }
        let (server, client, driver) = (self.cores.server, self.cores.client, self.config.driver);
        Document {
            title: "Spin or block".to_owned(),
            findings: self.verdict.clone(),
            conditions: vec![format!("{}; cores {server} and {client}, {driver}", self.machine)],
            sections: vec![
                section,
                Section {
                    tables: vec![claims],
                    notes,
                    ..Section::new("claims", "What adaptive waits are to keep")
                },
            ],
        }
    }
}

/// How many of a claim's targets are met.
fn sentence(claim: usize, targets: &[Target]) -> String {
    let (what, _, _, limit) = CLAIMS[claim];
    let targets: Vec<&Target> = targets.iter().filter(|target| target.claim == claim).collect();
    if targets.is_empty() {
        return format!("Adaptive's {what}: not measured, because the machine disturbed every round.");
    }
    let count = |outcome| targets.iter().filter(|target| target.outcome == outcome).count();
    let mut text = format!(
        "Adaptive's {what} is at most {limit} of the better of spin and block's in {} of {} rows",
        count(Bound::Kept),
        targets.len()
    );
    for (outcome, words) in [(Bound::Broken, "above it"), (Bound::Undecided, "not decided")] {
        let rows = count(outcome);
        if rows > 0 {
            text.push_str(&format!("; in {rows} {words}"));
        }
    }
    text + "."
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounds::results_of;

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
        let outcomes = |report: &WaitingReport| -> Vec<Bound> {
            report.targets.iter().map(|target| target.outcome).collect()
        };
        let report = of(8);
        assert_eq!(outcomes(&report), [Bound::Kept, Bound::Broken, Bound::Kept, Bound::Broken]);
        assert_eq!(outcomes(&of(5)), [Bound::Undecided; 4]);
        let text = report.document().text();
        for part in [
            "1.05 [1.05, 1.05] |   kept |",
            "2.50 [2.50, 2.50] | broken |",
            "round trip of messages is at most 1.1 of the better of spin and block's in 1 of 2 rows; in 1 above it.",
            "CPU time at the memcached server: not measured",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
    }
}
