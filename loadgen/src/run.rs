//! A run: connect, warm up, measure.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::{AsyncReadExt, AsyncWriteExt};
use net::TcpStream;
use policies::counters::this_thread_cpu_time;

use crate::client::{Answer, Answers, Connection, Shared, Tally, Window};
use crate::report::Report;
use crate::workload::{Arrival, Requests, Workload};

/// When the next request goes out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Loop {
    /// When an answer has come.
    Closed,
    /// At its time, so many a second over all connections.
    Open {
        /// Requests a second.
        rate: f64,
        /// The gaps between them.
        arrival: Arrival,
    },
}

/// What a run is.
#[derive(Debug, Clone)]
pub struct Config {
    /// Whom to ask.
    pub server: SocketAddr,
    /// Connections, spread over the runtime's workers.
    pub connections: usize,
    /// Requests that a connection may have under way.
    pub depth: usize,
    /// Closed or open.
    pub pacing: Loop,
    /// What to ask.
    pub workload: Workload,
    /// Time before measuring.
    pub warm_up: Duration,
    /// Time of measuring.
    pub duration: Duration,
    /// Where the random numbers start.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            server: SocketAddr::from(([127, 0, 0, 1], 11211)),
            connections: 64,
            depth: 1,
            pacing: Loop::Closed,
            workload: Workload::default(),
            warm_up: Duration::from_secs(1),
            duration: Duration::from_secs(5),
            seed: 1,
        }
    }
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A connection could not be made.
    #[error("cannot connect to {server}: {source}")]
    Connect {
        /// Whom.
        server: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A connection broke.
    #[error("a connection broke: {0}")]
    Connection(io::Error),
    /// The server's answers are not memcached's.
    #[error("the server does not answer as memcached does: {0}")]
    Protocol(String),
    /// Records could not be stored.
    #[error("{0} records could not be stored (is the server's memory or item limit too small?)")]
    NotStored(u64),
    /// A worker's task ended.
    #[error("a worker failed: {0}")]
    Worker(#[from] runtime::JoinError),
}

/// Answers of an open loop that are still out when the time is over are waited for so long.
const STRAGGLERS: Duration = Duration::from_secs(2);
/// The farthest that a schedule is worked out ahead in one go.
const BURST: usize = 256;

async fn connect(server: SocketAddr) -> Result<TcpStream, Error> {
    let failed = |source| Error::Connect { server, source };
    let stream = TcpStream::connect_timeout(server, Duration::from_secs(5)).await.map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    Ok(stream)
}

/// Stores every record of the workload once.
///
/// # Errors
/// Where the server can't be reached, or refuses a record.
pub async fn load_records(config: &Config) -> Result<(), Error> {
    let mut stream = connect(config.server).await?;
    let mut requests = Requests::new(&config.workload, config.seed);
    let (mut out, mut buffer) = (Vec::new(), vec![0; 16 << 10]);
    let mut answers = Answers::default();
    let (mut next, mut stored, mut refused) = (0, 0, 0);
    while stored + refused < config.workload.records {
        // So many at a time, so that neither side has to hold much.
        let batch_end = (next + 64).min(config.workload.records);
        for record in next..batch_end {
            requests.set(record, &mut out);
        }
        next = batch_end;
        stream.write_all(&out).await.map_err(Error::Connection)?;
        out.clear();
        while stored + refused < next {
            let length = stream.read(&mut buffer).await.map_err(Error::Connection)?;
            if length == 0 {
                return Err(Error::Connection(io::ErrorKind::UnexpectedEof.into()));
            }
            answers.feed(&buffer[..length], |answer| {
                if answer == Answer::Stored {
                    stored += 1
                } else {
                    refused += 1
                }
                Ok(())
            })?;
        }
    }
    if refused > 0 { Err(Error::NotStored(refused)) } else { Ok(()) }
}

/// Runs a load, on all workers of the runtime.
///
/// # Errors
/// Where a connection can't be made or breaks, or answers are not memcached's.
pub async fn run(config: &Config) -> Result<Report, Error> {
    run_with_progress(config, |_, _| {}).await
}

/// Runs a load and tells ten times a second how far it is: time since the start (warm-up included)
/// and requests answered so far.
pub async fn run_with_progress(
    config: &Config,
    mut progress: impl FnMut(Duration, u64),
) -> Result<Report, Error> {
    let workers = runtime::workers();
    let completed = Arc::new(AtomicU64::new(0));
    // Connections are made before the clock starts, however many there are.
    let ready = Arc::new(AtomicU64::new(0));
    let start = Arc::new(std::sync::OnceLock::<Instant>::new());
    let mut handles = Vec::new();
    for worker in 0..workers {
        let (config, completed) = (config.clone(), Arc::clone(&completed));
        let (ready, start) = (Arc::clone(&ready), Arc::clone(&start));
        handles.push(runtime::spawn_on(worker, move || async move {
            let share = (worker..config.connections).step_by(workers).count();
            let mut streams = Vec::with_capacity(share);
            for _ in 0..share {
                streams.push(connect(config.server).await?);
            }
            ready.fetch_add(1, Ordering::SeqCst);
            let begun = loop {
                match start.get() {
                    Some(begun) => break *begun,
                    None => runtime::sleep(Duration::from_millis(1)).await,
                }
            };
            work(&config, worker, streams, begun, completed).await
        }));
    }
    while ready.load(Ordering::SeqCst) < workers as u64 {
        if handles.iter().any(runtime::JoinHandle::is_finished) {
            break;
        }
        runtime::sleep(Duration::from_millis(1)).await;
    }
    let begun = *start.get_or_init(Instant::now);
    let mut tally = Tally::new();
    let mut failed = None;
    for mut handle in handles {
        let result = loop {
            match runtime::timeout(Duration::from_millis(100), &mut handle).await {
                Ok(result) => break result?,
                Err(_) => progress(begun.elapsed(), completed.load(Ordering::Relaxed)),
            }
        };
        match result {
            Ok(part) => tally.merge(&part),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(Report::new(config, workers, &tally)),
    }
}

async fn work(
    config: &Config,
    worker: usize,
    streams: Vec<TcpStream>,
    begun: Instant,
    completed: Arc<AtomicU64>,
) -> Result<Tally, Error> {
    let window = Window { begin: begun + config.warm_up, end: begun + config.warm_up + config.duration };
    let closed = config.pacing == Loop::Closed;
    let shared = Rc::new(Shared {
        requests: Requests::new(&config.workload, config.seed.wrapping_add(worker as u64 + 1)).into(),
        tally: Tally::new().into(),
        window,
        depth: config.depth.max(1),
        closed,
        stopping: false.into(),
        completed,
    });
    let connections: Vec<_> = streams.iter().map(|_| Connection::new(Rc::clone(&shared))).collect();
    let tasks: Vec<_> = connections
        .iter()
        .zip(streams)
        .map(|(connection, stream)| {
            let connection = Rc::clone(connection);
            runtime::spawn(async move { connection.run(stream).await })
        })
        .collect();
    let scheduler = match config.pacing {
        Loop::Open { rate, arrival } if !connections.is_empty() => {
            let share = rate * connections.len() as f64 / config.connections as f64;
            Some(runtime::spawn(schedule(Rc::clone(&shared), connections.clone(), share, arrival, begun)))
        }
        _ => None,
    };
    runtime::sleep_until(window.begin).await;
    let cpu = this_thread_cpu_time();
    runtime::sleep_until(window.end).await;
    shared.tally.borrow_mut().cpu = this_thread_cpu_time() - cpu;
    shared.stopping.set(true);
    if let Some(scheduler) = scheduler {
        scheduler.await?;
    }
    connections.iter().for_each(|connection| connection.wake());
    let give_up = Instant::now() + STRAGGLERS;
    let mut result = Ok(());
    for mut task in tasks {
        let left = give_up.saturating_duration_since(Instant::now());
        match runtime::timeout(left, &mut task).await {
            Ok(ended) => result = result.and(ended?),
            Err(_) => task.abort(),
        }
    }
    result?;
    if !closed {
        let now = Instant::now();
        connections.iter().for_each(|connection| connection.leave_unanswered(now));
    }
    Ok(shared.tally.borrow().clone())
}

/// Hands requests to the connections in turn, each when it is due.
async fn schedule(
    shared: Rc<Shared>,
    connections: Vec<Rc<Connection>>,
    rate: f64,
    arrival: Arrival,
    begun: Instant,
) {
    let gaps = arrival.gaps(1.0 / rate);
    let mut seconds = 0.0;
    let mut due = begun;
    let mut turn = 0;
    // By the schedule, not by the clock: a generator that was held up must not lose requests.
    while due < shared.window.end {
        runtime::sleep_until(due).await;
        let now = Instant::now();
        let mut burst = 0;
        while due <= now && due < shared.window.end && burst < BURST {
            connections[turn % connections.len()].hand(due, now);
            turn += 1;
            burst += 1;
            seconds += gaps.draw(shared.requests.borrow_mut().random());
            due = begun + Duration::from_secs_f64(seconds);
        }
        if burst == BURST {
            runtime::yield_now().await;
        }
    }
}
