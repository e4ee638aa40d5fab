//! The model's figures from the measurements.

use loadgen::medians::{Interval, median, median_interval};
use serde::Serialize;

use super::{CrossingCost, DRIVERS, LOADS, ModelMeasurements, REPLIES, SIZES};
use crate::engine::{Figure, Round, Turn, values};

/// Operations of a request on a ring, of which each costs a NOP's share of a batch: a receive and a send.
const OPERATIONS: f64 = 2.0;

/// One size of the exchange.
#[derive(Debug, Clone, Serialize)]
pub struct PathRow {
    pub bytes: usize,
    /// CPU time of the server's end per request, its crossings included, µs.
    pub server_us: Interval,
    /// System calls of the server's end per request.
    pub server_calls: f64,
    /// The share of the server's end's CPU time that its system calls cost at δ each, 0 to 1.
    pub potential: Interval,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub struct Regression {
    /// Cost of no bytes, µs.
    pub intercept: Interval,
    /// Cost per byte, ns.
    pub slope_ns: Interval,
}

/// o(b), measured by an exchange on loopback.
#[derive(Debug, Clone, Serialize)]
pub struct KernelPath {
    pub rows: Vec<PathRow>,
    /// The server's end, without its crossings.
    pub server: Regression,
}

impl KernelPath {
    fn new(rounds: &[Round<'_>], crossing_us: f64) -> Self {
        let row = |(index, &bytes): (usize, &usize)| {
            let of = |figure| median_interval(&values(rounds, index, |turn| turn.get(figure)));
            PathRow {
                bytes,
                server_us: of(Figure::CpuPerRequest),
                server_calls: of(Figure::Calls).median,
                potential: median_interval(&values(rounds, index, |turn| potential(turn, crossing_us))),
            }
        };
        let line = |round: &Round<'_>| {
            let without = |(turn, &bytes): (&Option<&Turn>, &usize)| {
                let turn = (*turn)?;
                Some((bytes as f64, turn.get(Figure::CpuPerRequest) - turn.get(Figure::Calls) * crossing_us))
            };
            line(&round.iter().zip(&SIZES).filter_map(without).collect::<Vec<_>>())
        };
        let (intercepts, slopes): (Vec<f64>, Vec<f64>) = rounds.iter().filter_map(line).unzip();
        let slopes: Vec<f64> = slopes.iter().map(|slope| slope * 1e3).collect();
        let server =
            Regression { intercept: median_interval(&intercepts), slope_ns: median_interval(&slopes) };
        Self { rows: SIZES.iter().enumerate().map(row).collect(), server }
    }
}

/// Intercept and slope of the line through points of bytes and costs with the least squares of relative errors, so that a point
/// of 64 B counts as much as one of 1 MiB. `None` for fewer than two sizes, or a cost that is not positive.
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

/// What crossings cost over all CPU time: the paper's potential degradation, δ / (a + o(b)), of which o(b) contains the
/// crossings. 0 to 1; NaN without CPU time.
fn potential(turn: &Turn, crossing_us: f64) -> f64 {
    let cpu_us = turn.get(Figure::CpuPerRequest);
    if cpu_us > 0.0 { (turn.get(Figure::Calls) * crossing_us / cpu_us).clamp(0.0, 1.0) } else { f64::NAN }
}

/// Where a server's CPU time per request goes.
#[derive(Debug, Clone, Serialize)]
pub struct ServerCost {
    /// The server and its driver.
    pub name: String,
    pub bytes: usize,
    /// CPU time per request, µs.
    pub cpu_us: Interval,
    /// System calls per request that wait, poll or submit, counted.
    pub waits: f64,
    /// System calls per request that receive and send directly. Not counted: it follows from the driver.
    pub transfers: f64,
    /// All crossings of a request at δ each, µs.
    pub crossings_us: Interval,
    /// a + o(b): the CPU time without the crossings, µs.
    pub rest_us: Interval,
    /// The share of CPU time that its crossings are, 0 to 1.
    pub potential: Interval,
}

/// A prediction of the gain in CPU time per request, with what was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Prediction {
    /// The change, for example `echo: epoll to uring`.
    pub change: String,
    /// System calls per request that wait, poll or submit, counted before and after the change.
    pub waits: [f64; 2],
    /// The gain that the model predicts, as a share of the CPU time before; negative for a loss.
    pub predicted_gain: Interval,
    /// The gain that was measured; negative for a loss.
    pub measured_gain: Interval,
    /// Whether the intervals of both overlap. `None`: too few rounds to tell.
    pub agrees: Option<bool>,
}

