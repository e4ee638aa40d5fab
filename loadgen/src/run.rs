//! A run: connect, load, measure.

use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use policies::counters::this_thread_cpu_time;

use crate::address::{Address, Wire};
use crate::client::{Connection, Shared};
use crate::collector::{Collector, Outlet};
use crate::report::Report;
use crate::requests::Requests;
use crate::steady;
use crate::tally::{Cut, LONGEST_PIECE, Live, Tally, Timeline};
use crate::workload::{Arrival, Gaps, Workload};

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

/// What is left out at a run's beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WarmUp {
    /// So much, before the time that is measured.
    Fixed(Duration),
    /// As much of the time that is measured as is not steady yet, up to half of it.
    UntilSteady,
}

/// What a run is.
#[derive(Debug, Clone)]
pub struct Config {
    /// Whom to ask; each has all records.
    pub servers: Vec<Address>,
    /// Connections of each of the runtime's workers to each server.
    pub connections: usize,
    /// Whether each worker asks only one of the servers, in turns.
    pub round_robin: bool,
    /// Requests that a connection may have under way.
    pub depth: usize,
    /// Closed or open.
    pub pacing: Loop,
    /// In an open loop: leave a request out whose connection is busy. Latencies then are those of the
    /// others.
    pub skip: bool,
    /// In an open loop: leave at least half of the mean gap between requests, also after a delay. What that
    /// puts off counts to the latency, and not as the generator's lateness.
    pub moderate: bool,
    /// Whether small segments are sent at once (`TCP_NODELAY`).
    pub nodelay: bool,
    /// What to ask.
    pub workload: Workload,
    /// Whether the runtime's workers spin while they wait, so that their CPU time says nothing.
    pub spins: bool,
    /// What to leave out.
    pub warm_up: WarmUp,
    /// Time of measuring.
    pub duration: Duration,
    /// End before the time is over, when the 95 % intervals of rate, median and 99th percentile are within
    /// this share of their middle (0.02: 2 % to both sides).
    pub until_sure: Option<f64>,
    /// Where the random numbers start.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            servers: vec![Address::Tcp(([127, 0, 0, 1], 11211).into())],
            connections: 1,
            round_robin: false,
            depth: 1,
            pacing: Loop::Closed,
            skip: false,
            moderate: false,
            nodelay: true,
            workload: Workload::default(),
            spins: false,
            warm_up: WarmUp::Fixed(Duration::from_secs(1)),
            duration: Duration::from_secs(5),
            until_sure: None,
            seed: 1,
        }
    }
}

impl Config {
    /// The servers of a worker.
    fn servers_of(&self, worker: usize) -> &[Address] {
        if self.round_robin && !self.servers.is_empty() {
            std::slice::from_ref(&self.servers[worker % self.servers.len()])
        } else {
            &self.servers
        }
    }

    /// Connections over all workers.
    pub(crate) fn all_connections(&self, workers: usize) -> usize {
        (0..workers).map(|worker| self.servers_of(worker).len() * self.connections).sum()
    }

    pub(crate) fn warm_up(&self) -> Duration {
        match self.warm_up {
            WarmUp::Fixed(time) => time,
            WarmUp::UntilSteady => Duration::ZERO,
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
        server: Address,
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
    #[error(
        "{refused} of {records} records could not be stored on {server} (is its memory or item limit too small?)"
    )]
    NotStored {
        /// Whom.
        server: Address,
        /// How many were refused.
        refused: u64,
        /// Of how many.
        records: u64,
    },
    /// There is nothing to do.
    #[error("{0}")]
    Config(String),
    /// The thread that puts together what is counted could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// A worker's task ended.
    #[error("a worker failed: {0}")]
    Worker(#[from] runtime::JoinError),
}

/// Answers of an open loop that are still out when the time is over are waited for so long.
const STRAGGLERS: Duration = Duration::from_secs(2);
/// Who waits looks so often whether it is over, and tells how far it is.
pub(crate) const LOOK: Duration = Duration::from_millis(100);
/// The farthest that a schedule is worked out ahead in one go.
const BURST: usize = 256;

pub(crate) async fn connect(server: &Address, nodelay: bool) -> Result<Wire, Error> {
    let failed = |source| Error::Connect { server: server.clone(), source };
    Wire::open(server, nodelay).await.map_err(failed)
}

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Time since the start, warm-up included.
    pub elapsed: Duration,
    /// Requests answered so far.
    pub requests: u64,
    /// Requests a second over the last second.
    pub qps: f64,
    /// The median latency of the last second, µs.
    pub p50_us: f64,
    /// The 99th percentile of the last second, µs.
    pub p99_us: f64,
    /// Errors and wrong values so far.
    pub errors: u64,
}

