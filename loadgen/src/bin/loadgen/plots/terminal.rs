//! Charts for the terminal.

use textplots::{Chart, Plot, Shape};

use crate::plots::rate_point::RatePoint;

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
    use crate::plots::rate_point::tests::points;

    #[test]
    fn the_chart_has_its_axes_and_is_empty_below_two_points() {
        assert_eq!(latency_over_rate(&[]), "");
        assert_eq!(latency_over_rate(&points()[..1]), "");
        let text = latency_over_rate(&points());
        assert!(text.contains("350") && text.contains("5000"), "{text}");
    }
}
