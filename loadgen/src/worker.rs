//! One worker's part of a run.

use std::net::UdpSocket;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use policies::counters::this_thread_cpu_time;

use crate::address::Address;
use crate::client::{Connection, Shared};
use crate::collector::Outlet;
use crate::config::{Config, Loop, Protocol};
use crate::error::Error;
use crate::requests::Requests;
use crate::schedule::{Schedule, Times};
use crate::tally::{Cut, LONGEST_PIECE, Live, Tally};
use crate::trace::TracedRequests;
use crate::transport::{Connector, Wire};

/// Answers of an open loop that are still out when the time is over are waited for so long.
const STRAGGLERS: Duration = Duration::from_secs(2);

/// What lets the workers of a run begin and end at the same time.
#[derive(Debug, Default)]
pub(crate) struct Together {
    pub(crate) ready: std::sync::atomic::AtomicU64,
    pub(crate) begun: OnceLock<Instant>,
    pub(crate) stop: Arc<AtomicBool>,
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

/// Which worker it is among those of this process, and among those of all agents.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) workers_here: usize,
    pub(crate) worker: usize,
    pub(crate) workers: usize,
}

/// A way to a server.
enum Path {
    Stream(Wire),
    Datagrams(UdpSocket),
}

/// A worker that is ready to begin.
struct Prepared {
    connector: Connector,
    paths: Vec<(Address, Path)>,
    requests: Requests,
    times: Option<(Times, Option<Duration>)>,
    spare: Vec<Live>,
}

impl Prepared {
    async fn new(config: &Config, place: Place) -> Result<Self, Error> {
        let connector = Connector::new(config)?;
        let mut paths = Vec::new();
        for server in config.servers_of(place.worker) {
            for _ in 0..config.connections {
                let path = match config.protocol {
                    Protocol::Udp => Path::Datagrams(Connector::datagrams(server)?),
                    _ => Path::Stream(connector.connect(server).await?),
                };
                paths.push((server.clone(), path));
            }
        }
        let seed = config.seed.wrapping_add(place.worker as u64 + 1);
        let (worker, workers) = (place.worker as u64, place.workers as u64);
        let binary = config.protocol == Protocol::Binary;
        let mut requests = Requests::new(&config.workload, binary, seed, worker, workers);
        if let Some(trace) = &config.workload.trace {
            requests.follow(TracedRequests::open(trace, place.worker, place.workers)?);
        }
        let times = times(config, place, paths.len())?;
        Ok(Self { connector, paths, requests, times, spare: Tally::spare() })
    }
}

/// When this worker's requests are due, and the least gap between them; `None` in a closed loop.
fn times(
    config: &Config,
    place: Place,
    connections: usize,
) -> Result<Option<(Times, Option<Duration>)>, Error> {
    match &config.pacing {
        Loop::Closed => Ok(None),
        Loop::Open { rate, arrival } => {
            let all = config.all_connections(place.workers_here);
            let share = rate * connections as f64 / all as f64;
            // Half of the mean: so a schedule that has fallen behind catches up.
            let least_gap = config.moderate.then(|| Duration::from_secs_f64((0.5 / share).min(1e6)));
            Ok(Some((Times::Drawn { gaps: arrival.gaps(1.0 / share), seconds: 0.0 }, least_gap)))
        }
        Loop::Recorded { times: Some(path), speed } => {
            Ok(Some((Times::read(path, *speed, place.worker, place.workers)?, None)))
        }
        Loop::Recorded { times: None, speed } => Ok(Some((Times::OfTrace { speed: *speed }, None))),
    }
}

/// Connects, and works when all have. Returns when it ended, where a recording was over before the time was.
pub(crate) async fn take_part(
    config: &Config,
    place: Place,
    together: &Together,
    outlet: Outlet,
) -> Result<Option<Instant>, Error> {
    // Before the clock starts: memory, too.
    let prepared = Prepared::new(config, place).await?;
    let begun = together.begin().await;
    runtime::sleep_until(begun).await;
    work(config, begun, prepared, &together.stop, outlet).await
}

