//! The memcached server of an experiment, measured from a second thread.

use std::io::{self, BufRead};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;

use policies::counters::Snapshot;
use policies::thread_time::thread_cpu_time;
use policies::{Cpus, host};
use runtime::io::{AsyncFd, Direction, SourceKind};
use runtime::{Builder, Handle};
use servers::memcached::{Config, Server};

use super::messages::{BEGIN, END, ServerMeasurement, ServerReady, ServerSpec};
use super::output::send;
use crate::Error;
use crate::peers::descriptor_limit;
use crate::peers::lull::waits;

/// The most connections that the server accepts: those of the largest load, and those that observe it.
const MOST_CONNECTIONS: usize = 10_100;

/// Serves until the lab closes this process's standard input.
pub(super) fn run(spec: &ServerSpec) -> Result<(), Error> {
    let mut builder = Builder::new()
        .ignore_environment()
        .policy(spec.policy)
        .workers(spec.cores.len())
        .cores(spec.cores.clone())
        .packing_cores(Cpus::one(spec.packing_core))
        .wait(spec.wait)
        .driver(spec.driver);
    builder = spec.polling.set(builder);
    if let Some(name) = &spec.interface {
        builder = builder.interface(name);
    }
    let mut runtime = builder.build()?;
    let applied = runtime.applied().to_vec();
    descriptor_limit::raise()?;
    let config = Config {
        listen: vec![(spec.address, None)],
        port: Some(0),
        max_connections: MOST_CONNECTIONS,
        memory: if spec.memory > 0 { spec.memory } else { Config::default().memory },
        ..Config::default()
    };
    let (stop, stopped) = UnixStream::pair()?;
    let interface = spec.interface.clone().unwrap_or_else(|| "lo".to_owned());
    let observer = Observer { interface };
    let observing = runtime.block_on(async move {
        stopped.set_nonblocking(true)?;
        let stopped = AsyncFd::new(stopped, SourceKind::Other)?;
        let server = Arc::new(Server::start(&config)?);
        let reports = runtime::reports();
        let report = reports.first().ok_or_else(|| io::Error::other("the runtime reports no worker"))?;
        let workers: Vec<i32> = reports.iter().map(|report| report.thread).collect();
        send(&ServerReady {
            address: server.addresses()[0],
            ran: report.running.to_string(),
            steps_down: report.steps_down.clone(),
            reports: serde_json::to_value(&reports)?,
            applied: serde_json::to_value(&applied)?,
        })?;
        let observed = Arc::clone(&server);
        let handle = Handle::current();
        // Measuring runs on another thread, so that its CPU time is not counted as a worker's.
        let observing = thread::spawn(move || {
            let outcome = observer.follow_commands(&observed, &workers, &handle);
            drop(stop);
            outcome
        });
        stopped.ready(Direction::Read).await;
        Ok::<_, Error>(observing)
    })?;
    observing.join().unwrap_or_else(|_| Err(io::Error::other("the measuring thread panicked").into()))
}

/// What measures the server.
struct Observer {
    interface: String,
}

impl Observer {
    /// Reads counters at each [`BEGIN`], and sends the difference at each [`END`].
    fn follow_commands(&self, server: &Server, workers: &[i32], handle: &Handle) -> Result<(), Error> {
        let interface = host::interface(&self.interface)?;
        let mut begun = None;
        for line in io::stdin().lock().lines() {
            match line?.as_str() {
                BEGIN => {
                    let cpu = cpu_seconds(workers)?;
                    begun = Some((Snapshot::take(&interface)?, server.requests(), cpu, waits(handle)));
                }
                END => {
                    let Some((before, requests, cpu, waits_before)) = begun.take() else { continue };
                    let delta = Snapshot::take(&interface)?.since(&before);
                    send(&ServerMeasurement {
                        requests: server.requests() - requests,
                        seconds: delta.elapsed.as_secs_f64(),
                        thread_cpu: cpu_seconds(workers)? - cpu,
                        kernel_thread_cpu: delta
                            .napi_threads
                            .iter()
                            .map(|it| it.cpu_time.as_secs_f64())
                            .sum(),
                        waits: waits(handle) - waits_before,
                    })?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// CPU time of these threads so far, in seconds.
fn cpu_seconds(threads: &[i32]) -> io::Result<f64> {
    threads.iter().map(|&thread| Ok(thread_cpu_time(thread)?.as_secs_f64())).sum()
}
