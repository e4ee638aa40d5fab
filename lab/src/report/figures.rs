//! Cells, tables and plots of figures, the same for every experiment.

use crate::engine::DistanceClass;
use loadgen::medians::Interval;

use super::document::{Plot, Section, Table};
use super::svg::{Axis, Point, Series, lines};
use super::table::{interval_text, ratio_text};
use crate::engine::{Figure, LoadKind, LoadResult, Row, order_by_rounds};

/// What a cell has where there is nothing to compare with.
pub(super) const NONE: &str = "-";

/// `, cores near`, where there is more than one class.
pub(super) fn class_suffix(class: DistanceClass) -> String {
    match class {
        DistanceClass::Single => String::new(),
        class => format!(", cores {class}"),
    }
}

/// The classes with rounds, the one with most first.
pub(super) fn classes(loads: &[LoadResult]) -> Vec<DistanceClass> {
    order_by_rounds(loads.iter().map(|load| (load.class, load.rounds)))
}

/// A load's name, with its share of the capacity.
pub(super) fn load_name(load: &LoadResult) -> String {
    match load.share {
        Some(share) => format!("{:.0} % ({})", share * 100.0, load.name),
        None => load.name.clone(),
    }
}

pub(super) fn value(row: &Row, figure: Figure) -> String {
    row.value(figure).map_or_else(|| NONE.to_owned(), |value| interval_text(value, figure.digits()))
}

pub(super) fn ratio(row: &Row, figure: Figure) -> String {
    let Some(measured) = row.figures.get(&figure) else { return NONE.to_owned() };
    match (row.status.text(), &measured.ratio) {
        (Some(status), _) => status,
        (None, Some(ratio)) => ratio_text(ratio),
        (None, None) if measured.reference == row.contender => "1".to_owned(),
        (None, None) => NONE.to_owned(),
    }
}

/// Values and ratios of figures, a row for each contender under each load.
pub(super) fn table(title: &str, loads: &[&LoadResult], values: &[Figure], ratios_of: &[Figure]) -> Table {
    let present = |figure: &&Figure| {
        loads.iter().flat_map(|load| &load.rows).any(|row| row.figures.contains_key(*figure))
    };
    let (values, ratios_of): (Vec<&Figure>, Vec<&Figure>) =
        (values.iter().filter(present).collect(), ratios_of.iter().filter(present).collect());
    let has_queue = loads.iter().flat_map(|load| &load.rows).any(|row| row.queue.is_some());
    let mut header = vec!["load".to_owned(), "server".to_owned()];
    header.extend(values.iter().map(|figure| figure.title().to_owned()));
    header.extend(
        ratios_of.iter().map(|figure| {
            format!("{} ratio", figure.title().trim_end_matches("/req").trim_end_matches(" µs"))
        }),
    );
    header.extend(has_queue.then(|| "queue".to_owned()));
    let cells = |load: &LoadResult, row: &Row| {
        let mut cells = vec![load_name(load), row.contender.clone()];
        cells.extend(values.iter().map(|figure| value(row, **figure)));
        cells.extend(ratios_of.iter().map(|figure| ratio(row, **figure)));
        cells.extend(has_queue.then(|| row.queue.clone().unwrap_or_else(|| NONE.to_owned())));
        cells
    };
    let rows = loads.iter().flat_map(|load| load.rows.iter().map(|row| cells(load, row)));
    Table { names: 2, header, ..Table::new(title, &[], rows.collect()) }
}

/// The ends of an interval; the median where too few rounds give none.
pub(super) fn ends(interval: &Interval) -> (f64, f64) {
    if interval.reaches_target() { (interval.low, interval.high) } else { (interval.median, interval.median) }
}

/// The medians of a figure over the loads, a line for each contestant.
pub(super) fn series(
    loads: &[&LoadResult],
    figure: Figure,
    x: impl Fn(&LoadResult, &Row) -> Option<f64>,
) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for load in loads {
        for row in &load.rows {
            let (Some(value), Some(x)) = (row.value(figure), x(load, row)) else { continue };
            let (low, high) = ends(value);
            let point = Point { x, y: value.median, low, high };
            match all.iter_mut().find(|series| series.name == row.contender) {
                Some(series) => series.points.push(point),
                None => all.push(Series { name: row.contender.clone(), points: vec![point] }),
            }
        }
    }
    all
}

/// A figure against the requests that were answered.
pub(super) fn rate_plot(name: &str, loads: &[&LoadResult], figure: Figure) -> Option<Result<Plot, String>> {
    let series = series(loads, figure, |_, row| row.median(Figure::Throughput));
    let x = Axis { title: "requests answered per second", logarithmic: false };
    let y = Axis { title: figure.title(), logarithmic: figure != Figure::CpuPerRequest };
    let title = format!("{} by requests per second, 95 % intervals", figure.title());
    (!series.is_empty()).then(|| Ok(Plot::new(name, &title, lines(x, y, &series)?)))
}

