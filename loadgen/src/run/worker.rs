//! One worker's part of a run.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use policies::thread_time::this_thread_cpu_time;
use rand::rngs::SmallRng;

use crate::address::Address;
use crate::config::{Assign, Config, Loop, Protocol};
use crate::connection::{Alive, Connection, Socket, WorkerState};
use crate::error::Error;
use crate::protocol::request_writer::RequestWriter;
use crate::run::schedule::{ArrivalTimes, Schedule};
use crate::stats::collector::Delivery;
use crate::stats::recorder::{IntervalHistograms, Recorder};
use crate::stats::{LONGEST_INTERVAL, Slicing};
use crate::transport::Connector;

/// How long to wait, after the end, for outstanding responses.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy)]
pub(super) struct WorkerIndex {
    pub(super) local_workers: usize,
    pub(super) index: usize,
    pub(super) total_workers: usize,
}

struct PreparedWorker {
    connector: Connector,
    sockets: Vec<(Address, Socket)>,
    requests: RequestWriter,
    /// Open loop: due times and the minimum gap between requests.
    times: Option<(ArrivalTimes, Option<Duration>)>,
    spare: Vec<IntervalHistograms>,
}

impl PreparedWorker {
    async fn new(config: &Config, worker: WorkerIndex) -> Result<Self, Error> {
        let connector = Connector::new(config)?;
        let mut sockets = Vec::new();
        for server in config.servers_of(worker.index) {
            for _ in 0..config.connections {
                let socket = match config.protocol {
                    Protocol::Udp => Socket::Datagram(Connector::datagram_socket(server)?),
                    _ => Socket::Stream(connector.connect(server).await?),
                };
                sockets.push((server.clone(), socket));
            }
        }
        let seed = config.seed.wrapping_add(worker.index as u64 + 1);
        let (index, total) = (worker.index as u64, worker.total_workers as u64);
        let mut requests = RequestWriter::new(&config.workload, config.protocol, seed, index, total);
        let times = arrival_times(config, worker, sockets.len(), requests.random());
        Ok(Self { connector, sockets, requests, times, spare: Recorder::preallocate() })
    }
}

/// When this worker's requests are due, and the minimum gap between them. `None` in the closed
/// loop.
fn arrival_times(
    config: &Config,
    worker: WorkerIndex,
    connections: usize,
    random: &mut SmallRng,
) -> Option<(ArrivalTimes, Option<Duration>)> {
    match &config.pacing {
        Loop::Closed => None,
        Loop::Open { rate, arrival } => {
            let all = config.total_connections(worker.local_workers);
            let share = rate * connections as f64 / all as f64;
            // Half of the mean gap, so that a late schedule can catch up.
            let min_gap = config.moderate.then(|| Duration::from_secs_f64((0.5 / share).min(1e6)));
            let times = match config.assign {
                Assign::PerConnection => {
                    let gaps = arrival.gaps(connections as f64 / share);
                    ArrivalTimes::per_connection(gaps, connections, random)
                }
                // Fixed gaps would let all workers send at the same times.
                _ => {
                    let phase = worker.index as f64 / worker.total_workers.max(1) as f64;
                    ArrivalTimes::Random { gaps: arrival.gaps(1.0 / share), seconds: phase / share }
                }
            };
            Some((times, min_gap))
        }
    }
}

/// Connects, waits for the start, and runs the load. Returns the CPU utilization of the worker's
/// thread in the measurement.
pub(super) async fn run_worker(
    config: &Config,
    worker: WorkerIndex,
    barrier: &StartBarrier,
    collector: Sender<Delivery>,
) -> Result<f64, Error> {
    // Connect and allocate before the start.
    let prepared = PreparedWorker::new(config, worker).await?;
    barrier.alive.add(prepared.sockets.len());
    let start = barrier.wait().await;
    runtime::sleep_until(start).await;
    generate_load(config, start, prepared, barrier, collector).await
}

