//! Cells, tables and plots of figures, the same for every experiment.

use comfy_table::{CellAlignment, TableStyle, presets};
use loadgen::medians::Interval;

use super::document::{Section, Table};
use super::plots::{Axis, Series, lines};
pub(crate) use crate::rounds::order_by_rounds as classes;
use crate::rounds::{DistanceClass, Figure, LoadKind, LoadResult, Row};

/// What a cell has where there is nothing to compare with.
pub(crate) const NONE: &str = "-";

/// A table of text without borders, whose first column is aligned to the left.
pub(crate) fn plain_table(header: &[String], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    styled_table(presets::NOTHING, header, rows, 1)
}

/// A table of text with lines, whose first columns, `names`, are aligned to the left.
pub(super) fn styled_table(
    style: TableStyle,
    header: &[String],
    rows: impl IntoIterator<Item = Vec<String>>,
    names: usize,
) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(style).set_header(header).add_rows(rows);
    for column in table.column_iter_mut().skip(names) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

/// A median with its interval, for example `1.80 [1.60, 2.00]`; with fewer values than 95 %
/// confidence needs, the median and how many values it is of.
pub fn interval_text(interval: &Interval, digits: usize) -> String {
    let Interval { median, low, high, count, .. } = interval;
    if *count == 0 {
        return "not measured".to_owned();
    }
    if !interval.reaches_target() {
        let rounds = if *count == 1 { "round" } else { "rounds" };
        return format!("{median:.digits$} (no interval, {count} {rounds})");
    }
    format!("{median:.digits$} [{low:.digits$}, {high:.digits$}]")
}

/// How far the ends of an interval may be apart, as a factor, for it to say something.
const WIDEST: f64 = 2.0;

/// Whether an interval says nothing: too few rounds, or ends that are more than a factor of two
/// apart.
pub(crate) fn is_undecided(interval: &Interval) -> bool {
    !interval.reaches_target() || interval.low <= 0.0 || interval.high > interval.low * WIDEST
}

/// A ratio, or `can't tell`.
pub(crate) fn ratio_text(ratio: &Interval) -> String {
    if ratio.reaches_target() && is_undecided(ratio) {
        return "can't tell".to_owned();
    }
    interval_text(ratio, 2)
}

/// `, cores near`, where there is more than one class.
pub(crate) fn class_suffix(class: DistanceClass) -> String {
    match class {
        DistanceClass::Single => String::new(),
        class => format!(", cores {class}"),
    }
}

pub(crate) fn value(row: &Row, figure: Figure) -> String {
    row.value(figure).map_or_else(|| NONE.to_owned(), |value| interval_text(value, figure.digits()))
}

/// A contender's figure over the reference's.
pub(crate) fn ratio(load: &LoadResult, contender: usize, figure: Figure) -> String {
    let row = &load.rows[contender];
    let Some(measured) = row.figures.get(&figure) else { return NONE.to_owned() };
    match (row.status.text(), &measured.ratio) {
        (Some(status), _) => status,
        (None, Some(ratio)) => ratio_text(ratio),
        (None, None) if measured.reference == Some(contender) => "1".to_owned(),
        (None, None) => NONE.to_owned(),
    }
}

/// Values and ratios of figures, a row for each contender under each load.
pub(crate) fn table(title: &str, loads: &[&LoadResult], values: &[Figure], ratios: &[Figure]) -> Table {
    let rows = || loads.iter().flat_map(|load| &load.rows);
    let present = |figures: &[Figure]| -> Vec<Figure> {
        let has = |figure: &Figure| rows().any(|row| row.figures.contains_key(figure));
        figures.iter().copied().filter(has).collect()
    };
    let (values, ratios) = (present(values), present(ratios));
    let has_queue = rows().any(|row| row.queue.is_some());
    let mut header = vec!["load".to_owned(), "server".to_owned()];
    header.extend(values.iter().map(|figure| figure.title().to_owned()));
    let unit_less = |figure: &Figure| figure.title().trim_end_matches("/req").trim_end_matches(" µs");
    header.extend(ratios.iter().map(|figure| format!("{} ratio", unit_less(figure))));
    header.extend(has_queue.then(|| "queue".to_owned()));
    let mut cells = Vec::new();
    for load in loads {
        for (contender, row) in load.rows.iter().enumerate() {
            let mut of_row = vec![load.name.clone(), row.contender.clone()];
            of_row.extend(values.iter().map(|figure| value(row, *figure)));
            of_row.extend(ratios.iter().map(|figure| ratio(load, contender, *figure)));
            of_row.extend(has_queue.then(|| row.queue.clone().unwrap_or_else(|| NONE.to_owned())));
            cells.push(of_row);
        }
    }
    Table { names: 2, header, ..Table::new(title, &[], cells) }
}

