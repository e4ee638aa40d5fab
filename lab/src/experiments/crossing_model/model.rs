//! The model's figures from the measurements.

use loadgen::interleaved_rounds::{Round, figures, ratios};
use loadgen::medians::{Interval, median, median_interval};
use runtime::DriverKind;
use serde::Serialize;

use super::crossing_cost::CrossingCost;
use super::echo_turn::RequestCost;
use super::kernel_path::{PathMeasurement, SIZES};
use super::line::{Line, Regression};
use super::measurement::{DRIVERS, ModelMeasurements, REPLIES};
use super::potential::{Prediction, potential};

/// Operations of a request on a ring, of which each costs a NOP's share of a batch: a receive and a send.
const OPERATIONS: f64 = 2.0;

/// One size of the exchange.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct PathRow {
    /// Bytes of a reply.
    pub bytes: usize,
    /// CPU time of the server's end per request, its crossings included, µs.
    pub server_us: Interval,
    /// CPU time of both ends per request, their crossings included, µs.
    pub both_us: Interval,
    /// System calls of the server's end per request.
    pub server_calls: f64,
    /// The share of the server's end's CPU time that its system calls cost at δ each, 0 to 1.
    pub potential: Interval,
}

/// o(b), measured by an exchange on loopback.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct KernelPath {
    /// A row for each size.
    pub rows: Vec<PathRow>,
    /// The server's end, without its crossings.
    pub server: Regression,
}

impl KernelPath {
    fn new(rounds: &[Round<Vec<PathMeasurement>>], crossing_us: f64) -> Self {
        let row = |(index, &bytes): (usize, &usize)| {
            let at_size = || rounds.iter().filter_map(|round| round.value(0)?.get(index));
            let of = |figure: fn(&PathMeasurement) -> f64| {
                median_interval(&at_size().map(figure).collect::<Vec<_>>())
            };
            let share = |it: &PathMeasurement| potential(it.server_calls, crossing_us, it.server_us);
            PathRow {
                bytes,
                server_us: of(|it| it.server_us),
                both_us: of(|it| it.both_us),
                server_calls: of(|it| it.server_calls).median,
                potential: median_interval(&at_size().filter_map(share).collect::<Vec<_>>()),
            }
        };
        let line = |round: &Round<Vec<PathMeasurement>>| {
            let without = |it: &PathMeasurement| it.server_us - it.server_calls * crossing_us;
            let measured = round.value(0)?.iter();
            Line::fit(&measured.map(|it| (it.bytes as f64, without(it))).collect::<Vec<_>>())
        };
        let lines: Vec<Line> = rounds.iter().filter_map(line).collect();
        Self { rows: SIZES.iter().enumerate().map(row).collect(), server: Regression::new(&lines) }
    }
}

/// Where a server's CPU time per request goes.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ServerCost {
    /// The server and its driver.
    pub name: String,
    /// The network on which it was measured: `loopback` or `testbed`.
    pub network: &'static str,
    /// Bytes of a reply.
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

/// The model of this machine.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct CrossingModel {
    /// The kernel's path.
    pub path: KernelPath,
    /// The servers.
    pub servers: Vec<ServerCost>,
    /// Predictions with measurements that the model wasn't made from.
    pub predictions: Vec<Prediction>,
}

impl CrossingModel {
    /// Computes the model. δ is its median; the intervals have what differs between rounds.
    pub fn new(measured: &ModelMeasurements) -> Self {
        let crossing_us = measured.crossing.system_call.median / 1e3;
        let path = KernelPath::new(&measured.path.finished.leading().rounds, crossing_us);
        let (mut servers, mut predictions) = (Vec::new(), Vec::new());
        let runs = [
            ("echo", "loopback", &measured.echo),
            ("memcached", measured.memcached_network, &measured.memcached),
        ];
        for ((name, network, run), bytes) in runs.into_iter().zip(REPLIES) {
            let rounds = &run.finished.leading().rounds;
            servers.extend(DRIVERS.iter().enumerate().filter_map(|(index, driver)| {
                server_cost(name, *driver, (index, rounds), (network, bytes), crossing_us)
            }));
            predictions.extend(driver_prediction(name, rounds, &measured.crossing));
        }
        Self { path, servers, predictions }
    }

    /// The server on which crossings are the largest share of CPU time.
    pub fn most(&self) -> Option<&ServerCost> {
        let measured = self.servers.iter().filter(|server| server.potential.count > 0);
        measured.max_by(|a, b| a.potential.median.total_cmp(&b.potential.median))
    }
}

