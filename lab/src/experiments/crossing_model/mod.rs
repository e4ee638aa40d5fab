//! What avoiding the crossings between user space and kernel can save on this machine.
//!
//! The model is the one of Magoutis, Seltzer and Gabber, "The Case Against User-Level Networking"
//! (2004): a request costs the application a and the kernel's path for a record of b bytes o(b), of
//! which crossings cost δ. δ over all is what a user-level network stack that is otherwise the same
//! saves.

mod crossing_cost;
mod kernel_path;
mod model;

use std::net::Ipv4Addr;
use std::time::Duration;

use policies::Policy;
use runtime::{DriverKind, WaitStrategy};
use serde::Serialize;

pub use crossing_cost::{BATCH, CrossingCost};
use kernel_path::{Clients, Connections};
pub use kernel_path::{REQUEST, SIZES};
#[cfg(test)]
pub(crate) use model::tests::measurements;
pub use model::{CrossingModel, EXCHANGE, Prediction};

use super::kernel_client::KernelClientTurn;
use super::machine_check::vulnerabilities;
use crate::Error;
use crate::engine::{CoreAssignment, Figure, LoadKind, LoadPlan, Phases, Results, Runner, Turn};
use crate::experiment_process::{EchoServerReady, ExperimentProcess, ProcessRole};
use crate::peers::{EchoServerNetwork, EchoServerSpec, Peer, PeerService, RequestShape};
use crate::polling_config::PollingConfig;

/// The drivers that are compared, by index of contender.
const DRIVERS: [DriverKind; 2] = [DriverKind::Epoll, DriverKind::Uring];
/// The servers, and the bytes of a reply: of memcached a value of 200 bytes under a key of 30, and
/// the protocol's lines.
const SERVERS: [(&str, usize); 2] = [("echo", RequestShape::SMALL.reply), ("memcached", 251)];

#[derive(Debug, Clone, Serialize)]
pub struct ModelConfig {
    /// Batches of crossings, at most 400.
    pub batches: usize,
    pub rounds: usize,
    /// Seconds of an exchange at one size.
    pub exchange: f64,
    pub warm_up: f64,
    pub duration: f64,
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

    pub fn steps(&self) -> usize {
        1 + self.rounds * (SIZES.len() + DRIVERS.len() * SERVERS.len())
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct ModelMeasurements {
    pub vulnerabilities: Vec<(String, String)>,
    /// δ.
    pub crossing: CrossingCost,
    /// The exchange at each size, then each server on epoll and on uring.
    pub results: Results,
}

pub fn measure(
    config: &ModelConfig,
    cores: CoreAssignment,
    progress: &mut dyn FnMut(&str),
) -> Result<ModelMeasurements, Error> {
    progress("crossings");
    let crossing = crossing_cost::measure(cores.server, config.batches)?;
    let crossing_us = crossing.system_call.median / 1e3;
    let shares = [&[0.2 / SIZES.len() as f64; SIZES.len()][..], &[0.4; SERVERS.len()]].concat();
    let mut phases = Phases::new(config.seconds, &shares);
    let mut runner = Runner::new(cores, progress);
    let (mut connections, exchange) = (Connections::open(cores)?, Duration::from_secs_f64(config.exchange));
    let plan = |name: &str, bytes: usize, limit| {
        LoadPlan::new(name, LoadKind::Closed, bytes as f64, config.rounds, limit)
    };
    for bytes in SIZES {
        let plan = plan(&format!("{bytes} B"), bytes, phases.next_limit()?);
        runner.measure(plan, &[EXCHANGE.to_owned()], |_| {
            let [cpu_us, calls] = connections.measure(bytes, exchange)?;
            Ok(request_cost(cpu_us, calls, crossing_us))
        })?;
    }
    for (index, (server, bytes)) in SERVERS.into_iter().enumerate() {
        let names = DRIVERS.map(|driver| format!("{server}, {driver}"));
        let turn = [echo_turn, memcached_turn][index];
        runner.measure(plan(server, bytes, phases.next_limit()?), &names, |index| {
            let (cpu_us, waits) = turn(config, cores, DRIVERS[index])?;
            // Beside the worker's waits, on epoll a record is received by one `recv(2)`, and its
            // reply sent by one `send(2)`. On a ring both are operations, for which the waits
            // submit.
            let transfers = if DRIVERS[index] == DriverKind::Uring { 0.0 } else { 2.0 };
            let mut turn = request_cost(cpu_us, waits + transfers, crossing_us);
            turn.set(Figure::Waits, waits);
            Ok(turn)
        })?;
    }
    Ok(ModelMeasurements { vulnerabilities: vulnerabilities(), crossing, results: runner.finish(&[0]) })
}

/// The share of a request's crossings is the paper's potential degradation, δ / (a + o(b)), of
/// which o(b) contains the crossings.
fn request_cost(cpu_us: f64, calls: f64, crossing_us: f64) -> Turn {
    let crossings = calls * crossing_us;
    Turn::new([
        (Figure::CpuPerRequest, cpu_us),
        (Figure::Calls, calls),
        (Figure::Crossings, crossings),
        (Figure::Rest, cpu_us - crossings),
        (Figure::Potential, (crossings / cpu_us).clamp(0.0, 1.0) * 100.0),
    ])
}

/// Lull's echo server under vanilla: CPU time in µs, and system calls that wait, poll or submit, of
/// a request.
fn echo_turn(config: &ModelConfig, cores: CoreAssignment, driver: DriverKind) -> Result<(f64, f64), Error> {
    let RequestShape { request, reply } = RequestShape::SMALL;
    let role = ProcessRole::EchoServer(EchoServerSpec {
        peer: Peer::Lull,
        core: cores.server,
        service: PeerService::Echo,
        shape: RequestShape::SMALL,
        address: Ipv4Addr::LOCALHOST,
        network: Some(EchoServerNetwork {
            policy: Policy::Vanilla,
            driver,
            interface: None,
            packing_core: cores.packing,
            polling: PollingConfig::default(),
        }),
        work: Duration::ZERO,
    });
    let mut server = ExperimentProcess::start(&role, None)?;
    let EchoServerReady { address, .. } = server.receive()?;
    let mut clients = Clients::connect(address)?;
    let mut load = |seconds| clients.load(cores.client, [request, reply], Duration::from_secs_f64(seconds));
    load(config.warm_up)?;
    let (waits, cpu) = (server.echo_waits()?, server.cpu_seconds()?);
    let requests = load(config.duration)? as f64;
    let (cpu, waits) = (server.cpu_seconds()? - cpu, server.echo_waits()? - waits);
    Ok((cpu * 1e6 / requests, waits as f64 / requests))
}

fn memcached_turn(
    config: &ModelConfig,
    cores: CoreAssignment,
    driver: DriverKind,
) -> Result<(f64, f64), Error> {
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
    let requests = server.requests.max(1) as f64;
    Ok((server.cpu_seconds * 1e6 / requests, server.waits as f64 / requests))
}
