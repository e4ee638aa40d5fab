//! Runs of the load generator.

use std::process::Command;
use std::time::Duration;

use loadgen::{Address, Arrival, Config, Error, Loop, Report, WarmUp};

/// A closed loop of half a second by one connection, without a warm-up.
pub fn config(server: impl Into<Address>) -> Config {
    Config {
        servers: vec![server.into()],
        warm_up: WarmUp::Fixed(Duration::ZERO),
        duration: Duration::from_millis(500),
        ..Config::default()
    }
}

/// An open loop with fixed gaps, so that the arithmetic is exact.
pub fn open(rate: f64) -> Loop {
    let gaps = "fixed:1".parse().ok().and_then(Arrival::new);
    Loop::Open { rate, arrival: gaps.expect("a fixed gap has a mean") }
}

pub fn run(config: &Config) -> Report {
    try_run(config).expect("the load runs")
}

pub fn try_run(config: &Config) -> Result<Report, Error> {
    runtime(1).block_on(loadgen::run(config))
}

pub fn load_and_run(config: &Config, workers: usize) -> Result<Report, Error> {
    runtime(workers).block_on(async {
        loadgen::load_records(config).await?;
        loadgen::run(config).await
    })
}

fn runtime(workers: usize) -> runtime::Runtime {
    let built = runtime::Builder::new().ignore_environment().workers(workers).build();
    built.expect("a runtime starts")
}

/// The `loadgen` binary with arguments.
pub fn loadgen(arguments: &[&str]) -> Command {
    let mut command = Command::new(crate::own_program("loadgen"));
    command.args(arguments);
    command
}
