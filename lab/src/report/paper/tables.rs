//! Tables beside the paper's.

use crate::engine::DistanceClass;

use super::super::document::Table;
pub(super) use super::super::figures::ratio;
use super::super::figures::{NONE, NOT_MEASURED, class_suffix, table};
use super::super::table::interval_text;
use crate::engine::{Figure, LoadKind, LoadResult, Row, order_by_rounds};
use crate::experiments::paper::{EXHIBITS, Exhibit, PartResult, PublishedRow};

/// What a cell has that the machine can't count.
const NOT_COUNTED: &str = "not counted here";

/// The paper's own rows.
pub(super) fn published(exhibit: &Exhibit) -> Option<Table> {
    if exhibit.rows.is_empty() {
        return None;
    }
    let header =
        ["", "QPT (T=1s)", "IPQ App", "IPQ Sys", "IPQ Total", "Cycles App", "Cycles Sys", "IPC", "pkts/irq"];
    let row = |row: &PublishedRow| {
        vec![
            row.system.to_owned(),
            row.queries.to_string(),
            row.instructions_app.to_string(),
            row.instructions_system.to_string(),
            row.instructions.to_string(),
            format!("{}%", row.cycles_app),
            format!("{}%", row.cycles_system),
            row.instructions_per_cycle.to_string(),
            row.packets_per_interrupt.map_or_else(|| NONE.to_owned(), |packets| packets.to_string()),
        ]
    };
    Some(Table::new("The paper", &header, exhibit.rows.iter().map(row).collect()))
}

/// The loads of one kind, with the cores at one distance.
pub(super) fn loads(part: &PartResult, kind: LoadKind, class: DistanceClass) -> Vec<&LoadResult> {
    let mut loads: Vec<_> =
        part.loads.iter().filter(|load| load.kind == kind && load.class == class).collect();
    loads.sort_by(|a, b| a.at.total_cmp(&b.at));
    loads
}

/// What a row is called: the system, and if there are several loads, the load before it.
pub(super) fn title_of(load: &LoadResult, row: &Row, several: bool) -> String {
    if several { format!("{}: {}", load.name, row.contender) } else { row.contender.clone() }
}

/// The row of the paper beside a measured one; only for loads that are like the paper's.
pub(super) fn beside(
    exhibit: &Exhibit,
    part: &PartResult,
    load: &LoadResult,
    row: usize,
) -> Option<&'static PublishedRow> {
    /// The largest of the "small" files of Table 2, whose size the paper doesn't name.
    const SMALL_FILE: f64 = 1024.0;
    if exhibit.id == "table-2" && load.at > SMALL_FILE {
        return None;
    }
    let exhibit = EXHIBITS.iter().find(|other| other.id == exhibit.id)?;
    exhibit.row(part.published.get(row)?.as_deref()?)
}

/// A figure's median and interval.
pub(super) fn value(row: &Row, figure: Figure) -> String {
    match row.figures.get(&figure) {
        Some(measured) => interval_text(&measured.value, figure.digits()),
        None if figure == Figure::Capacity || !row.has_valid_turn() => NOT_MEASURED.to_owned(),
        None => NOT_COUNTED.to_owned(),
    }
}

/// A figure's median.
fn middle(row: &Row, figure: Figure) -> String {
    match row.figures.get(&figure) {
        Some(measured) => format!("{:.*}", figure.digits(), measured.value.median),
        None => value(row, figure),
    }
}

/// A row of `cells` for each contestant under each closed loop: from its title, what was measured, and the paper's row.
fn closed_loop_rows(
    exhibit: &Exhibit,
    part: &PartResult,
    class: DistanceClass,
    cells: impl Fn(String, &Row, Option<&PublishedRow>) -> Vec<String>,
) -> Vec<Vec<String>> {
    let loads = loads(part, LoadKind::Closed, class);
    let several = loads.len() > 1;
    let rows = loads.into_iter().flat_map(|load| load.rows.iter().enumerate().map(move |row| (load, row)));
    rows.map(|(load, (index, row))| {
        cells(title_of(load, row, several), row, beside(exhibit, part, load, index))
    })
    .collect()
}

