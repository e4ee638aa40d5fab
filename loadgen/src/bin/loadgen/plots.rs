//! Plots: SVG files and charts for the terminal.

use std::error::Error;
use std::path::Path;

use loadgen::SeriesPoint;
use plotters::coord::Shift;
use plotters::prelude::*;
use textplots::{Chart, Plot, Shape};

const SIZE: (u32, u32) = (960, 640);

type Panel<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Line = Vec<(f64, f64)>;

/// A rate with its latencies, µs.
#[derive(Debug, Clone, Copy)]
pub struct RatePoint {
    pub qps: f64,
    pub p50: f64,
    pub p99: f64,
}

/// One panel: lines with common axes.
struct LineChart<'a> {
    x: &'a str,
    y: &'a str,
    lines: Vec<(&'a str, RGBColor, Line)>,
}

fn axis_end(values: impl Iterator<Item = f64>) -> f64 {
    // Leave room above the largest value. The axis must not be empty if all values are 0.
    values.fold(0.0, f64::max).max(1e-9) * 1.05
}

fn draw(panel: &Panel<'_>, lines: &LineChart<'_>) -> Result<(), Box<dyn Error>> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let points = || lines.lines.iter().flat_map(|(_, _, line)| line.iter());
    let (right, high) = (axis_end(points().map(|point| point.0)), axis_end(points().map(|point| point.1)));
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

fn save(path: &Path, panels: &[LineChart<'_>]) -> Result<(), Box<dyn Error>> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(|error| failed(&error))?;
        for (panel, lines) in root.split_evenly((panels.len(), 1)).iter().zip(panels) {
            draw(panel, lines)?;
        }
        root.present().map_err(|error| failed(&error))?;
    }
    Ok(std::fs::write(path, text).map_err(|error| failed(&error))?)
}

/// Plots rate and latency over time.
pub fn plot_series(path: &Path, series: &[SeriesPoint]) -> Result<(), Box<dyn Error>> {
    let line =
        |figure: fn(&SeriesPoint) -> f64| series.iter().map(|point| (point.at, figure(point))).collect();
    save(
        path,
        &[
            LineChart { x: "s", y: "requests/s", lines: vec![("QPS", BLUE, line(|point| point.qps))] },
            LineChart {
                x: "s",
                y: "µs",
                lines: vec![("p50", BLUE, line(|point| point.p50)), ("p99", RED, line(|point| point.p99))],
            },
        ],
    )
}

/// Plots latency over rate.
pub fn plot_latency_over_rate(path: &Path, points: &[RatePoint]) -> Result<(), Box<dyn Error>> {
    let line =
        |figure: fn(&RatePoint) -> f64| points.iter().map(|point| (point.qps, figure(point))).collect();
    let lines = vec![("p50", BLUE, line(|point| point.p50)), ("p99", RED, line(|point| point.p99))];
    save(path, &[LineChart { x: "requests/s", y: "µs", lines }])
}

/// Draws the 99th percentile over the rate with Braille characters. Empty if there are fewer than two rates.
pub fn latency_over_rate(points: &[RatePoint]) -> String {
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

    #[test]
    fn a_plot_of_latency_over_rate_has_both_lines_and_axes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        plot_latency_over_rate(file.path(), &points()).unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        assert!(text.contains("requests/s") && text.contains("p99"), "{text}");
        assert!(text.matches("<polyline").count() >= 2, "{text}");
    }

    #[test]
    fn plots_without_points_and_of_one_point_do_not_panic() {
        let file = tempfile::NamedTempFile::new().unwrap();
        plot_series(file.path(), &[]).unwrap();
        plot_latency_over_rate(file.path(), &points()[..1]).unwrap();
    }

    #[test]
    fn an_unwritable_path_is_named() {
        let error = plot_latency_over_rate(Path::new("/nowhere/x.svg"), &points()).unwrap_err().to_string();
        assert!(error.contains("/nowhere/x.svg"), "{error}");
    }

    #[test]
    fn the_chart_has_its_axes_and_is_empty_below_two_points() {
        assert_eq!(latency_over_rate(&[]), "");
        assert_eq!(latency_over_rate(&points()[..1]), "");
        let text = latency_over_rate(&points());
        assert!(text.contains("350") && text.contains("5000"), "{text}");
    }

    /// Five points with increasing rate and latency.
    pub fn points() -> Vec<RatePoint> {
        (1..6)
            .map(|step| RatePoint { qps: f64::from(step) * 1000.0, p50: 50.0, p99: 70.0 * f64::from(step) })
            .collect()
    }
}
