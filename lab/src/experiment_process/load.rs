//! The load on a memcached server.

use std::io;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use loadgen::{Arrival, Config, Loop, Report, WarmUp, Workload};
use policies::{Cpus, Policy, host};
use runtime::{Builder, DriverKind, Runtime};
use rustix::process::{Pid, setpriority_process};

use super::messages::{LoadMeasurement, LoadMessage, LoadSpec};
use super::output::send;
use crate::Error;

/// Generates the load, and sends what it measured.
pub(super) fn run(spec: &LoadSpec) -> Result<(), Error> {
    // All contestants are loaded from the same driver.
    let mut builder =
        Builder::new().ignore_environment().workers(1).cores(Cpus::one(spec.core)).driver(DriverKind::Epoll);
    if let Some(name) = &spec.interface {
        // Under every policy of the server, kernel threads on the client's cores poll the client's queues.
        // Otherwise the server's core would pay for the client's receiving: a veth's packets are received by
        // the core that sends them, and packet steering (RPS) leaves the queue's poll there.
        builder = builder.interface(name).policy(Policy::Packing).packing_cores(Cpus::one(spec.core));
    }
    let mut runtime = builder.build()?;
    if let Some(name) = &spec.interface {
        lower_napi_thread_priority(name)?;
    }
    let warm_up = Duration::from_secs_f64(spec.warm_up);
    let config = Config {
        servers: vec![spec.server.into()],
        connections: spec.connections,
        depth: 1,
        pacing: spec.rate.map_or(Loop::Closed, |rate| Loop::Open { rate, arrival: Arrival::default() }),
        workload: Workload { records: spec.records, ..Workload::default() },
        warm_up: WarmUp::Fixed(warm_up),
        duration: Duration::from_secs_f64(spec.duration),
        ..Config::default()
    };
    match generate(&mut runtime, &config, warm_up) {
        Ok(Report { latency, errors, unanswered, misses, .. }) => {
            let failed = errors + unanswered + misses;
            let measurement = LoadMeasurement { p50_us: latency.p50, p99_us: latency.p99, failed };
            send(&LoadMessage::Done { measurement })?;
        }
        Err(error) => send(&LoadMessage::Failed { error: error.to_string() })?,
    }
    Ok(())
}

/// Gives the kernel threads that poll the client's queues half the weight of the load's thread, with which they share
/// a core. At the same weight they would delay the load while replies arrive, and client and server would alternate
/// more than with clients on other machines. The policy made them real-time threads, which stand in for interrupts.
fn lower_napi_thread_priority(interface: &str) -> Result<(), Error> {
    /// The nice value at which a thread has half the weight of one at 0.
    const HALF_WEIGHT: i32 = 3;
    for napi in host::interface(interface)?.queues.into_iter().filter_map(|queue| queue.napi) {
        if let Some(pid) = napi.pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
            host::scheduler::set_fifo_priority(pid, 0)?;
            setpriority_process(Some(pid), HALF_WEIGHT).map_err(io::Error::from)?;
        }
    }
    Ok(())
}

fn generate(runtime: &mut Runtime, config: &Config, warm_up: Duration) -> Result<Report, loadgen::Error> {
    runtime.block_on(async {
        loadgen::load_records(config).await?;
        let mut announced = false;
        loadgen::run_until(config, &AtomicBool::new(false), |progress| {
            if progress.elapsed >= warm_up && !std::mem::replace(&mut announced, true) {
                // Fails only if the lab has exited, and then this process is killed.
                let _ = send(&LoadMessage::Measuring);
            }
        })
        .await
    })
}
