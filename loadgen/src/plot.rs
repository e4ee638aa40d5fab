//! Plots: a run over time, and the curve of latency over rate.

use std::path::Path;

use loadgen::Moment;
use plotters::coord::Shift;
use plotters::prelude::*;
use textplots::{Chart, Plot, Shape};

use crate::Failure;

/// A rate with its latencies, µs.
#[derive(Debug, Clone, Copy)]
pub struct Point {
    pub qps: f64,
    pub p50: f64,
    pub p99: f64,
}

const SIZE: (u32, u32) = (960, 640);

type Panel<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Line = Vec<(f64, f64)>;

/// One panel: lines over a common axis.
struct Lines<'a> {
    x: &'a str,
    y: &'a str,
    lines: Vec<(&'a str, RGBColor, Line)>,
}

fn top(values: impl Iterator<Item = f64>) -> f64 {
    // Some room above, and an axis also where all is 0.
    values.fold(0.0, f64::max).max(1e-9) * 1.05
}

fn draw(panel: &Panel<'_>, lines: &Lines<'_>) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let points = || lines.lines.iter().flat_map(|(_, _, line)| line.iter());
    let (right, high) = (top(points().map(|point| point.0)), top(points().map(|point| point.1)));
    let mut chart = ChartBuilder::on(panel)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(80)
        .build_cartesian_2d(0.0..right, 0.0..high)
        .map_err(|error| failed(&error))?;
    chart
        .configure_mesh()
        .x_desc(lines.x)
        .y_desc(lines.y)
        .light_line_style(WHITE.mix(0.0))
        .draw()
        .map_err(|error| failed(&error))?;
    for (name, color, line) in &lines.lines {
        let color = *color;
        chart
            .draw_series(LineSeries::new(line.iter().copied(), color.stroke_width(2)))
            .map_err(|error| failed(&error))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .draw()
        .map_err(|error| failed(&error))?;
    Ok(())
}

fn save(path: &Path, panels: &[Lines<'_>]) -> Result<(), Failure> {
    let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(|error| wrong(&error))?;
        for (panel, lines) in root.split_evenly((panels.len(), 1)).iter().zip(panels) {
            draw(panel, lines)?;
        }
        root.present().map_err(|error| wrong(&error))?;
    }
    Ok(std::fs::write(path, text).map_err(|error| wrong(&error))?)
}

/// Rate and latency over time.
pub fn series(path: &Path, series: &[Moment]) -> Result<(), Failure> {
    let line = |figure: fn(&Moment) -> f64| series.iter().map(|moment| (moment.at, figure(moment))).collect();
    save(
        path,
        &[
            Lines { x: "s", y: "requests/s", lines: vec![("QPS", BLUE, line(|moment| moment.qps))] },
            Lines {
                x: "s",
                y: "µs",
                lines: vec![
                    ("p50", BLUE, line(|moment| moment.p50)),
                    ("p99", RED, line(|moment| moment.p99)),
                ],
            },
        ],
    )
}

/// Latency over rate.
pub fn curve(path: &Path, points: &[Point]) -> Result<(), Failure> {
    let line = |figure: fn(&Point) -> f64| points.iter().map(|point| (point.qps, figure(point))).collect();
    let lines = vec![("p50", BLUE, line(|point| point.p50)), ("p99", RED, line(|point| point.p99))];
    save(path, &[Lines { x: "requests/s", y: "µs", lines }])
}

/// The 99th percentile over the rate, in characters.
pub fn in_characters(points: &[Point]) -> String {
    let line: Vec<(f32, f32)> = points.iter().map(|point| (point.qps as f32, point.p99 as f32)).collect();
    let (Some(first), Some(last)) = (line.first(), line.last()) else { return String::new() };
    if points.len() < 2 || last.0 <= first.0 {
        return String::new();
    }
    let shape = Shape::Lines(&line);
    let mut chart = Chart::new(120, 40, first.0, last.0);
    let chart = chart.lineplot(&shape);
    chart.axis();
    chart.figures();
    format!("99th percentile (µs) over requests/s\n{chart}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points() -> Vec<Point> {
        (1..6)
            .map(|step| Point { qps: f64::from(step) * 1000.0, p50: 50.0, p99: 70.0 * f64::from(step) })
            .collect()
    }

    #[test]
    fn a_curve_has_both_its_lines_and_its_axes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        curve(file.path(), &points()).unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        assert!(text.contains("requests/s") && text.contains("p99"), "{text}");
        assert!(text.matches("<polyline").count() >= 2, "{text}");
    }

    #[test]
    fn plots_of_nothing_and_of_one_point_are_empty_and_no_panic() {
        let file = tempfile::NamedTempFile::new().unwrap();
        series(file.path(), &[]).unwrap();
        curve(file.path(), &points()[..1]).unwrap();
        assert_eq!(in_characters(&[]), "");
        assert_eq!(in_characters(&points()[..1]), "");
        let text = in_characters(&points());
        assert!(text.contains("350") && text.contains("5000"), "{text}");
    }

    #[test]
    fn a_path_that_can_not_be_written_is_named() {
        let error = curve(Path::new("/nowhere/x.svg"), &points()).unwrap_err().to_string();
        assert!(error.contains("/nowhere/x.svg"), "{error}");
    }
}