impl Progress {
    pub(crate) fn of(timeline: &Timeline, elapsed: Duration, warm_up: Duration, cut: Cut) -> Self {
        // The newest pieces that are whole, and that all workers have told of.
        let now = elapsed.saturating_sub(warm_up).as_nanos() / cut.piece.as_nanos();
        let end = u32::try_from(now).unwrap_or(u32::MAX).saturating_sub(1).min(cut.pieces);
        let first = end.saturating_sub(10);
        // As they are kept: this is done ten times a second.
        let latency = timeline.latency(first..end);
        let seconds = cut.piece.as_secs_f64() * f64::from(end - first);
        Self {
            elapsed,
            requests: timeline.requests(),
            qps: if seconds > 0.0 { latency.count() as f64 / seconds } else { 0.0 },
            p50_us: latency.quantile(0.5) as f64 / 1e3,
            p99_us: latency.quantile(0.99) as f64 / 1e3,
            errors: timeline.errors() + timeline.wrong(),
        }
    }
}

/// Runs a load, on all workers of the runtime.
///
/// # Errors
/// Where a connection can't be made or breaks, or answers are not memcached's.
pub async fn run(config: &Config) -> Result<Report, Error> {
    run_until(config, &AtomicBool::new(false), |_| {}).await
}

/// Runs a load until its time is over, or `stop` is set: the report is then of what was measured so far.
/// Tells ten times a second how far it is.
///
/// # Errors
/// As [`run`].
pub async fn run_until(
    config: &Config,
    stop: &AtomicBool,
    mut progress: impl FnMut(Progress),
) -> Result<Report, Error> {
    if config.servers.is_empty() || config.connections == 0 {
        return Err(Error::Config("there is no server to ask, or no connection to ask by".to_owned()));
    }
    let workers = runtime::workers();
    let together = Arc::new(Together::default());
    let cut = Cut::of(config.duration);
    let (collector, outlet) = Collector::start(config, cut).map_err(Error::Thread)?;
    let mut handles = Vec::new();
    for worker in 0..workers {
        let (config, outlet, together) = (config.clone(), outlet.clone(), Arc::clone(&together));
        handles.push(runtime::spawn_on(worker, move || async move {
            let result = take_part(&config, worker, workers, &together, outlet).await;
            if result.is_err() {
                // The others would go on for nothing.
                together.stop.store(true, Ordering::SeqCst);
            }
            result
        }));
    }
    drop(outlet);
    // Connections are made before the clock starts, however many there are.
    while together.ready.load(Ordering::SeqCst) < workers as u64 {
        if handles.iter().any(runtime::JoinHandle::is_finished) || stop.load(Ordering::Relaxed) {
            break;
        }
        runtime::sleep(Duration::from_millis(1)).await;
    }
    let begun = *together.begun.get_or_init(Instant::now);
    collector.begin(begun);
    let mut failed = None;
    let mut ended = None;
    for mut handle in handles {
        let result = loop {
            let result = runtime::timeout(LOOK, &mut handle).await;
            let enough = stop.load(Ordering::Relaxed) || collector.is_sure();
            if enough && !together.stop.swap(true, Ordering::SeqCst) {
                ended = Some(begun.elapsed());
            }
            match result {
                Ok(Ok(result)) => break result,
                Ok(Err(error)) => break Err(error.into()),
                Err(_) => {
                    if let Some(seen) = collector.progress() {
                        progress(Progress { elapsed: begun.elapsed(), ..seen });
                    }
                }
            }
        };
        if let Err(error) = result {
            // Also for a worker that panicked, which could not say so itself.
            together.stop.store(true, Ordering::SeqCst);
            failed = failed.or(Some(error));
        }
    }
    let timeline = collector.finish();
    if let Some(error) = failed {
        return Err(error);
    }
    // A piece that is not whole would show a rate that never was.
    let end = match ended.map(|ended| ended.saturating_sub(config.warm_up())) {
        Some(measured) => cut.whole(measured),
        None => cut.pieces,
    };
    let first = first_that_counts(config, &timeline, end);
    Ok(Report::new(config, workers, timeline, cut.piece, first..end))
}

/// The first piece that is not left out, of so many.
pub(crate) fn first_that_counts(config: &Config, timeline: &Timeline, end: u32) -> u32 {
    match config.warm_up {
        WarmUp::Fixed(_) => 0,
        WarmUp::UntilSteady => steady::first_steady(timeline, end, config.pacing == Loop::Closed),
    }
}

/// What lets the workers of a run begin and end at the same time.
#[derive(Debug, Default)]
struct Together {
    ready: AtomicU64,
    begun: OnceLock<Instant>,
    stop: Arc<AtomicBool>,
}

impl Together {
    async fn begin(&self) -> Instant {
        self.ready.fetch_add(1, Ordering::SeqCst);
        loop {
            match self.begun.get() {
                Some(begun) => return *begun,
                None => runtime::sleep(Duration::from_millis(1)).await,
            }
        }
    }
}

/// Connects, and works when all have.
async fn take_part(
    config: &Config,
    worker: usize,
    workers: usize,
    together: &Together,
    outlet: Outlet,
) -> Result<(), Error> {
    let mut wires = Vec::new();
    for server in config.servers_of(worker) {
        for _ in 0..config.connections {
            wires.push(connect(server, config.nodelay).await?);
        }
    }
    // Made before the clock starts, too.
    let spare = Tally::spare();
    let place = Place { worker, workers, begun: together.begin().await };
    work(config, place, wires, spare, &together.stop, outlet).await
}

