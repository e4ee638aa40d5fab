//! One turn of Lull's echo server on loopback, with its crossings counted.

use std::net::Ipv4Addr;
use std::time::Duration;

use runtime::DriverKind;

use crate::Error;
use crate::engine::{CoreAssignment, Figure, Turn};
use crate::experiment_process::{EchoLoadReady, EchoServerReady, ExperimentProcess, ProcessRole};
use crate::peers::{EchoLoadSpec, EchoMeasurement, EchoServerSpec, Peer, PeerService, RequestShape};

const CONNECTIONS: usize = 32;

/// System calls per request beside the worker's waits. On epoll a record is received by one `recv(2)`, and its reply sent
/// by one `send(2)`. On a ring both are operations, for which the waits submit.
fn transfers(driver: DriverKind) -> f64 {
    if driver == DriverKind::Uring { 0.0 } else { 2.0 }
}

/// Measures the echo server in a closed loop.
pub(super) fn measure(
    driver: DriverKind,
    cores: CoreAssignment,
    warm_up: f64,
    duration: f64,
) -> Result<Turn, Error> {
    let role = ProcessRole::EchoServer(EchoServerSpec {
        peer: if driver == DriverKind::Uring { Peer::LullUring } else { Peer::LullEpoll },
        core: cores.server,
        service: PeerService::Echo,
        shape: RequestShape::SMALL,
        address: Ipv4Addr::LOCALHOST,
        network: None,
        work: Duration::ZERO,
    });
    let mut server = ExperimentProcess::start(&role, None)?;
    let ready: EchoServerReady = server.receive()?;
    let mut client = ExperimentProcess::start(
        &ProcessRole::EchoLoad(EchoLoadSpec {
            server: ready.address,
            core: cores.client,
            service: PeerService::Echo,
            shape: RequestShape::SMALL,
            connections: CONNECTIONS,
            warm_up,
            duration,
        }),
        None,
    )?;
    let EchoLoadReady {} = client.receive()?;
    let (waits, cpu) = (server.echo_waits()?, server.cpu_nanos()?);
    let measured: EchoMeasurement = client.receive()?;
    let (cpu, waits) = (server.cpu_nanos()? - cpu, server.echo_waits()? - waits);
    let requests = measured.replies.max(1) as f64;
    Ok(request_cost(driver, cpu as f64 / 1e3 / requests, waits as f64 / requests))
}

/// CPU time and system calls of a request.
pub(super) fn request_cost(driver: DriverKind, cpu_us: f64, waits: f64) -> Turn {
    let calls = waits + transfers(driver);
    Turn::new([(Figure::CpuPerRequest, cpu_us), (Figure::Waits, waits), (Figure::Calls, calls)])
}