fn server_cost(
    name: &str,
    driver: DriverKind,
    (index, rounds): (usize, &[Round<RequestCost>]),
    (network, bytes): (&'static str, usize),
    crossing_us: f64,
) -> Option<ServerCost> {
    let of = |figure: &dyn Fn(&RequestCost) -> f64| median_interval(&figures(rounds, index, figure));
    let values = rounds.iter().filter_map(|round| round.value(index));
    let shares = values.filter_map(|it| potential(it.crossings(), crossing_us, it.cpu_us));
    let cpu_us = of(&|it| it.cpu_us);
    (cpu_us.count > 0).then(|| ServerCost {
        name: format!("{name}, {driver}"),
        network,
        bytes,
        cpu_us,
        waits: of(&|it| it.waits).median,
        transfers: of(&|it| it.transfers).median,
        crossings_us: of(&|it| it.crossings() * crossing_us),
        rest_us: of(&|it| it.cpu_us - it.crossings() * crossing_us),
        potential: median_interval(&shares.collect::<Vec<_>>()),
    })
}

/// From epoll to uring: the crossings that are saved, less what the operations cost on the ring.
fn driver_prediction(
    name: &str,
    rounds: &[Round<RequestCost>],
    crossing: &CrossingCost,
) -> Option<Prediction> {
    let operations = OPERATIONS * crossing.nop_in_batch?.median;
    let gain = |round: &Round<RequestCost>| {
        let (epoll, uring) = (round.value(0)?, round.value(1)?);
        let saved = epoll.crossings() - uring.crossings();
        let gain = (saved * crossing.system_call.median - operations) / 1e3 / epoll.cpu_us;
        gain.is_finite().then_some(gain)
    };
    let predicted: Vec<f64> = rounds.iter().filter_map(gain).collect();
    let measured = ratios(rounds, 1, 0, |it| it.cpu_us).into_iter().filter(|it| it.is_finite());
    let measured: Vec<f64> = measured.map(|ratio| 1.0 - ratio).collect();
    let waits = [0, 1].map(|index| median(&figures(rounds, index, |it| it.waits)));
    let change = format!("{name}: epoll to uring");
    Prediction::new(change, waits, median_interval(&predicted), median_interval(&measured))
}

#[cfg(test)]
mod tests {
    use super::super::potential::Outcome;
    use super::super::sample::measurements;
    use super::*;

    #[test]
    fn a_server_is_what_its_crossings_and_all_else_cost() {
        let model = CrossingModel::new(&measurements(true));
        let epoll = model.servers.iter().find(|it| it.name == "memcached, epoll").unwrap();
        // 0.2 µs for each of 2.5 crossings, of 8 µs.
        assert!((epoll.crossings_us.median - 0.5).abs() < 1e-9, "{epoll:?}");
        assert!((epoll.rest_us.median - 7.5).abs() < 1e-9, "{epoll:?}");
        assert!((epoll.potential.median - 0.5 / 8.0).abs() < 1e-9, "{epoll:?}");
        assert_eq!((epoll.network, model.most().unwrap().name.as_str()), ("testbed", "echo, epoll"));
    }

    #[test]
    fn crossings_are_taken_out_of_the_kernels_path_and_their_share_falls_with_the_size() {
        let path = CrossingModel::new(&measurements(false)).path;
        assert!((path.server.intercept.median - 3.0).abs() < 1e-6, "{path:?}");
        assert!((path.server.slope_ns.median - 0.1).abs() < 1e-9, "{path:?}");
        assert_eq!(path.rows.len(), SIZES.len());
        assert!((path.rows[0].potential.median - 0.4 / 3.4064).abs() < 1e-9, "{path:?}");
        assert!(path.rows.windows(2).all(|pair| pair[0].potential.median > pair[1].potential.median));
    }

    #[test]
    fn a_driver_is_predicted_from_crossings_and_operations() {
        let predictions = CrossingModel::new(&measurements(true)).predictions;
        // 2 crossings of 0.2 µs less 2 operations of 0.03 µs, of 5 µs.
        assert!((predictions[0].predicted_gain.median - 0.068).abs() < 1e-9, "{predictions:?}");
        assert_eq!(predictions[0].outcome, Outcome::Overlaps);
        let mut measured = measurements(true);
        measured.crossing.nop_in_batch = None;
        assert!(
            CrossingModel::new(&measured).predictions.is_empty(),
            "without a ring there is no prediction"
        );
    }
}
