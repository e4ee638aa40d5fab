//! Runs of the load generator.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use loadgen::{Address, Arrival, Config, Error, Loop, Report, WarmUp};

/// One at a time: they measure delays, and there may be two cores.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Half a second of a closed loop by one connection, without a warm-up.
pub fn config(server: impl Into<Address>) -> Config {
    Config {
        servers: vec![server.into()],
        warm_up: WarmUp::Fixed(Duration::ZERO),
        duration: Duration::from_millis(500),
        ..Config::default()
    }
}

/// At a fixed pace, so that the arithmetic is exact.
///
/// # Panics
/// Never: a fixed gap has a mean.
pub fn open(rate: f64) -> Loop {
    let gaps = "fixed:1".parse().ok().and_then(Arrival::new);
    Loop::Open { rate, arrival: gaps.expect("a fixed gap has a mean") }
}

/// Runs a load on one worker.
///
/// # Panics
/// Where it fails.
pub fn run(config: &Config) -> Report {
    let mut runtime = runtime(1);
    runtime.block_on(loadgen::run(config)).expect("the load runs")
}

/// Stores the records, and runs a load.
///
/// # Errors
/// The load's.
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

/// The command of the test's own build.
///
/// # Panics
/// Where it was not built.
pub fn loadgen(arguments: &[&str]) -> Command {
    let mut command = Command::new(crate::own_program("loadgen"));
    command.args(arguments);
    command
}

/// A server that has no record, and notes when lines come.
#[derive(Debug)]
pub struct Noting {
    /// Where it listens.
    pub address: SocketAddr,
    /// On which connection, by number, and when.
    lines: Arc<Mutex<Vec<(usize, Instant)>>>,
}

impl Noting {
    /// Starts one, which ends with the process.
    ///
    /// # Panics
    /// Where there is no port for it.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&lines);
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().map_while(Result::ok).enumerate() {
                let noted = Arc::clone(&noted);
                std::thread::spawn(move || {
                    for _ in BufReader::new(&stream).lines().map_while(Result::ok) {
                        let now = Instant::now();
                        noted.lock().unwrap_or_else(PoisonError::into_inner).push((number, now));
                        // Fails where the client has gone.
                        let _ = (&stream).write_all(b"END\r\n");
                    }
                });
            }
        });
        Self { address, lines }
    }

    /// When lines came, in order, and on which connection.
    pub fn lines(&self) -> Vec<(usize, Instant)> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone();
        lines.sort_unstable_by_key(|(_, at)| *at);
        lines
    }
}