/// The medians of a figure over the loads, a line for each name of a contender: not all loads have
/// the same ones.
pub(crate) fn series(
    loads: &[&LoadResult],
    figure: Figure,
    x: impl Fn(&LoadResult, &Row) -> Option<f64>,
) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for (load, row) in loads.iter().flat_map(|load| load.rows.iter().map(move |row| (load, row))) {
        let (Some(value), Some(x)) = (row.value(figure), x(load, row)) else { continue };
        let point = (x, *value);
        match all.iter_mut().find(|series| series.name == row.contender) {
            Some(series) => series.points.push(point),
            None => all.push(Series { name: row.contender.clone(), points: vec![point] }),
        }
    }
    all
}

const RATE: [Figure; 4] = [Figure::Throughput, Figure::P50, Figure::P99, Figure::CpuPerRequest];
/// What the kinds of loads are called, and the figures that are compared under each.
const KINDS: [(LoadKind, &str, &[Figure], &[Figure]); 2] = [
    (LoadKind::Open, "At given rates", &RATE, &[Figure::P50, Figure::P99, Figure::CpuPerRequest]),
    (LoadKind::Closed, "Closed loop", &RATE, &[Figure::Throughput, Figure::P99, Figure::CpuPerRequest]),
];

/// Everything that was measured: a section for each kind of load, and one for what the figures
/// consist of.
pub(crate) fn sections(loads: &[LoadResult], notes: &[String]) -> Vec<Section> {
    let part_figures: Vec<Figure> = Figure::ALL.iter().copied().filter(|it| it.is_part()).collect();
    let mut sections = Vec::new();
    let mut parts = Section::new("parts", "What the figures consist of");
    parts.only_in_page = true;
    for (kind, name, values, ratios) in KINDS {
        let id = name.to_lowercase().replace(' ', "-");
        let mut section = Section::new(&id, name);
        for class in classes(loads) {
            let of = |load: &&LoadResult| load.kind == kind && load.class == class;
            let loads: Vec<&LoadResult> = loads.iter().filter(of).collect();
            if loads.is_empty() {
                continue;
            }
            let suffix = class_suffix(class);
            let title = format!("Medians with 95 % intervals{suffix}");
            section.tables.push(table(&title, &loads, values, ratios));
            parts.tables.push(table(&format!("{name}{suffix}"), &loads, &part_figures, &[]));
            if kind == LoadKind::Open && loads.iter().any(|load| load.at != loads[0].at) {
                add_plots(&mut section, &loads);
            }
        }
        if !section.tables.is_empty() {
            sections.push(section);
        }
    }
    let rounds = Section { notes: notes.to_vec(), ..Section::new("rounds", "Rounds, and what was left out") };
    sections.extend([parts, rounds]);
    sections
}

/// Plots of several rates in one class: figures against the requests that were answered.
fn add_plots(section: &mut Section, loads: &[&LoadResult]) {
    for figure in [Figure::P50, Figure::P99, Figure::CpuPerRequest] {
        let series = series(loads, figure, |_, row| row.median(Figure::Throughput));
        if series.is_empty() {
            continue;
        }
        let x = Axis { title: "requests answered per second", logarithmic: false };
        let y = Axis { title: figure.title(), logarithmic: figure != Figure::CpuPerRequest };
        let title = format!(
            "{} by requests per second{}, 95 % intervals",
            figure.title(),
            class_suffix(loads[0].class)
        );
        section.add_plot(&title, lines(x, y, &series));
    }
}

#[cfg(test)]
mod tests {
    use loadgen::medians::median_interval;

    use super::*;

    #[test]
    fn an_interval_wider_than_a_factor_of_two_is_not_told() {
        let ratio = |low: f64, high: f64| median_interval(&[low, low, 1.0, 1.0, high, high]);
        assert_eq!(ratio_text(&ratio(0.8, 1.5)), "1.00 [0.80, 1.50]");
        assert_eq!(ratio_text(&ratio(0.06, 30.0)), "can't tell");
        assert!(is_undecided(&median_interval(&[1.0; 5])) && !is_undecided(&median_interval(&[1.0; 6])));
    }

    #[test]
    fn fewer_than_six_rounds_give_no_interval() {
        assert_eq!(interval_text(&median_interval(&[1.0, 2.0, 3.0]), 1), "2.0 (no interval, 3 rounds)");
        assert_eq!(interval_text(&median_interval(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), 1), "3.5 [1.0, 6.0]");
    }
}
