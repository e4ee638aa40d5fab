//! Comparisons under a fleet, as the report shows them.

use std::path::Path;

use loadgen::interleaved_rounds::ClassRounds;
use loadgen::medians::median_interval;

use super::super::core_assignment::CoreAssignment;
use super::super::fleet_comparison::{
    Contender, FleetComparison, FleetComparisonConfig, FleetComparisonResult, ServerCommand, TurnMeasurement,
    workload_memory,
};
use super::config::PaperConfig;
use super::measured::{
    Figure, FigureCollector, LoadKind, MeasuredFigure, MeasuredLoad, MeasuredRow, PartResult,
};
use crate::Error;
use crate::fleet::{FleetPacing, FleetRequests};

/// A contender with the paper's row that it corresponds to.
pub(super) type Published = (Contender, Option<&'static str>);

/// The workload of all parts under a fleet.
pub(super) fn requests(records: u64) -> FleetRequests {
    FleetRequests::Memcached(Box::new(PaperConfig::etc(records)))
}

/// memcached with room for all records.
pub(super) fn memcached(program: &Path, records: u64) -> ServerCommand {
    const LEAST: u64 = 256;
    let mebibytes = (workload_memory(&PaperConfig::etc(records)) >> 20).max(LEAST);
    ServerCommand::memcached_with_memory(program.to_owned(), mebibytes)
}

/// The generator and its load, for the report.
pub(super) fn workload_text(connections: &str, records: u64) -> String {
    format!(
        "a fleet of {connections} on one core, ETC keys and values, {records} records, one set in 31 requests, one request \
         in flight on each connection"
    )
}

/// Runs a comparison.
pub(super) fn compare(
    config: FleetComparisonConfig,
    published: &[Option<&'static str>],
    cores: CoreAssignment,
    workload: String,
    progress: &mut dyn FnMut(&str),
) -> Result<(PartResult, FleetComparisonResult), Error> {
    let run = |config: &FleetComparisonConfig, progress: &mut dyn FnMut(&str)| {
        FleetComparison::start(config.clone(), cores)?.run(|step| progress(step))
    };
    let (config, result, no_capacity) = match run(&config, progress) {
        Err(Error::NoCapacity(reason)) => {
            // The closed loop needs none.
            let closed = FleetComparisonConfig { shares: Vec::new(), ..config };
            let result = run(&closed, progress)?;
            (
                closed,
                result,
                Some(format!("no rates: no capacity was found that they could be shares of: {reason}")),
            )
        }
        result => (config, result?, None),
    };
    let reference = config.contenders[config.reference_of(0)].name();
    let mut part = PartResult {
        reference,
        workload,
        loads: loads(&config, published, &result),
        notes: notes(&result),
        failure: None,
    };
    part.notes.extend(no_capacity);
    for (contender, running) in config.contenders.iter().zip(&result.servers) {
        if let Some(running) = running.as_ref().filter(|running| !running.steps_down.is_empty()) {
            let reasons = running.steps_down.join("; ");
            part.notes.push(format!("{}: {} ran: {reasons}", contender.name(), running.ran));
        }
    }
    for (contender, lost) in config.contenders.iter().zip(&result.lost_frames) {
        part.notes.extend(lost.map(|lost| format!("{}: {lost}", contender.name())));
    }
    for load in part.loads.iter_mut().filter(|load| load.kind == LoadKind::Closed) {
        for (row, share) in load.rows.iter_mut().zip(&result.idle_cpu) {
            let idle = MeasuredFigure { value: median_interval(&[share * 100.0]), ratio: None };
            row.figures.insert(Figure::IdleCpu, idle);
        }
    }
    part.sort_classes();
    Ok((part, result))
}

fn loads(
    config: &FleetComparisonConfig,
    published: &[Option<&'static str>],
    result: &FleetComparisonResult,
) -> Vec<MeasuredLoad> {
    let mut loads = Vec::new();
    let systems = || config.contenders.iter().map(Contender::name).zip(published).enumerate();
    let row = |system, published: &Option<&str>, figures| MeasuredRow {
        system,
        published: published.map(str::to_owned),
        figures,
    };
    for class in with_rounds(&result.capacity.measured.finished.classes) {
        let rows = systems().map(|(index, (name, published))| {
            let mut figures = FigureCollector::new(&class.rounds, index, config.reference_of(index));
            figures.add(Figure::Capacity, |capacity| Some(capacity.rate));
            row(name, published, figures.figures)
        });
        let name = format!("capacity (p99 of at most {:.0} µs)", config.capacity_p99_us);
        let (kind, rounds) = (LoadKind::Capacity, class.rounds.len());
        loads.push(MeasuredLoad { name, kind, at: 0.0, class: class.class, rounds, rows: rows.collect() });
    }
    for load in &result.loads {
        let (kind, at) = match load.pacing {
            Some(FleetPacing::Open { rate }) => (LoadKind::Open, rate),
            _ => (LoadKind::Closed, config.connections as f64),
        };
        let name = match load.share {
            Some(share) => {
                format!("{:.0} % of the capacity of {}", share * 100.0, config.contenders[0].name())
            }
            None => load.measured.load.clone(),
        };
        for class in with_rounds(&load.measured.finished.classes) {
            let rows = systems().map(|(index, (name, published))| {
                let mut figures = FigureCollector::new(&class.rounds, index, config.reference_of(index));
                figures.add(Figure::Throughput, |turn: &TurnMeasurement| Some(turn.fleet.qps));
                figures.add(Figure::P50, |turn| Some(turn.fleet.latency.p50));
                figures.add(Figure::P99, |turn| Some(turn.fleet.latency.p99));
                figures.add_server(|turn| turn.figures);
                row(name, published, figures.figures)
            });
            let (rows, rounds) = (rows.collect(), class.rounds.len());
            loads.push(MeasuredLoad { name: name.clone(), kind, at, class: class.class, rounds, rows });
        }
    }
    loads
}

fn with_rounds<T>(classes: &[ClassRounds<T>]) -> impl Iterator<Item = &ClassRounds<T>> {
    classes.iter().filter(|class| !class.rounds.is_empty())
}

/// How many rounds there were at which distance, and what was left out.
fn notes(result: &FleetComparisonResult) -> Vec<String> {
    let mut notes = Vec::new();
    if result.capacity.pacing.is_none() && !result.capacity.measured.finished.leading().rounds.is_empty() {
        notes.push(result.capacity.measured.summary());
    }
    for load in &result.loads {
        let reasons = load.invalid.first().map(|turn| format!(", for example: {}", turn.reason));
        notes.push(format!("{}{}", load.measured.summary(), reasons.unwrap_or_default()));
        let drops: u64 = turns(&load.measured.finished.classes).map(|turn| turn.drops).sum();
        if drops > 0 {
            notes.push(format!(
                "{}: {drops} packets found the server's receive ring full",
                load.measured.load
            ));
        }
        let busy = turns(&load.measured.finished.classes).map(|turn| turn.fleet.busy).fold(0.0, f64::max);
        if busy > 0.95 {
            let name = &load.measured.load;
            notes.push(format!(
                "{name}: the fleet was up to {:.0} % busy, so servers may be capable of more",
                busy * 100.0
            ));
        }
    }
    notes
}

fn turns(classes: &[ClassRounds<TurnMeasurement>]) -> impl Iterator<Item = &TurnMeasurement> {
    let rounds = classes.iter().flat_map(|class| &class.rounds);
    rounds.flat_map(|round| &round.turns).filter_map(|turn| turn.value.as_ref())
}