/// The model of this machine.
#[derive(Debug, Clone, Serialize)]
pub struct CrossingModel {
    pub path: KernelPath,
    pub servers: Vec<ServerCost>,
    /// Predictions with measurements that the model wasn't made from.
    pub predictions: Vec<Prediction>,
}

impl CrossingModel {
    pub fn new(measured: &ModelMeasurements) -> Self {
        let crossing_us = measured.crossing.system_call.median / 1e3;
        let rounds = |load: usize| measured.results.rounds_of(LOADS[load]);
        let path = KernelPath::new(&rounds(0), crossing_us);
        let (mut servers, mut predictions) = (Vec::new(), Vec::new());
        for load in [1, 2] {
            let (name, rounds, bytes) = (LOADS[load], rounds(load), REPLIES[load - 1]);
            let costs =
                (0..DRIVERS.len()).filter_map(|index| server_cost(&rounds, index, bytes, crossing_us));
            servers.extend(costs.map(|cost| ServerCost { name: format!("{name}, {}", cost.name), ..cost }));
            predictions.extend(driver_prediction(name, &rounds, &measured.crossing));
        }
        Self { path, servers, predictions }
    }

    /// The server on which crossings are the largest share of CPU time.
    pub fn most(&self) -> Option<&ServerCost> {
        let measured = self.servers.iter().filter(|server| server.potential.count > 0);
        measured.max_by(|a, b| a.potential.median.total_cmp(&b.potential.median))
    }
}

