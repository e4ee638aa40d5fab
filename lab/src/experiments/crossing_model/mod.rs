//! What avoiding the crossings between user space and kernel can save on this machine.
//!
//! The model is the one of Magoutis, Seltzer and Gabber, "The Case Against User-Level Networking" (2004): a request costs
//! the application a and the kernel's path for a record of b bytes o(b), of which crossings cost δ. δ over all is what a
//! user-level network stack that is otherwise the same saves.

mod crossing_cost;
mod kernel_path;
mod model;

use std::time::Duration;

use runtime::{DriverKind, WaitStrategy};
use serde::Serialize;

pub use crossing_cost::{BATCH, CrossingCost};
use kernel_path::Connections;
pub use kernel_path::{REQUEST, SIZES};
#[cfg(test)]
pub(crate) use model::tests::measurements;
pub use model::{CrossingModel, KernelPath, PathRow, Prediction, Regression, ServerCost};

use super::kernel_client::KernelClientTurn;
use super::machine_check::vulnerabilities;
use super::peer_comparison::{start_load, start_server};
use crate::Error;
use crate::engine::{CoreAssignment, Figure, LoadKind, LoadPlan, Phases, Results, Runner, Turn};
use crate::peers::{EchoLoadSpec, EchoMeasurement, Peer, PeerService, RequestShape};

/// The drivers that are compared, by index of contender.
const DRIVERS: [DriverKind; 2] = [DriverKind::Epoll, DriverKind::Uring];
/// Bytes of a reply of the echo server, and of the memcached server: a value of 200 bytes under a key of 30, and the
/// protocol's lines.
const REPLIES: [usize; 2] = [RequestShape::SMALL.reply, 251];
/// The loads: the exchange without a server, and each server in a closed loop.
const LOADS: [&str; 3] = ["exchange", "echo", "memcached"];

#[derive(Debug, Clone, Serialize)]
pub struct ModelConfig {
    /// Batches of crossings, at most 400.
    pub batches: usize,
    pub rounds: usize,
    /// Seconds of an exchange at one size.
    pub exchange: f64,
    pub warm_up: f64,
    pub duration: f64,
    /// Seconds that all may take. Rounds that have begun are finished.
    pub seconds: f64,
}

impl ModelConfig {
    /// About five minutes, or one if `quick`; `seconds` limits it further, or lets it take longer.
    pub fn new(quick: bool, seconds: Option<f64>) -> Self {
        Self {
            batches: if quick { 200 } else { 400 },
            rounds: if quick { 10 } else { 20 },
            exchange: if quick { 0.02 } else { 0.05 },
            warm_up: if quick { 0.1 } else { 0.2 },
            duration: if quick { 0.2 } else { 0.8 },
            seconds: seconds.unwrap_or(if quick { 50.0 } else { 270.0 }),
        }
    }

    /// The number of turns without repeats, for a progress bar.
    pub fn steps(&self) -> usize {
        1 + self.rounds * (SIZES.len() + DRIVERS.len() * 2)
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct ModelMeasurements {
    pub vulnerabilities: Vec<(String, String)>,
    /// δ.
    pub crossing: CrossingCost,
    /// The exchange with a contender for each size, the echo server and the memcached server, on epoll and on uring.
    pub results: Results,
}

/// Measures everything, on loopback. Calls `progress` before each turn.
pub fn measure(
    config: &ModelConfig,
    cores: CoreAssignment,
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
        let [cpu_us, calls] = connections.measure(SIZES[index], exchange)?;
        Ok(Turn::new([(Figure::CpuPerRequest, cpu_us), (Figure::Calls, calls)]))
    })?;
    let names = DRIVERS.map(|driver| driver.to_string());
    runner
        .measure(plan(1, phases.next_limit()?), &names, |index| echo_turn(config, cores, DRIVERS[index]))?;
    runner.measure(plan(2, phases.next_limit()?), &names, |index| {
        memcached_turn(config, cores, DRIVERS[index])
    })?;
    Ok(ModelMeasurements { vulnerabilities: vulnerabilities(), crossing, results: runner.finish(&[0]) })
}

/// Lull's echo server.
fn echo_turn(config: &ModelConfig, cores: CoreAssignment, driver: DriverKind) -> Result<Turn, Error> {
    const CONNECTIONS: usize = 32;
    let (service, shape) = (PeerService::Echo, RequestShape::SMALL);
    let peer = if driver == DriverKind::Uring { Peer::LullUring } else { Peer::LullEpoll };
    let (mut server, ready) = start_server(service, peer, cores, shape)?;
    let mut client = start_load(EchoLoadSpec {
        server: ready.address,
        core: cores.client,
        service,
        shape,
        connections: CONNECTIONS,
        warm_up: config.warm_up,
        duration: config.duration,
    })?;
    let (waits, cpu) = (server.echo_waits()?, server.cpu_nanos()?);
    let measured: EchoMeasurement = client.receive()?;
    let (cpu, waits) = (server.cpu_nanos()? - cpu, server.echo_waits()? - waits);
    Ok(request_cost(driver, cpu as f64 / 1e3, waits, measured.replies))
}

/// This project's memcached server under vanilla.
fn memcached_turn(config: &ModelConfig, cores: CoreAssignment, driver: DriverKind) -> Result<Turn, Error> {
    let turn = KernelClientTurn {
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
    Ok(request_cost(driver, server.cpu_seconds * 1e6, server.waits, server.requests))
}

/// CPU time and system calls of a request. Beside the worker's waits, on epoll a record is received by one `recv(2)`, and its
/// reply sent by one `send(2)`. On a ring both are operations, for which the waits submit.
fn request_cost(driver: DriverKind, cpu_us: f64, waits: u64, requests: u64) -> Turn {
    let requests = requests.max(1) as f64;
    let (waits, transfers) = (waits as f64 / requests, if driver == DriverKind::Uring { 0.0 } else { 2.0 });
    Turn::new([
        (Figure::CpuPerRequest, cpu_us / requests),
        (Figure::Waits, waits),
        (Figure::Calls, waits + transfers),
    ])
}