async fn work(
    config: &Config,
    begun: Instant,
    Prepared { connector, paths, requests, times, spare }: Prepared,
    stop: &Arc<AtomicBool>,
    outlet: Outlet,
) -> Result<Option<Instant>, Error> {
    let origin = begun + config.warm_up();
    let cut = Cut::of(config.duration);
    let end = origin + cut.piece * cut.pieces;
    let closed = config.pacing.is_closed();
    let mut tally = Tally::new(origin, cut, spare);
    if config.samples.is_some() {
        tally.keep_samples();
    }
    let shared = Rc::new(Shared {
        requests: requests.into(),
        tally: tally.into(),
        depth: config.depth.max(1),
        closed,
        skip: config.skip,
        think: config.think,
        connector,
        binary: config.protocol == Protocol::Binary,
        datagrams: config.protocol == Protocol::Udp,
        stopping: false.into(),
        exhausted: None.into(),
        end,
        piece: cut.piece,
    });
    let (mut connections, mut tasks) = (Vec::new(), Vec::new());
    for (server, path) in paths {
        let connection = Connection::new(Rc::clone(&shared), server);
        connections.push(Rc::clone(&connection));
        tasks.push(runtime::spawn(async move {
            match path {
                Path::Stream(wire) => connection.run(wire).await,
                Path::Datagrams(socket) => connection.run_datagrams(socket).await,
            }
        }));
    }
    let scheduler = times.filter(|_| !connections.is_empty()).map(|(times, least_gap)| {
        let schedule = Schedule {
            shared: Rc::clone(&shared),
            connections: connections.clone(),
            times,
            least_gap,
            begun,
            end,
            interrupted: Arc::clone(stop),
        };
        runtime::spawn(schedule.run())
    });
    let churner = (config.churn > 0.0 && !connections.is_empty()).then(|| {
        let connections = connections.clone();
        let gap = Duration::from_secs_f64(1.0 / (config.churn * connections.len() as f64));
        runtime::spawn(async move {
            let mut next = begun;
            for connection in connections.iter().cycle() {
                next += gap;
                if next > Instant::now() {
                    runtime::sleep_until(next).await;
                } else {
                    runtime::yield_now().await;
                }
                connection.renew();
            }
        })
    });
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
    let stopped = || {
        let ended = tasks.iter().any(runtime::JoinHandle::is_finished);
        ended || shared.exhausted.get().is_some() || stop.load(Ordering::Relaxed)
    };
    // From the first moment on that is a whole number of steps before the time that is measured.
    let warmed = (config.warm_up().as_nanos() / step.as_nanos()) as u32;
    let mut next = origin - step * warmed;
    while next < end && !stopped() {
        next = (next + step).min(end);
        runtime::sleep_until(next).await;
        flush(next);
    }
    if let Some(churner) = churner {
        churner.abort();
    }
    if let Some(scheduler) = scheduler {
        // Only a fault ends a connection before its time, and then nobody takes what is due.
        if tasks.iter().any(runtime::JoinHandle::is_finished) && shared.exhausted.get().is_none() {
            scheduler.abort();
        } else {
            scheduler.await?;
        }
    }
    // Not before all that was due is handed out: a connection that is idle for a moment would end.
    shared.stopping.set(true);
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
    let fault = shared.requests.borrow_mut().trace().and_then(TracedRequests::fault);
    if let Some(fault) = fault {
        return Err(Error::Config(fault));
    }
    // Of a closed loop those that were out for long when the time was over; of one that was interrupted none.
    if !closed || !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        connections.iter().for_each(|connection| connection.leave_unanswered(now));
    }
    flush(Instant::now());
    Ok(shared.exhausted.get().filter(|over| *over < end))
}
