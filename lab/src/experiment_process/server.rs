//! The memcached server of an experiment.

use std::io::{self, BufRead};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;

use policies::Cpus;
use runtime::io::{AsyncFd, Direction, SourceKind};
use runtime::{Builder, Handle};
use servers::memcached::{Config, Server};

use super::messages::{ServerCounts, ServerReady, ServerSpec, send};
use crate::Error;
use crate::peers::raise_descriptor_limit;
use crate::peers::lull::waits;

/// The most connections that the server accepts: those of the largest load, and those that observe
/// it.
const MOST_CONNECTIONS: usize = 10_100;

/// Serves until the lab closes this process's standard input.
pub(super) fn run(spec: &ServerSpec) -> Result<(), Error> {
    let mut builder = Builder::new()
        .ignore_environment()
        .policy(spec.policy)
        .workers(spec.cores.len())
        .cores(spec.cores.clone())
        .packing_cores(Cpus::one(spec.packing_core))
        .wait(spec.wait.parse().map_err(io::Error::other)?)
        .driver(spec.driver);
    builder = spec.polling.set(builder);
    if let Some(name) = &spec.interface {
        builder = builder.interface(name);
    }
    let mut runtime = builder.build()?;
    let applied = runtime.applied().to_vec();
    raise_descriptor_limit()?;
    let config = Config {
        listen: vec![(spec.address, None)],
        port: Some(0),
        max_connections: MOST_CONNECTIONS,
        memory: if spec.memory > 0 { spec.memory } else { Config::default().memory },
        ..Config::default()
    };
    let (stop, stopped) = UnixStream::pair()?;
    let answering = runtime.block_on(async move {
        stopped.set_nonblocking(true)?;
        let stopped = AsyncFd::new(stopped, SourceKind::Other)?;
        let server = Arc::new(Server::start(&config)?);
        let reports = runtime::reports();
        let report = reports.first().ok_or_else(|| io::Error::other("the runtime reports no worker"))?;
        send(&ServerReady {
            address: server.addresses()[0],
            ran: report.running.to_string(),
            steps_down: report.steps_down.clone(),
            reports: serde_json::to_value(&reports)?,
            applied: serde_json::to_value(&applied)?,
        })?;
        let observed = Arc::clone(&server);
        let handle = Handle::current();
        // On another thread: the worker is to serve only.
        let answering = thread::spawn(move || -> io::Result<()> {
            let _stop = stop;
            for command in io::stdin().lock().lines() {
                command?;
                send(&ServerCounts { requests: observed.requests(), waits: waits(&handle) })?;
            }
            Ok(())
        });
        stopped.ready(Direction::Read).await;
        Ok::<_, Error>(answering)
    })?;
    Ok(answering.join().unwrap_or_else(|_| Err(io::Error::other("the answering thread panicked")))?)
}
