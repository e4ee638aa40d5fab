//! A line through measured points.

use loadgen::medians::{Interval, median_interval};
use serde::Serialize;

/// `cost = intercept + slope × bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Line {
    /// Cost of no bytes, µs.
    pub intercept: f64,
    /// Cost per byte, µs.
    pub slope: f64,
}

impl Line {
    /// The line with the least squares of relative errors, so that a point of 64 B counts as much as one of 1 MiB. `None`
    /// for fewer than two different sizes, or if a cost is not positive or a number is not finite.
    pub fn fit(points: &[(f64, f64)]) -> Option<Self> {
        let valid = |&(bytes, cost): &(f64, f64)| bytes.is_finite() && cost.is_finite() && cost > 0.0;
        if !points.iter().all(valid) {
            return None;
        }
        let mut sums = [0.0; 5];
        for &(bytes, cost) in points {
            let weight = cost.powi(-2);
            let terms = [1.0, bytes, cost, bytes * bytes, bytes * cost];
            sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += weight * term);
        }
        let [weight, x, y, xx, xy] = sums;
        let determinant = weight * xx - x * x;
        // Relative to its terms: rounding leaves a little of equal sizes.
        if determinant.is_nan() || determinant <= weight * xx * 1e-12 {
            return None;
        }
        let slope = (weight * xy - x * y) / determinant;
        Some(Self { intercept: (y - slope * x) / weight, slope })
    }

    /// The cost of a reply of `bytes` bytes, in µs.
    pub fn at(&self, bytes: f64) -> f64 {
        self.intercept + self.slope * bytes
    }
}

/// The lines of several rounds.
#[derive(Debug, Clone, Copy, Serialize)]
#[non_exhaustive]
pub struct Regression {
    /// Cost of no bytes, µs.
    pub intercept: Interval,
    /// Cost per byte, ns.
    pub slope_ns: Interval,
}

impl Regression {
    /// The medians of the lines. Each round gives a line, so the intervals have what differs between rounds.
    pub fn new(lines: &[Line]) -> Self {
        let of = |figure: fn(&Line) -> f64| median_interval(&lines.iter().map(figure).collect::<Vec<_>>());
        Self { intercept: of(|line| line.intercept), slope_ns: of(|line| line.slope * 1e3) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_on_a_line_give_that_line() {
        let points: Vec<(f64, f64)> =
            [64.0, 4096.0, 1_048_576.0].map(|bytes| (bytes, 3.0 + bytes * 2e-4)).into();
        let line = Line::fit(&points).unwrap();
        assert!((line.intercept - 3.0).abs() < 1e-6 && (line.slope - 2e-4).abs() < 1e-10, "{line:?}");
        assert!((line.at(1000.0) - 3.2).abs() < 1e-6);
    }

    #[test]
    fn an_error_at_a_large_size_does_not_move_the_intercept_by_its_absolute_size() {
        let line = Line::fit(&[(64.0, 3.0), (512.0, 3.1), (4096.0, 3.8), (1_048_576.0, 250.0)]).unwrap();
        assert!((2.5..3.5).contains(&line.intercept), "{line:?}");
    }

    #[test]
    fn too_few_sizes_and_costs_that_are_none_give_no_line() {
        for points in [
            &[][..],
            &[(64.0, 1.0)],
            &[(64.0, 1.0), (64.0, 2.0), (64.0, 3.0)],
            &[(64.0, 0.0), (128.0, 1.0)],
            &[(64.0, -1.0), (128.0, 1.0)],
            &[(64.0, f64::NAN), (128.0, 1.0)],
            &[(f64::INFINITY, 1.0), (128.0, 1.0)],
        ] {
            assert_eq!(Line::fit(points), None, "{points:?}");
        }
    }

    #[test]
    fn the_interval_of_a_regression_spans_the_rounds() {
        let lines: Vec<Line> =
            (1..=6).map(|round| Line { intercept: f64::from(round), slope: 1e-3 }).collect();
        let regression = Regression::new(&lines);
        assert_eq!((regression.intercept.low, regression.intercept.high), (1.0, 6.0));
        assert_eq!(regression.slope_ns.median, 1.0);
        assert_eq!(Regression::new(&[]).intercept.count, 0);
    }
}
