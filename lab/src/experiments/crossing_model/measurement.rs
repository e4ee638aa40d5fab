//! The measurements that the model is made of, in interleaved rounds.

use std::time::Duration;

use runtime::{DriverKind, WaitStrategy};
use serde::Serialize;

use super::super::kernel_client::KernelClientTurn;
use super::super::machine_check::vulnerabilities;
use super::config::ModelConfig;
use super::crossing_cost::{self, CrossingCost};
use super::echo_turn::{self, request_cost};
use super::kernel_path::{Connections, SIZES};
use crate::Error;
use crate::engine::{CoreAssignment, Figure, LoadKind, LoadPlan, Phases, Results, Runner, Turn};
use crate::peers::RequestShape;
use crate::testbed::Testbed;

/// The drivers that are compared, by index of contender.
pub(super) const DRIVERS: [DriverKind; 2] = [DriverKind::Epoll, DriverKind::Uring];
/// Bytes of a reply of the echo server, and of the memcached server: a value of 200 bytes under a key of 30, and the
/// protocol's lines.
pub(super) const REPLIES: [usize; 2] = [RequestShape::SMALL.reply, 251];
/// The loads: the exchange without a server, and each server in a closed loop.
pub(super) const LOADS: [&str; 3] = ["exchange", "echo", "memcached"];

/// Everything that was measured.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ModelMeasurements {
    /// The processor's vulnerabilities with their mitigations, as the kernel reports them.
    pub vulnerabilities: Vec<(String, String)>,
    /// δ.
    pub crossing: CrossingCost,
    /// The exchange on loopback with a contender for each size, the echo server on loopback and the memcached server, on epoll
    /// and on uring.
    pub results: Results,
    /// The network of the memcached server: `testbed`, or `loopback` without one.
    pub memcached_network: &'static str,
}

/// The number of turns without repeats, for a progress bar.
pub fn steps(config: &ModelConfig) -> usize {
    1 + config.rounds * (SIZES.len() + DRIVERS.len() * 2)
}

/// Measures everything. Calls `progress` before each turn.
///
/// # Errors
/// If a core can't be had, or if a server or a load can't be run.
pub fn measure(
    config: &ModelConfig,
    cores: CoreAssignment,
    testbed: Option<Testbed>,
    progress: &mut dyn FnMut(&str),
) -> Result<ModelMeasurements, Error> {
    progress("crossings");
    let crossing = crossing_cost::measure(cores.server, config.batches)?;
    let mut phases = Phases::new(config.seconds, &[0.2, 0.4, 0.4]);
    let mut runner = Runner::new(cores, progress);
    let plan = |load, limit| LoadPlan::new(LOADS[load], LoadKind::Closed, 0.0, config.rounds, limit);
    let (mut connections, exchange) = (Connections::open(cores)?, Duration::from_secs_f64(config.exchange));
    let sizes = SIZES.map(|bytes| format!("{bytes} B"));
    runner.measure(plan(0, phases.next_limit()?), &sizes, |index| {
        let measured = connections.measure(SIZES[index], exchange)?;
        Ok(Turn::new([
            (Figure::CpuPerRequest, measured.server_us),
            (Figure::BothEndsCpu, measured.both_us),
            (Figure::Calls, measured.server_calls),
        ]))
    })?;
    let names = DRIVERS.map(|driver| driver.to_string());
    runner.measure(plan(1, phases.next_limit()?), &names, |index| {
        echo_turn::measure(DRIVERS[index], cores, config.warm_up, config.duration)
    })?;
    runner.measure(plan(2, phases.next_limit()?), &names, |index| {
        memcached_turn(config, cores, testbed.as_ref(), DRIVERS[index])
    })?;
    Ok(ModelMeasurements {
        vulnerabilities: vulnerabilities(),
        crossing,
        results: runner.finish(&[0]),
        memcached_network: if testbed.is_some() { "testbed" } else { "loopback" },
    })
}

/// Measures this project's memcached server under vanilla in a closed loop.
fn memcached_turn(
    config: &ModelConfig,
    cores: CoreAssignment,
    testbed: Option<&Testbed>,
    driver: DriverKind,
) -> Result<Turn, Error> {
    let turn = KernelClientTurn {
        testbed,
        cores,
        driver,
        wait: WaitStrategy::Block,
        connections: 64,
        rate: None,
        records: 10_000,
        warm_up: config.warm_up,
        duration: config.duration,
    };
    let (_, server) = turn.measure()?;
    let requests = server.requests.max(1) as f64;
    let cpu_us = (server.thread_cpu + server.kernel_thread_cpu) * 1e6 / requests;
    Ok(request_cost(driver, cpu_us, server.waits as f64 / requests))
}