/// Which worker it is, of how many, and when they begin.
#[derive(Debug, Clone, Copy)]
struct Place {
    worker: usize,
    workers: usize,
    begun: Instant,
}

async fn work(
    config: &Config,
    Place { worker, workers, begun }: Place,
    wires: Vec<Wire>,
    spare: Vec<Live>,
    stop: &Arc<AtomicBool>,
    outlet: Outlet,
) -> Result<(), Error> {
    let origin = begun + config.warm_up();
    let cut = Cut::of(config.duration);
    let end = origin + cut.piece * cut.pieces;
    let closed = config.pacing == Loop::Closed;
    let seed = config.seed.wrapping_add(worker as u64 + 1);
    let requests = Requests::new(&config.workload, seed, worker as u64, workers as u64);
    let shared = Rc::new(Shared {
        requests: requests.into(),
        tally: Tally::new(origin, cut, spare).into(),
        depth: config.depth.max(1),
        closed,
        skip: config.skip,
        stopping: false.into(),
        end,
        piece: cut.piece,
    });
    let connections: Vec<_> = wires.iter().map(|_| Connection::new(Rc::clone(&shared))).collect();
    let tasks: Vec<_> = connections
        .iter()
        .zip(wires)
        .map(|(connection, wire)| {
            let connection = Rc::clone(connection);
            runtime::spawn(async move {
                match wire {
                    Wire::Tcp(stream) => connection.run(stream).await,
                    Wire::Unix(stream) => connection.run(stream).await,
                }
            })
        })
        .collect();
    let scheduler = match config.pacing {
        Loop::Open { rate, arrival } if !connections.is_empty() => {
            let share = rate * connections.len() as f64 / config.all_connections(workers) as f64;
            let schedule = Schedule {
                shared: Rc::clone(&shared),
                connections: connections.clone(),
                gaps: arrival.gaps(1.0 / share),
                // Half of the mean: so a schedule that has fallen behind catches up.
                least_gap: config.moderate.then(|| Duration::from_secs_f64(0.5 / share)),
                begun,
                end,
                interrupted: Arc::clone(stop),
            };
            Some(runtime::spawn(schedule.run()))
        }
        _ => None,
    };
    let post = outlet.open();
    let mut cpu = this_thread_cpu_time();
    let step = cut.piece.min(LONGEST_PIECE);
    let mut flush = |moment: Instant| {
        let now = this_thread_cpu_time();
        let mut tally = shared.tally.borrow_mut();
        // It was spent before now, and the piece may end here.
        tally.counts(moment - step / 2).cpu +=
            u64::try_from((now - std::mem::replace(&mut cpu, now)).as_nanos()).unwrap_or(0);
        let taken = tally.take();
        tally.give_back(post.exchange(taken));
    };
    let stopped = || stop.load(Ordering::Relaxed) || tasks.iter().any(runtime::JoinHandle::is_finished);
    // From the first moment on that is a whole number of steps before the time that is measured.
    let warmed = (config.warm_up().as_nanos() / step.as_nanos()) as u32;
    let mut next = origin - step * warmed;
    while next < end && !stopped() {
        next = (next + step).min(end);
        runtime::sleep_until(next).await;
        flush(next);
    }
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
    // Of a closed loop those that were out for long when the time was over; of one that was interrupted none.
    if !closed || !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        connections.iter().for_each(|connection| connection.leave_unanswered(now));
    }
    flush(Instant::now());
    Ok(())
}

/// Hands requests to the connections in turn, each when it is due.
struct Schedule {
    shared: Rc<Shared>,
    connections: Vec<Rc<Connection>>,
    gaps: Gaps,
    least_gap: Option<Duration>,
    begun: Instant,
    end: Instant,
    interrupted: Arc<AtomicBool>,
}

impl Schedule {
    async fn run(self) {
        let mut seconds = 0.0;
        let mut due = self.begun;
        // With a least gap: before this nothing is sent.
        let mut earliest = self.begun;
        let mut turn = 0;
        // By the schedule, not by the clock, and to its end: what a generator that was held up did not get to
        // in time is late, not lost.
        while due < self.end && !self.interrupted.load(Ordering::Relaxed) {
            let planned = due.max(earliest);
            let now = Instant::now();
            if planned > now {
                runtime::sleep_until(planned.min(now + LOOK)).await;
                continue;
            }
            let mut burst = 0;
            while due <= now && earliest <= now && due < self.end && burst < BURST {
                self.connections[turn % self.connections.len()].hand(due, due.max(earliest), now);
                turn += 1;
                burst += 1;
                if let Some(gap) = self.least_gap {
                    earliest = now + gap;
                }
                seconds += self.gaps.draw(self.shared.requests.borrow_mut().random());
                due = self.begun + Duration::from_secs_f64(seconds);
            }
            if burst == BURST {
                runtime::yield_now().await;
            }
        }
    }
}
