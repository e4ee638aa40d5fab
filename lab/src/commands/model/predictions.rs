//! What follows from the measurements.

use loadgen::medians::Interval;
use serde::Serialize;

use super::crossing_cost::CrossingCost;
use crate::rounds::{Figure, LoadResult, Results, Row, Turn};

/// Loads on servers; those before them are exchanges without a server.
pub(super) const SERVERS: usize = 2;
/// Operations of a request on a ring, of which each costs a NOP's share of a batch: a receive and a
/// send.
const OPERATIONS: f64 = 2.0;

/// A prediction of the gain in CPU time per request, %, with what was measured; negative for a
/// loss.
#[derive(Debug, Clone, Serialize)]
pub struct Prediction {
    /// The change, for example `echo: epoll to uring`.
    pub change: String,
    pub predicted: f64,
    pub measured: Interval,
    /// Whether the measured interval contains the prediction. `None`: too few rounds to tell.
    pub agrees: Option<bool>,
}

#[derive(Debug, Clone, Serialize)]
pub struct CrossingModel {
    /// o(b) without crossings, by the medians of the exchange: µs for no bytes, and ns a byte.
    pub path: Option<(f64, f64)>,
    /// Predictions with measurements that the model wasn't made from.
    pub predictions: Vec<Prediction>,
}

impl CrossingModel {
    pub(super) fn new(crossing: &CrossingCost, results: &Results) -> Self {
        let exchanges = results.leading().filter(|load| !is_of_servers(results, load));
        let point = |load: &LoadResult| Some((load.at, load.rows[0].median(Figure::Rest)?));
        let path = line(&exchanges.filter_map(point).collect::<Vec<_>>());
        let predictions = results.leading().filter_map(|load| driver_prediction(load, crossing));
        Self {
            path: path.map(|(intercept, slope)| (intercept, slope * 1e3)),
            predictions: predictions.collect(),
        }
    }

    /// The server on which crossings are the largest share of CPU time.
    pub(super) fn most(results: &Results) -> Option<&Row> {
        let servers = results.leading().filter(|load| is_of_servers(results, load));
        let shares = servers.flat_map(|load| &load.rows);
        let shares = shares.filter_map(|row| Some((row, row.median(Figure::Potential)?)));
        shares.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(row, _)| row)
    }
}

/// Whether a load is one on servers, which are measured last.
fn is_of_servers(results: &Results, load: &LoadResult) -> bool {
    load.measurement + SERVERS >= results.measurements.len()
}

/// The share of a request's crossings is the paper's potential degradation, δ / (a + o(b)), of
/// which o(b) contains the crossings.
pub(super) fn request_cost(cpu_us: f64, calls: f64, crossing_us: f64) -> Turn {
    let crossings = calls * crossing_us;
    Turn::new([
        (Figure::CpuPerRequest, cpu_us),
        (Figure::Calls, calls),
        (Figure::Crossings, crossings),
        (Figure::Rest, cpu_us - crossings),
        (Figure::Potential, (crossings / cpu_us).clamp(0.0, 1.0) * 100.0),
    ])
}

/// Intercept and slope of the line through points of bytes and costs with the least squares of
/// relative errors, so that a point of 64 B counts as much as one of 1 MiB. `None` for fewer than
/// two sizes, or a cost that is not positive.
fn line(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let mut sums = [0.0; 5];
    for &(bytes, cost) in points {
        let weight = Some(cost.powi(-2)).filter(|_| cost > 0.0)?;
        let terms = [1.0, bytes, cost, bytes * bytes, bytes * cost];
        sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += weight * term);
    }
    let [weight, x, y, xx, xy] = sums;
    let determinant = weight * xx - x * x;
    // Relative to its terms: rounding leaves a little of equal sizes.
    let slope = (weight * xy - x * y) / determinant;
    (determinant > weight * xx * 1e-12).then_some(((y - slope * x) / weight, slope))
}

