//! The model's figures from the measurements.

use loadgen::medians::{Interval, median, median_interval};
use runtime::DriverKind;
use serde::Serialize;

use super::crossing_cost::CrossingCost;
use super::kernel_path::SIZES;
use super::line::{Line, Regression};
use super::measurement::{DRIVERS, LOADS, ModelMeasurements, REPLIES};
use super::potential::{Prediction, potential};
use crate::engine::{Figure, Round, Turn, values};

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
    fn new(rounds: &[Round<'_>], crossing_us: f64) -> Self {
        let row = |(index, &bytes): (usize, &usize)| {
            let of = |figure| median_interval(&values(rounds, index, |turn| turn.get(figure)));
            PathRow {
                bytes,
                server_us: of(Figure::CpuPerRequest),
                both_us: of(Figure::BothEndsCpu),
                server_calls: of(Figure::Calls).median,
                potential: median_interval(&values(rounds, index, |turn| share(turn, crossing_us))),
            }
        };
        let line = |round: &Round<'_>| {
            let without = |(turn, &bytes): (&Option<&Turn>, &usize)| {
                let turn = (*turn)?;
                Some((bytes as f64, turn.get(Figure::CpuPerRequest) - turn.get(Figure::Calls) * crossing_us))
            };
            Line::fit(&round.iter().zip(&SIZES).filter_map(without).collect::<Vec<_>>())
        };
        let lines: Vec<Line> = rounds.iter().filter_map(line).collect();
        Self { rows: SIZES.iter().enumerate().map(row).collect(), server: Regression::new(&lines) }
    }
}

/// The share of a turn's CPU time that its system calls cost; NaN without CPU time.
fn share(turn: &Turn, crossing_us: f64) -> f64 {
    potential(turn.get(Figure::Calls), crossing_us, turn.get(Figure::CpuPerRequest)).unwrap_or(f64::NAN)
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
        let rounds = |load: usize| measured.results.rounds_of(LOADS[load]);
        let path = KernelPath::new(&rounds(0), crossing_us);
        let (mut servers, mut predictions) = (Vec::new(), Vec::new());
        for (load, network) in [(1, "loopback"), (2, measured.memcached_network)] {
            let (name, rounds, bytes) = (LOADS[load], rounds(load), REPLIES[load - 1]);
            servers.extend(DRIVERS.iter().enumerate().filter_map(|(index, driver)| {
                server_cost(name, *driver, (index, &rounds), (network, bytes), crossing_us)
            }));
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

fn server_cost(
    name: &str,
    driver: DriverKind,
    (index, rounds): (usize, &[Round<'_>]),
    (network, bytes): (&'static str, usize),
    crossing_us: f64,
) -> Option<ServerCost> {
    let of = |read: &dyn Fn(&Turn) -> f64| median_interval(&values(rounds, index, read));
    let crossings = |turn: &Turn| turn.get(Figure::Calls) * crossing_us;
    let cpu_us = of(&|turn| turn.get(Figure::CpuPerRequest));
    (cpu_us.count > 0).then(|| ServerCost {
        name: format!("{name}, {driver}"),
        network,
        bytes,
        cpu_us,
        waits: of(&|turn| turn.get(Figure::Waits)).median,
        transfers: of(&|turn| turn.get(Figure::Calls) - turn.get(Figure::Waits)).median,
        crossings_us: of(&crossings),
        rest_us: of(&|turn| turn.get(Figure::CpuPerRequest) - crossings(turn)),
        potential: of(&|turn| share(turn, crossing_us)),
    })
}

/// From epoll to uring: the crossings that are saved, less what the operations cost on the ring.
fn driver_prediction(name: &str, rounds: &[Round<'_>], crossing: &CrossingCost) -> Option<Prediction> {
    let operations = OPERATIONS * crossing.nop_in_batch?.median;
    let cpu = |turn: &Turn| turn.get(Figure::CpuPerRequest);
    let paired = |gain: &dyn Fn(&Turn, &Turn) -> f64| -> Vec<f64> {
        let gains = rounds.iter().filter_map(|round| Some(gain(round[0]?, round[1]?)));
        gains.filter(|gain| gain.is_finite()).collect()
    };
    let predicted = paired(&|epoll, uring| {
        let saved = epoll.get(Figure::Calls) - uring.get(Figure::Calls);
        (saved * crossing.system_call.median - operations) / 1e3 / cpu(epoll)
    });
    let measured = paired(&|epoll, uring| 1.0 - cpu(uring) / cpu(epoll));
    let waits = [0, 1].map(|index| median(&values(rounds, index, |turn| turn.get(Figure::Waits))));
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
        let model = CrossingModel::new(&measurements(6, 5.0 - 0.34));
        let epoll = model.servers.iter().find(|it| it.name == "memcached, epoll").unwrap();
        // 0.2 µs for each of 2.5 crossings, of 8 µs.
        assert!((epoll.crossings_us.median - 0.5).abs() < 1e-9, "{epoll:?}");
        assert!((epoll.rest_us.median - 7.5).abs() < 1e-9, "{epoll:?}");
        assert!((epoll.potential.median - 0.5 / 8.0).abs() < 1e-9, "{epoll:?}");
        assert_eq!((epoll.network, model.most().unwrap().name.as_str()), ("testbed", "echo, epoll"));
    }

    #[test]
    fn crossings_are_taken_out_of_the_kernels_path_and_their_share_falls_with_the_size() {
        let path = CrossingModel::new(&measurements(6, 4.66)).path;
        assert!((path.server.intercept.median - 3.0).abs() < 1e-6, "{path:?}");
        assert!((path.server.slope_ns.median - 0.1).abs() < 1e-9, "{path:?}");
        assert_eq!(path.rows.len(), SIZES.len());
        assert!((path.rows[0].potential.median - 0.4 / 3.4064).abs() < 1e-9, "{path:?}");
        assert!(path.rows.windows(2).all(|pair| pair[0].potential.median > pair[1].potential.median));
    }

    #[test]
    fn a_driver_is_predicted_from_crossings_and_operations() {
        let predictions = CrossingModel::new(&measurements(6, 5.0 - 0.34)).predictions;
        // 2 crossings of 0.2 µs less 2 operations of 0.03 µs, of 5 µs.
        assert!((predictions[0].predicted_gain.median - 0.068).abs() < 1e-9, "{predictions:?}");
        assert_eq!(predictions[0].outcome, Outcome::Overlaps);
        let mut measured = measurements(6, 5.0 - 0.34);
        measured.crossing.nop_in_batch = None;
        assert!(
            CrossingModel::new(&measured).predictions.is_empty(),
            "without a ring there is no prediction"
        );
    }
}