async fn generate_load(
    config: &Config,
    start: Instant,
    PreparedWorker { connector, sockets, requests, times, spare }: PreparedWorker,
    StartBarrier { stop, alive, .. }: &StartBarrier,
    collector: Sender<Delivery>,
) -> Result<f64, Error> {
    let origin = start + config.warm_up();
    let slicing = Slicing::new(config.duration);
    let end = origin + slicing.interval * slicing.count;
    let mut recorder = Recorder::new(origin, slicing, spare);
    if config.sample_file.is_some() {
        recorder.samples = Some(Vec::new());
    }
    let worker = Rc::new(WorkerState {
        config: config.clone(),
        alive: Arc::clone(alive),
        requests: requests.into(),
        recorder: recorder.into(),
        connector,
        for_any: RefCell::default(),
        stopping: false.into(),
        end,
        interval: slicing.interval,
    });
    let (mut connections, mut tasks) = (Vec::new(), Vec::new());
    for (server, socket) in sockets {
        let connection = Connection::new(Rc::clone(&worker), server);
        connections.push(Rc::clone(&connection));
        tasks.push(runtime::spawn(async move { connection.run_or_break(socket).await }));
    }
    let schedule = times.filter(|_| !connections.is_empty()).map(|(times, min_gap)| {
        let schedule = Schedule {
            worker: Rc::clone(&worker),
            connections: connections.clone(),
            times,
            min_gap,
            start,
            interrupted: Arc::clone(stop),
        };
        runtime::spawn(schedule.run())
    });
    let churn = (config.churn > 0.0 && !connections.is_empty()).then(|| {
        let gap = Duration::from_secs_f64(1.0 / (config.churn * connections.len() as f64));
        runtime::spawn(reconnect_in_turn(connections.clone(), start, gap))
    });
    let (emptied_sender, emptied) = channel();
    let mut cpu = this_thread_cpu_time();
    let step = slicing.interval.min(LONGEST_INTERVAL);
    let mut flush = |time: Instant| {
        let now = this_thread_cpu_time();
        let mut recorder = worker.recorder.borrow_mut();
        // The CPU time was spent before `time`, at which the next interval may begin.
        recorder.counts(time - step / 2).cpu +=
            u64::try_from((now - std::mem::replace(&mut cpu, now)).as_nanos()).unwrap_or(0);
        // Fails if the run has failed on another worker.
        let _ = collector.send(Delivery { batch: recorder.take(), emptied: emptied_sender.clone() });
        recorder.spare.extend(emptied.try_iter().flatten());
    };
    let has_ended = || tasks.iter().any(runtime::JoinHandle::is_finished) || stop.load(Ordering::Relaxed);
    // Flushes are a whole number of steps before the measurement, so that they coincide with its
    // start.
    let warm_up_steps = (config.warm_up().as_nanos() / step.as_nanos()) as u32;
    let mut next = origin - step * warm_up_steps;
    let mut measured = None;
    while next < end && !has_ended() {
        next = (next + step).min(end);
        runtime::sleep_until(next).await;
        flush(next);
        if measured.is_none() && next >= origin {
            measured = Some((Instant::now(), this_thread_cpu_time()));
        }
    }
    let busy = measured.map_or(0.0, |(since, cpu)| {
        (this_thread_cpu_time() - cpu).as_secs_f64() / since.elapsed().as_secs_f64().max(1e-9)
    });
    if let Some(churn) = churn {
        churn.abort();
    }
    if let Some(schedule) = schedule {
        // A connection ends early only by an error. Then nothing would take the requests that are
        // due.
        if tasks.iter().any(runtime::JoinHandle::is_finished) {
            schedule.abort();
        } else {
            schedule.await?;
        }
    }
    // After the schedule: a connection that is idle while requests are still due must not end.
    worker.stopping.set(true);
    connections.iter().for_each(|connection| connection.wake());
    let drain_deadline = Instant::now() + DRAIN_TIMEOUT;
    let mut result = Ok(());
    for mut task in tasks {
        let remaining = drain_deadline.saturating_duration_since(Instant::now());
        match runtime::timeout(remaining, &mut task).await {
            Ok(ended) => result = result.and(ended?),
            Err(_) => task.abort(),
        }
    }
    result?;
    // If the closed loop was interrupted, its requests in flight are not unanswered.
    if !config.pacing.is_closed() || !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        if let Some(connection) = connections.first() {
            connection.waiting.borrow_mut().append(&mut worker.for_any.borrow_mut());
        }
        connections.iter().for_each(|connection| connection.count_all_unanswered(now));
    }
    flush(Instant::now());
    Ok(busy)
}

/// Reconnects the connections one after the other, with this gap.
async fn reconnect_in_turn(connections: Vec<Rc<Connection>>, start: Instant, gap: Duration) {
    let mut next = start;
    for connection in connections.iter().cycle() {
        next += gap;
        if next > Instant::now() {
            runtime::sleep_until(next).await;
        } else {
            runtime::yield_now().await;
        }
        connection.reconnect();
    }
}

/// Lets the workers of a run start and stop at the same time.
#[derive(Debug, Default)]
pub(super) struct StartBarrier {
    ready: AtomicUsize,
    start: OnceLock<Instant>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) alive: Arc<Alive>,
}

impl StartBarrier {
    pub(super) fn ready(&self) -> usize {
        self.ready.load(Ordering::SeqCst)
    }

    /// Sets the start, which may be in the future, unless it is set already. Returns the start.
    pub(super) fn start_at(&self, start: Instant) -> Instant {
        *self.start.get_or_init(|| start)
    }

    /// Reports a worker as ready, and waits until the start is set.
    pub(super) async fn wait(&self) -> Instant {
        self.ready.fetch_add(1, Ordering::SeqCst);
        loop {
            match self.start.get() {
                Some(start) => return *start,
                None => runtime::sleep(Duration::from_millis(1)).await,
            }
        }
    }
}
