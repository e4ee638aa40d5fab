//! The measurements that the model is made of, in interleaved rounds.

use std::io;
use std::time::{Duration, Instant};

use policies::Policy;
use runtime::DriverKind;
use serde::Serialize;

use super::super::contestant::Contestant;
use super::super::core_assignment::CoreAssignment;
use super::super::machine_check::vulnerabilities;
use super::super::policy_comparison::{ComparisonConfig, PolicyComparison};
use super::super::turn_conditions::{MeasuredRounds, RoundsPlan};
use super::config::ModelConfig;
use super::crossing_cost::{self, CrossingCost};
use super::echo_turn::{self, RequestCost, transfers};
use super::kernel_path::{Connections, PathMeasurement, SIZES};
use crate::Error;
use crate::peers::RequestShape;
use crate::polling_config::PollingConfig;
use crate::testbed::Testbed;

/// The drivers that are compared, by index of contestant.
pub(super) const DRIVERS: [DriverKind; 2] = [DriverKind::Epoll, DriverKind::Uring];
/// Bytes of a reply of the echo server, and of the memcached server: a value of 200 bytes under a key of 30, and the
/// protocol's lines.
pub(super) const REPLIES: [usize; 2] = [RequestShape::SMALL.reply, 251];

/// Everything that was measured.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ModelMeasurements {
    /// The processor's vulnerabilities with their mitigations, as the kernel reports them.
    pub vulnerabilities: Vec<(String, String)>,
    /// δ.
    pub crossing: CrossingCost,
    /// The exchange without a server on loopback: every round, with one exchange for each size.
    pub path: MeasuredRounds<Vec<PathMeasurement>>,
    /// The echo server in a closed loop on loopback, on epoll and on uring.
    pub echo: MeasuredRounds<RequestCost>,
    /// The memcached server in a closed loop on epoll and on uring.
    pub memcached: MeasuredRounds<RequestCost>,
    /// The network of `memcached`: `testbed`, or `loopback` without one.
    pub memcached_network: &'static str,
}

/// The number of turns without repeats, for a progress bar.
pub fn steps(config: &ModelConfig) -> usize {
    1 + config.rounds * (1 + DRIVERS.len() * 2)
}

/// The shares of the time of the exchange, the echo server and memcached.
const SHARES: [f64; 3] = [0.2, 0.4, 0.4];

/// Measures everything. Calls `progress` before each turn.
///
/// # Errors
/// If a core can't be had, or if a server or a load can't be run.
pub fn measure(
    config: &ModelConfig,
    cores: CoreAssignment,
    testbed: Option<Testbed>,
    mut progress: impl FnMut(&str),
) -> Result<ModelMeasurements, Error> {
    let begun = Instant::now();
    progress("crossings");
    let crossing = crossing_cost::measure(cores.server, config.batches)?;
    // What a phase leaves over is the next one's.
    let limit = |phase: usize| {
        let left = config.seconds - begun.elapsed().as_secs_f64();
        let share = SHARES[phase] / SHARES[phase..].iter().sum::<f64>();
        Duration::from_secs_f64((left * share).max(0.1))
    };
    let plan = |load, limit| RoundsPlan { load, rounds: config.rounds, cores, limit };
    let (mut connections, exchange) = (Connections::open(cores)?, Duration::from_secs_f64(config.exchange));
    let all_sizes = ["all sizes".to_owned()];
    // A turn has each size once, and gives a line.
    let path = plan("exchange", limit(0)).measure(&all_sizes, &mut progress, |_| {
        let measured = SIZES.iter().map(|&bytes| connections.measure(bytes, exchange));
        Ok(Some(measured.collect::<io::Result<_>>()?))
    })?;
    let names = DRIVERS.map(|driver| driver.to_string());
    let echo = plan("echo", limit(1)).measure(&names, &mut progress, |index| {
        echo_turn::measure(DRIVERS[index], cores, config.warm_up, config.duration).map(Some)
    })?;
    let memcached_network = if testbed.is_some() { "testbed" } else { "loopback" };
    let mut comparison = ComparisonConfig::new(Vec::new(), true);
    (comparison.warm_up, comparison.duration) = (config.warm_up, config.duration);
    let mut comparison = PolicyComparison::new(testbed, cores, comparison, PollingConfig::default());
    let memcached = plan("memcached", limit(2))
        .measure(&names, &mut progress, |index| memcached_turn(&mut comparison, DRIVERS[index]).map(Some))?;
    let vulnerabilities = vulnerabilities();
    Ok(ModelMeasurements { vulnerabilities, crossing, path, echo, memcached, memcached_network })
}

/// Measures this project's memcached server under vanilla in a closed loop.
fn memcached_turn(comparison: &mut PolicyComparison, driver: DriverKind) -> Result<RequestCost, Error> {
    let (warm_up, duration) = (comparison.config.warm_up, comparison.config.duration);
    let contestant = Contestant { policy: Policy::Vanilla, driver };
    let measured = comparison.measure(contestant, PollingConfig::default(), warm_up, duration)?;
    let server = measured.server;
    let requests = server.requests.max(1) as f64;
    Ok(RequestCost {
        requests: server.requests,
        cpu_us: (server.thread_cpu + server.kernel_thread_cpu) * 1e6 / requests,
        waits: server.waits as f64 / requests,
        transfers: transfers(driver),
    })
}