/// Throughput beside the paper's, with the ratio to the first row of each.
pub(super) fn throughput(exhibit: &Exhibit, part: &PartResult, class: DistanceClass) -> Table {
    let rows = closed_loop_rows(exhibit, part, class, |title, row, published| {
        let text = |text: Option<String>| text.unwrap_or_else(|| NONE.to_owned());
        vec![
            title,
            text(published.map(|published| published.system.to_owned())),
            text(published.map(|published| published.queries.to_string())),
            value(row, Figure::Throughput),
            text(published.map(|published| format!("{:.2}", exhibit.ratio(published)))),
            ratio(row, Figure::Throughput),
            ratio(row, Figure::CpuPerRequest),
        ]
    });
    let title = format!("Requests per second, closed loop{}", class_suffix(class));
    let header = [
        "here",
        "the paper's row",
        "paper, req/s",
        "here, req/s [95 %]",
        "paper, ratio",
        "here, ratio [95 %]",
        "here, CPU ratio [95 %]",
    ];
    Table::new(title, &header, rows)
}

/// What the requests consist of, beside the paper's: each cell has the paper's figure and this machine's.
pub(super) fn breakdown(exhibit: &Exhibit, part: &PartResult, class: DistanceClass) -> Table {
    let rows = closed_loop_rows(exhibit, part, class, |title, row, published| {
        let pair = |paper: Option<String>, here: String| match paper {
            Some(paper) => format!("{paper} / {here}"),
            None => format!("{NONE} / {here}"),
        };
        let paper = |figure: fn(&PublishedRow) -> String| published.map(figure);
        // Both of the paper's terms: what is not the application's.
        let system = match row.figures.get(&Figure::App) {
            Some(app) => format!("{:.1}", 100.0 - app.value.median),
            None => NOT_MEASURED.to_owned(),
        };
        vec![
            title,
            pair(paper(|row| row.instructions.to_string()), middle(row, Figure::Instructions)),
            pair(
                paper(|row| row.instructions_per_cycle.to_string()),
                middle(row, Figure::InstructionsPerCycle),
            ),
            pair(paper(|row| row.cycles_app.to_string()), middle(row, Figure::App)),
            pair(paper(|row| row.cycles_system.to_string()), system),
            middle(row, Figure::Softirq),
            pair(
                published.and_then(|row| row.packets_per_interrupt).map(|packets| packets.to_string()),
                middle(row, Figure::PacketsPerInterrupt),
            ),
            value(row, Figure::CpuPerRequest),
            value(row, Figure::P99),
        ]
    });
    let header = [
        "here",
        "IPQ: paper / here",
        "IPC: paper / here",
        "App %: paper / here",
        "Sys %: paper / here",
        "of Sys, softirq %",
        "pkts/irq: paper / here",
        "CPU µs/req",
        "p99 µs",
    ];
    Table::new(format!("Breakdown, medians{}", class_suffix(class)), &header, rows)
}

/// Figures of all loads of a kind, for each distance at which it has rounds. Empty where none of them was measured.
pub(super) fn figures(
    title: &str,
    part: &PartResult,
    kind: LoadKind,
    values: &[Figure],
    ratios: &[Figure],
) -> Vec<Table> {
    let table = |class| {
        let loads = loads(part, kind, class);
        let has_any =
            loads.iter().flat_map(|load| &load.rows).any(|row| row.figures.contains_key(&values[0]));
        has_any.then(|| table(&format!("{title}{}", class_suffix(class)), &loads, values, ratios))
    };
    classes_of(part, kind).into_iter().filter_map(table).collect()
}

/// The distances at which loads of one kind have rounds, the one with most of them first.
pub(super) fn classes_of(part: &PartResult, kind: LoadKind) -> Vec<DistanceClass> {
    let loads = part.loads.iter().filter(|load| load.kind == kind);
    order_by_rounds(loads.map(|load| (load.class, load.rounds)))
}
