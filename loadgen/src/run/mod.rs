//! A run: connect, start, measure.

pub(crate) mod preload;
pub(crate) mod schedule;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::error::Error;
use crate::report::Report;
use crate::run::schedule::POLL_INTERVAL;
use crate::run::worker::{StartBarrier, WorkerIndex, run_worker};
use crate::stats::Slicing;
use crate::stats::collector::{Collector, Measurement};
use crate::stats::timeline::Progress;

/// Runs a load on all workers of the runtime.
///
/// # Errors
/// Returns an error if the configuration is invalid, a connection can't be made or breaks, or a
/// server violates the protocol.
pub async fn run(config: &Config) -> Result<Report, Error> {
    run_until(config, &AtomicBool::new(false), |_| {}).await
}

/// Runs a load until its duration is over or `stop` is set. If it is stopped, the report covers the
/// time until then. Calls `progress` ten times per second.
pub async fn run_until(
    config: &Config,
    stop: &AtomicBool,
    progress: impl FnMut(Progress),
) -> Result<Report, Error> {
    let load = Load::prepare(config, WorkerRange::default(), stop).await?;
    load.start(Instant::now());
    let measurement = load.finish(stop, progress).await?;
    Report::compute(config, measurement, Vec::new()).await
}

/// This generator's workers among those of all generators.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct WorkerRange {
    pub(crate) first: usize,
    /// Workers of all generators; 0 if this is the only one.
    pub(crate) total: usize,
}

pub(crate) struct Load {
    config: Config,
    workers: usize,
    slicing: Slicing,
    barrier: Arc<StartBarrier>,
    collector: Collector,
    handles: Vec<runtime::JoinHandle<Result<f64, Error>>>,
}

impl Load {
    /// Makes the connections, and does everything else that would delay requests later. Also
    /// returns if a worker fails or `stop` is set.
    pub(crate) async fn prepare(
        config: &Config,
        range: WorkerRange,
        stop: &AtomicBool,
    ) -> Result<Self, Error> {
        config.validate()?;
        let local_workers = runtime::workers();
        let total_workers = range.total.max(local_workers);
        if config.round_robin && total_workers < config.servers.len() {
            return Err(Error::Config(
                "round-robin (-R) needs at least as many workers (-T) as servers, because each worker connects to one server"
                    .to_owned(),
            ));
        }
        let barrier = Arc::new(StartBarrier::default());
        let slicing = Slicing::new(config.duration);
        let (collector, sender) = Collector::spawn(config, slicing)?;
        let mut handles = Vec::new();
        for worker in 0..local_workers {
            let index = WorkerIndex { local_workers, index: range.first + worker, total_workers };
            let (config, sender, barrier) = (config.clone(), sender.clone(), Arc::clone(&barrier));
            handles.push(runtime::spawn_on(worker, move || async move {
                let result = run_worker(&config, index, &barrier, sender).await;
                if result.is_err() {
                    barrier.stop.store(true, Ordering::SeqCst);
                }
                result
            }));
        }
        let load =
            Self { config: config.clone(), workers: local_workers, slicing, barrier, collector, handles };
        while load.barrier.ready() < local_workers {
            if load.has_ended_worker() || stop.load(Ordering::Relaxed) {
                break;
            }
            runtime::sleep(Duration::from_millis(1)).await;
        }
        Ok(load)
    }

    /// Whether a worker has ended. Before the start that means that it could not connect.
    pub(crate) fn has_ended_worker(&self) -> bool {
        self.handles.iter().any(runtime::JoinHandle::is_finished)
    }

    /// Cancels the load before its start.
    pub(crate) fn abandon(self) {
        self.handles.iter().for_each(runtime::JoinHandle::abort);
    }

    /// Starts at a time that may be in the future.
    pub(crate) fn start(&self, start: Instant) {
        let start = self.barrier.start_at(start);
        self.collector.start(start);
    }

    /// Runs until the duration is over or `stop` is set.
    pub(crate) async fn finish(
        self,
        stop: &AtomicBool,
        mut progress: impl FnMut(Progress),
    ) -> Result<Measurement, Error> {
        let Self { config, workers, slicing, barrier, collector, handles } = self;
        let start = barrier.start_at(Instant::now());
        let (mut failed, mut busiest) = (None, 0.0_f64);
        let mut stopped = None;
        for mut handle in handles {
            let result = loop {
                let result = runtime::timeout(POLL_INTERVAL, &mut handle).await;
                let stopping = stop.load(Ordering::Relaxed) || collector.precise_intervals().is_some();
                if stopping && !barrier.stop.swap(true, Ordering::SeqCst) {
                    stopped = Some(start.elapsed());
                }
                match result {
                    Ok(Ok(result)) => break result,
                    Ok(Err(error)) => break Err(error.into()),
                    Err(_) => {
                        if let Some(latest) = collector.progress() {
                            progress(Progress { elapsed: start.elapsed(), ..latest });
                        }
                    }
                }
            };
            match result {
                Ok(busy) => busiest = busiest.max(busy),
                Err(error) => {
                    // A worker that panicked has not set it.
                    barrier.stop.store(true, Ordering::SeqCst);
                    failed = failed.or(Some(error));
                }
            }
        }
        let precise_intervals = collector.precise_intervals();
        let (timeline, written) = collector.finish();
        if let Some(error) = failed {
            return Err(error);
        }
        written?;
        let intervals = stopped.map_or(slicing.count, |stopped: Duration| {
            // An incomplete interval would show too low a rate.
            let complete = slicing.complete_after(stopped.saturating_sub(config.warm_up()));
            // What came after the interval whose end had the precision may take it away again.
            precise_intervals.map_or(complete, |precise| precise.min(complete))
        });
        let stopped = stopped.is_some();
        let broken = barrier.alive.first_broken();
        Ok(Measurement { workers, timeline, slicing, intervals, stopped, broken, busiest })
    }
}
