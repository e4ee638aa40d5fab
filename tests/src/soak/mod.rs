//! A load that can run for days against one server, and checks at intervals that nothing leaks and nothing is lost:
//! lifetimes, sizes that drift, flushes, and connections that come and go.

mod checks;
mod client;
mod model;

use std::io::Write;
use std::time::{Duration, Instant};

use crate::memcached::{Memcached, command, free_port};
use checks::Baseline;
use client::Client;

/// How long, how fast, and how often it is checked.
#[derive(Debug, Clone)]
pub struct Plan {
    pub duration: Duration,
    pub check_interval: Duration,
    /// Operations per second that are aimed at; a slow server gets fewer.
    pub rate: u32,
    pub seed: u64,
    /// Further arguments of the server. They do not change `-m`.
    pub server_arguments: Vec<String>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(60),
            check_interval: Duration::from_secs(60),
            rate: 300,
            seed: 1,
            server_arguments: Vec::new(),
        }
    }
}

/// The server's memory limit, in MiB: small enough that the largest sizes make it evict.
const MEMORY_MIB: u64 = 32;
/// Operations between two pauses that keep to the rate.
const BATCH: u32 = 10;

pub fn run(plan: &Plan, log: &mut dyn Write) -> Result<(), String> {
    let port = free_port();
    let mut server = command();
    server.args(["-t", "2", "-p", &port.to_string(), "-m", &MEMORY_MIB.to_string()]);
    let server = Memcached::run(server.args(&plan.server_arguments), port);
    let start = Instant::now();
    let mut client = Client::connect(server.address, plan.seed)?;
    let baseline = Baseline::of(&server, client.connections());
    let mut next_check = plan.check_interval;
    let mut operations = 0;
    while start.elapsed() < plan.duration {
        for _ in 0..BATCH {
            client.operate(start.elapsed())?;
        }
        operations += BATCH;
        let due = Duration::from_secs(1) * operations / plan.rate;
        std::thread::sleep(due.saturating_sub(start.elapsed()));
        if start.elapsed() >= next_check {
            next_check += plan.check_interval;
            let line = checks::check(&server, &baseline, &mut client)?;
            writeln!(log, "{:>7.1} s: {line}", start.elapsed().as_secs_f64())
                .and_then(|()| log.flush())
                .map_err(|error| format!("cannot write the log: {error}"))?;
        }
    }
    let line = checks::check(&server, &baseline, &mut client)?;
    writeln!(log, "{:>7.1} s: {line}; nothing was violated", start.elapsed().as_secs_f64())
        .map_err(|error| format!("cannot write the log: {error}"))
}