/// A point for each contender.
fn ratio_plot(name: &str, load: &LoadResult, figure: Figure) -> Option<Result<Plot, String>> {
    let point = |(index, row): (usize, &Row)| {
        let ratio = row.ratio(figure)?;
        let (low, high) = ends(ratio);
        let points = vec![Point { x: index as f64, y: ratio.median, low, high }];
        Some(Series { name: row.contender.clone(), points })
    };
    let series: Vec<Series> = load.rows.iter().enumerate().filter_map(point).collect();
    let (x, y) =
        (Axis { title: "", logarithmic: false }, Axis { title: "over the reference's", logarithmic: false });
    let title = format!("{}: {} over the reference's, 95 % intervals", load.name, figure.title());
    (!series.is_empty()).then(|| Ok(Plot::new(name, &title, lines(x, y, &series)?)))
}

/// What the kinds of loads are called, and the figures that are compared under each.
const KINDS: [(LoadKind, &str, &[Figure], &[Figure]); 4] = [
    (LoadKind::Capacity, "Capacity", &[Figure::Capacity], &[Figure::Capacity]),
    (
        LoadKind::Open,
        "At given rates",
        &[Figure::Throughput, Figure::P50, Figure::P99, Figure::CpuPerRequest],
        &[Figure::P50, Figure::P99, Figure::CpuPerRequest],
    ),
    (
        LoadKind::Steps,
        "Under steps",
        &[Figure::Throughput, Figure::P50, Figure::P99, Figure::CpuPerRequest],
        &[Figure::P50, Figure::P99, Figure::CpuPerRequest],
    ),
    (
        LoadKind::Closed,
        "Closed loop",
        &[Figure::Throughput, Figure::P50, Figure::P99, Figure::CpuPerRequest],
        &[Figure::Throughput, Figure::P99, Figure::CpuPerRequest],
    ),
];

/// Figures that say what the others consist of.
const PARTS: [Figure; 21] = [
    Figure::Answered,
    Figure::KernelThreadCpu,
    Figure::Wakes,
    Figure::PacketsPerInterrupt,
    Figure::BusyPollShare,
    Figure::CoreBusy,
    Figure::LoadBusy,
    Figure::Paused,
    Figure::ReceivedShare,
    Figure::AttachCpu,
    Figure::App,
    Figure::System,
    Figure::Softirq,
    Figure::Instructions,
    Figure::InstructionsPerCycle,
    Figure::CacheMisses,
    Figure::Waits,
    Figure::Calls,
    Figure::Crossings,
    Figure::Rest,
    Figure::Potential,
];

/// Everything that was measured: a section for each kind of load, and one for what the figures
/// consist of.
pub(super) fn sections(loads: &[LoadResult], notes: &[String]) -> Vec<Section> {
    let classes = classes(loads);
    let of = |kind: LoadKind, class: DistanceClass| -> Vec<&LoadResult> {
        loads.iter().filter(|load| load.kind == kind && load.class == class).collect()
    };
    let mut sections = Vec::new();
    let mut parts = Section::new("parts", "What the figures consist of");
    for (kind, name, values, ratios) in KINDS {
        let id = name.to_lowercase().replace(' ', "-");
        let mut section = Section::new(&id, name);
        for &class in &classes {
            let loads = of(kind, class);
            if loads.is_empty() {
                continue;
            }
            let title = format!("Medians with 95 % intervals{}", class_suffix(class));
            section.tables.push(table(&title, &loads, values, ratios));
            if kind != LoadKind::Capacity {
                parts.tables.push(table(&format!("{name}{}", class_suffix(class)), &loads, &PARTS, &[]));
            }
            let name = |figure: Figure| {
                let class = if class == DistanceClass::Single { String::new() } else { format!("-{class}") };
                format!(
                    "{id}-{}{class}",
                    figure.title().split([' ', '/']).next().unwrap_or_default().to_lowercase()
                )
            };
            if kind == LoadKind::Open && loads.len() > 1 {
                for figure in [Figure::P50, Figure::P99, Figure::CpuPerRequest] {
                    rate_plot(&name(figure), &loads, figure)
                        .into_iter()
                        .for_each(|plot| section.add_plot(plot));
                }
            }
            if let ([load], Some(figure)) = (&loads[..], ratios.first()) {
                let plot = ratio_plot(&name(*figure), load, *figure);
                plot.into_iter().for_each(|plot| section.add_plot(plot));
            }
        }
        if !section.tables.is_empty() {
            sections.push(section);
        }
    }
    let mut rounds = Section::new("rounds", "Rounds, and what was left out");
    rounds.notes = notes.to_vec();
    parts.only_in_page = true;
    sections.extend([parts, rounds]);
    sections
}
