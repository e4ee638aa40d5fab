//! Which plots an exhibit has.

use loadgen::interleaved_rounds::DistanceClass;
use loadgen::medians::Interval;
use serde::Serialize;

use super::svg::{Axis, Point, RatioLine, Series, lines, ratios};
use super::tables::{beside, loads, title_of};
use crate::experiments::paper::{Exhibit, Figure, LoadKind, MeasuredLoad, MeasuredRow, PartResult};

/// A plot.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ReportPlot {
    /// The name of its file, without `.svg`.
    pub(super) name: String,
    pub(super) title: String,
    /// The image, which goes into files of its own.
    #[serde(skip)]
    pub(super) svg: String,
}

/// A plot, unless there is nothing to draw.
fn plot(name: &str, title: &str, svg: Result<String, String>) -> Result<ReportPlot, String> {
    Ok(ReportPlot { name: name.to_owned(), title: title.to_owned(), svg: svg? })
}

/// The medians of a figure over the loads, a line for each contestant.
fn series(
    loads: &[&MeasuredLoad],
    figure: Figure,
    x: impl Fn(&MeasuredLoad, &MeasuredRow) -> Option<f64>,
) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for load in loads {
        for row in &load.rows {
            let (Some(measured), Some(x)) = (row.figures.get(&figure), x(load, row)) else { continue };
            let (low, high) = ends(&measured.value);
            let point = Point { x, y: measured.value.median, low, high };
            match all.iter_mut().find(|series| series.name == row.system) {
                Some(series) => series.points.push(point),
                None => all.push(Series { name: row.system.clone(), points: vec![point] }),
            }
        }
    }
    all
}

/// The ends of an interval; the median where too few rounds give none.
fn ends(interval: &Interval) -> (f64, f64) {
    if interval.reaches_target() { (interval.low, interval.high) } else { (interval.median, interval.median) }
}

/// The ratios of throughput beside the paper's.
pub(super) fn ratio_plot(
    exhibit: &Exhibit,
    part: &PartResult,
    class: DistanceClass,
) -> Option<Result<ReportPlot, String>> {
    let loads = loads(part, LoadKind::Closed, class);
    let several = loads.len() > 1;
    let mut rows = Vec::new();
    for load in loads {
        for row in load.rows.iter().filter(|row| row.system != part.reference) {
            let here = row.figures.get(&Figure::Throughput).and_then(|figure| figure.ratio).map(|ratio| {
                let (low, high) = ends(&ratio);
                (ratio.median, low, high)
            });
            let published = beside(exhibit, load, row).map(|published| exhibit.ratio(published));
            let name = title_of(load, row, several);
            if here.is_some() || published.is_some() {
                rows.push(RatioLine { name, published, here });
            }
        }
    }
    let title = "throughput over the first row's; dot: here, with its 95 % interval; circle: the paper";
    (!rows.is_empty()).then(|| plot(exhibit.id, "Throughput ratios", ratios(title, &rows)))
}

/// Latency against throughput.
pub(super) fn latency_plot(
    name: &str,
    part: &PartResult,
    class: DistanceClass,
) -> Option<Result<ReportPlot, String>> {
    let loads = loads(part, LoadKind::Open, class);
    let throughput =
        |_: &MeasuredLoad, row: &MeasuredRow| Some(row.figures.get(&Figure::Throughput)?.value.median);
    let series = series(&loads, Figure::P99, throughput);
    let x = Axis { title: "requests answered per second", logarithmic: false };
    let y = Axis { title: "99th percentile of the latency, µs", logarithmic: true };
    (!series.is_empty())
        .then(|| plot(name, "99th percentile against throughput, 95 % intervals", lines(x, y, &series)))
}

/// A figure over the number of connections.
pub(super) fn connections_plot(
    name: &str,
    figure: Figure,
    part: &PartResult,
    class: DistanceClass,
) -> Option<Result<ReportPlot, String>> {
    let loads = loads(part, LoadKind::Closed, class);
    let series = series(&loads, figure, |load, _| Some(load.at));
    let x = Axis { title: "connections", logarithmic: true };
    let y = Axis { title: figure.title(), logarithmic: false };
    let title = format!("{} by connections, 95 % intervals", figure.title());
    (!series.is_empty()).then(|| plot(name, &title, lines(x, y, &series)))
}