fn server_cost(rounds: &[Round<'_>], index: usize, bytes: usize, crossing_us: f64) -> Option<ServerCost> {
    let of = |read: &dyn Fn(&Turn) -> f64| median_interval(&values(rounds, index, read));
    let crossings = |turn: &Turn| turn.get(Figure::Calls) * crossing_us;
    let cpu_us = of(&|turn| turn.get(Figure::CpuPerRequest));
    (cpu_us.count > 0).then(|| ServerCost {
        name: DRIVERS[index].to_string(),
        bytes,
        cpu_us,
        waits: of(&|turn| turn.get(Figure::Waits)).median,
        transfers: of(&|turn| turn.get(Figure::Calls) - turn.get(Figure::Waits)).median,
        crossings_us: of(&crossings),
        rest_us: of(&|turn| turn.get(Figure::CpuPerRequest) - crossings(turn)),
        potential: of(&|turn| potential(turn, crossing_us)),
    })
}

/// From epoll to uring: the crossings that are saved, less what the operations cost on the ring.
fn driver_prediction(name: &str, rounds: &[Round<'_>], crossing: &CrossingCost) -> Option<Prediction> {
    let operations = OPERATIONS * crossing.nop_in_batch?.median;
    let cpu = |turn: &Turn| turn.get(Figure::CpuPerRequest);
    let paired = |gain: &dyn Fn(&Turn, &Turn) -> f64| {
        let gains = rounds.iter().filter_map(|round| Some(gain(round[0]?, round[1]?)));
        median_interval(&gains.filter(|gain| gain.is_finite()).collect::<Vec<_>>())
    };
    let predicted_gain = paired(&|epoll, uring| {
        let saved = epoll.get(Figure::Calls) - uring.get(Figure::Calls);
        (saved * crossing.system_call.median - operations) / 1e3 / cpu(epoll)
    });
    let measured_gain = paired(&|epoll, uring| 1.0 - cpu(uring) / cpu(epoll));
    let waits = [0, 1].map(|index| median(&values(rounds, index, |turn| turn.get(Figure::Waits))));
    let change = format!("{name}: epoll to uring");
    let agrees = (predicted_gain.reaches_target() && measured_gain.reaches_target())
        .then_some(predicted_gain.low <= measured_gain.high && measured_gain.low <= predicted_gain.high);
    (measured_gain.count > 0).then_some(Prediction { change, waits, predicted_gain, measured_gain, agrees })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::engine::{LoadKind, results_of};

    /// A crossing of 200 ns, a kernel's path of 3 µs and 0.1 ns a byte, an echo server of 5 µs on epoll and of `echo_uring` µs on
    /// uring, and a memcached server whose gain is what the model predicts.
    pub(crate) fn measurements(rounds: usize, echo_uring: f64) -> ModelMeasurements {
        let loads = LOADS.map(|name| (name, LoadKind::Closed, 0.0, None));
        let contenders: Vec<String> = SIZES.map(|bytes| bytes.to_string()).into();
        let contenders: Vec<&str> = contenders.iter().map(String::as_str).collect();
        let results = results_of(&loads, &contenders, &[0], rounds, |load, contender, round| {
            if load == LOADS[0] {
                let server_us = 3.0 + SIZES[contender] as f64 * 1e-4 + 2.0 * 0.2;
                return Turn::new([(Figure::CpuPerRequest, server_us), (Figure::Calls, 2.0)]);
            }
            let [epoll, uring] = if load == LOADS[1] { [5.0, echo_uring] } else { [8.0, 8.0 - 0.34] };
            // uring's differ a little between rounds.
            let noise = (round % 3) as f64 * 0.01 - 0.01;
            let (cpu_us, calls) = if contender == 0 { (epoll, 2.5) } else { (uring + noise, 0.5) };
            Turn::new([(Figure::CpuPerRequest, cpu_us), (Figure::Waits, 0.5), (Figure::Calls, calls)])
        });
        let nanos = |value: f64| median_interval(&[value; 8]);
        ModelMeasurements {
            vulnerabilities: vec![("spectre_v2".to_owned(), "Mitigation: Retpolines".to_owned())],
            crossing: CrossingCost {
                system_call: nanos(200.0),
                nop: Some(nanos(300.0)),
                nop_in_batch: Some(nanos(30.0)),
            },
            results,
        }
    }

    #[test]
    fn a_server_is_what_its_crossings_and_all_else_cost() {
        let model = CrossingModel::new(&measurements(6, 5.0 - 0.34));
        let epoll = model.servers.iter().find(|it| it.name == "memcached, epoll").unwrap();
        // 0.2 µs for each of 2.5 crossings, of 8 µs.
        assert!((epoll.crossings_us.median - 0.5).abs() < 1e-9, "{epoll:?}");
        assert!((epoll.rest_us.median - 7.5).abs() < 1e-9, "{epoll:?}");
        assert!((epoll.potential.median - 0.5 / 8.0).abs() < 1e-9, "{epoll:?}");
        assert_eq!(model.most().unwrap().name, "echo, epoll");
    }

    #[test]
    fn crossings_are_taken_out_of_the_kernels_path_and_their_share_falls_with_the_size() {
        let path = CrossingModel::new(&measurements(6, 4.66)).path;
        assert!((path.server.intercept.median - 3.0).abs() < 1e-6, "{path:?}");
        assert!((path.server.slope_ns.median - 0.1).abs() < 1e-9, "{path:?}");
        assert_eq!(path.rows.len(), SIZES.len());
        assert!((path.rows[0].potential.median - 0.4 / 3.4064).abs() < 1e-9, "{path:?}");
        assert!(path.rows.windows(2).all(|pair| pair[0].potential.median > pair[1].potential.median));
        // An error at a large size does not move the intercept by its absolute size.
        let (intercept, _) = line(&[(64.0, 3.0), (512.0, 3.1), (4096.0, 3.8), (1_048_576.0, 250.0)]).unwrap();
        assert!((2.5..3.5).contains(&intercept), "{intercept}");
        for points in [&[][..], &[(64.0, 1.0), (64.0, 2.0)], &[(64.0, 0.0), (128.0, 1.0)]] {
            assert_eq!(line(points), None, "{points:?}");
        }
    }

    #[test]
    fn a_driver_is_predicted_from_crossings_and_operations() {
        let predictions = CrossingModel::new(&measurements(6, 5.0 - 0.34)).predictions;
        // 2 crossings of 0.2 µs less 2 operations of 0.03 µs, of 5 µs.
        assert!((predictions[0].predicted_gain.median - 0.068).abs() < 1e-9, "{predictions:?}");
        assert_eq!(predictions[0].agrees, Some(true));
        let mut measured = measurements(6, 5.0 - 0.34);
        measured.crossing.nop_in_batch = None;
        let model = CrossingModel::new(&measured);
        assert!(model.predictions.is_empty(), "without a ring there is no prediction");
    }
}
