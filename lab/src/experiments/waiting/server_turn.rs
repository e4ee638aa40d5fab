//! One turn: the memcached server at low load on loopback, under one strategy.

use runtime::WaitStrategy;

use super::super::kernel_client::KernelClientTurn;
use super::config::WaitingConfig;
use crate::Error;
use crate::engine::{CoreAssignment, Figure, Turn};

const RECORDS: u64 = 1_000;

/// Measures one strategy. A turn in which requests failed does not count: the latency is not that of the load asked for.
pub(super) fn measure(
    strategy: WaitStrategy,
    cores: CoreAssignment,
    config: &WaitingConfig,
) -> Result<Turn, Error> {
    let turn = KernelClientTurn {
        cores,
        driver: config.driver,
        wait: strategy,
        connections: config.connections,
        rate: Some(config.rate),
        records: RECORDS,
        warm_up: config.server_warm_up,
        duration: config.server_duration,
    };
    let (report, server) = turn.measure()?;
    let failed = report.errors + report.unanswered + report.misses;
    if failed > 0 {
        return Ok(Turn::invalid(format!("{failed} requests failed")));
    }
    Ok(Turn::new([
        (Figure::P50, report.latency.p50),
        (Figure::P99, report.latency.p99),
        (Figure::CpuShare, server.cpu_seconds / server.seconds * 100.0),
    ]))
}
