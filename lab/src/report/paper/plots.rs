//! Plots beside the paper's.

use crate::engine::DistanceClass;

use super::super::document::Plot;
use super::super::figures::{ends, series};
use super::super::svg::{Axis, RatioLine, lines, ratios};
use super::tables::{beside, loads, title_of};
use crate::engine::{Figure, LoadKind};
use crate::experiments::paper::{Exhibit, PartResult};

/// The ratios of throughput beside the paper's.
pub(super) fn ratio_plot(
    exhibit: &Exhibit,
    part: &PartResult,
    class: DistanceClass,
) -> Option<Result<Plot, String>> {
    let loads = loads(part, LoadKind::Closed, class);
    let several = loads.len() > 1;
    let mut rows = Vec::new();
    for load in loads {
        let others = load.rows.iter().enumerate().filter(|(_, row)| row.contender != part.reference);
        for (index, row) in others {
            let here = row.figures.get(&Figure::Throughput).and_then(|figure| figure.ratio).map(|ratio| {
                let (low, high) = ends(&ratio);
                (ratio.median, low, high)
            });
            let published = beside(exhibit, part, load, index).map(|published| exhibit.ratio(published));
            let name = title_of(load, row, several);
            if here.is_some() || published.is_some() {
                rows.push(RatioLine { name, published, here });
            }
        }
    }
    let title = "throughput over the first row's; dot: here, with its 95 % interval; circle: the paper";
    (!rows.is_empty()).then(|| Ok(Plot::new(exhibit.id, "Throughput ratios", ratios(title, &rows)?)))
}

/// A figure over the number of connections.
pub(super) fn connections_plot(
    name: &str,
    figure: Figure,
    part: &PartResult,
    class: DistanceClass,
) -> Option<Result<Plot, String>> {
    let loads = loads(part, LoadKind::Closed, class);
    let series = series(&loads, figure, |load, _| Some(load.at));
    let x = Axis { title: "connections", logarithmic: true };
    let y = Axis { title: figure.title(), logarithmic: false };
    let title = format!("{} by connections, 95 % intervals", figure.title());
    (!series.is_empty()).then(|| Ok(Plot::new(name, &title, lines(x, y, &series)?)))
}