/// From epoll to uring: the crossings that are saved, less what the operations cost on the ring.
fn driver_prediction(load: &LoadResult, crossing: &CrossingCost) -> Option<Prediction> {
    let [epoll, uring] = &load.rows[..] else { return None };
    let operations = OPERATIONS * crossing.nop_in_batch?.median / 1e3;
    let saved = epoll.median(Figure::Crossings)? - uring.median(Figure::Crossings)?;
    let predicted = (saved - operations) / epoll.median(Figure::CpuPerRequest)? * 100.0;
    let gain = |ratio: f64| (1.0 - ratio) * 100.0;
    let mut measured = *uring.ratio(Figure::CpuPerRequest)?;
    (measured.median, measured.low, measured.high) =
        (gain(measured.median), gain(measured.high), gain(measured.low));
    let agrees = measured.reaches_target().then_some((measured.low..=measured.high).contains(&predicted));
    Some(Prediction { change: format!("{}: epoll to uring", load.name), predicted, measured, agrees })
}

#[cfg(test)]
pub(super) mod tests {
    use loadgen::medians::median_interval;

    use super::*;
    use crate::rounds::{LoadKind, results_of};

    /// A crossing of 200 ns, an echo server of 5 µs on epoll and of `echo_uring` µs on uring, and a
    /// memcached server whose gain is what the model predicts.
    pub(crate) fn measurements(rounds: usize, echo_uring: f64) -> (CrossingCost, Results) {
        let loads = ["echo", "memcached"].map(|name| (name, LoadKind::Closed, 200.0, None));
        let results = results_of(&loads, &["epoll", "uring"], &[0], rounds, |load, contender, round| {
            let [epoll, uring] = if load == "echo" { [5.0, echo_uring] } else { [8.0, 8.0 - 0.34] };
            // uring's differ a little between rounds.
            let noise = (round % 3) as f64 * 0.01 - 0.01;
            let (cpu_us, calls) = if contender == 0 { (epoll, 2.5) } else { (uring + noise, 0.5) };
            request_cost(cpu_us, calls, 0.2)
        });
        let nanos = |value: f64| median_interval(&[value; 8]);
        let (nop, nop_in_batch) = (Some(nanos(300.0)), Some(nanos(30.0)));
        (CrossingCost { system_call: nanos(200.0), nop, nop_in_batch }, results)
    }

    #[test]
    fn a_request_is_what_its_crossings_and_all_else_cost() {
        // 0.2 µs for each of 2.5 crossings, of 8 µs.
        let turn = request_cost(8.0, 2.5, 0.2);
        let figures = [Figure::Crossings, Figure::Rest, Figure::Potential].map(|figure| turn.get(figure));
        assert_eq!(figures, [0.5, 7.5, 6.25]);
        assert!(request_cost(0.0, 0.0, 0.2).get(Figure::Potential).is_nan());
        assert_eq!(
            CrossingModel::most(&measurements(6, 4.66).1).unwrap().median(Figure::Potential),
            Some(10.0)
        );
    }

    #[test]
    fn an_error_at_a_large_size_does_not_move_the_intercept_by_its_absolute_size() {
        let exact = line(&[(64.0, 3.0064), (1_048_576.0, 3.0 + 104.8576)]).unwrap();
        assert!((exact.0 - 3.0).abs() < 1e-9 && (exact.1 - 1e-4).abs() < 1e-12, "{exact:?}");
        let (intercept, _) = line(&[(64.0, 3.0), (512.0, 3.1), (4096.0, 3.8), (1_048_576.0, 250.0)]).unwrap();
        assert!((2.5..3.5).contains(&intercept), "{intercept}");
        for points in [&[][..], &[(64.0, 1.0), (64.0, 2.0)], &[(64.0, 0.0), (128.0, 1.0)]] {
            assert_eq!(line(points), None, "{points:?}");
        }
    }

    #[test]
    fn a_driver_is_predicted_from_crossings_and_operations() {
        let (mut crossing, results) = measurements(6, 5.0 - 0.34);
        let predictions = CrossingModel::new(&crossing, &results).predictions;
        // 2 crossings of 0.2 µs less 2 operations of 0.03 µs, of 5 µs.
        assert!((predictions[0].predicted - 6.8).abs() < 1e-9, "{predictions:?}");
        assert_eq!(predictions[0].agrees, Some(true));
        crossing.nop_in_batch = None;
        let model = CrossingModel::new(&crossing, &results);
        assert!(model.predictions.is_empty(), "without a ring there is no prediction");
    }
}
