//! A run: connect, load, measure.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::collector::Collector;
use crate::config::{Config, WarmUp};
use crate::error::Error;
use crate::progress::Progress;
use crate::report::Report;
use crate::steady;
use crate::tally::{Cut, Timeline};
use crate::worker::{Place, Together, take_part};

/// Who waits looks so often whether it is over, and tells how far it is.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

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
    progress: impl FnMut(Progress),
) -> Result<Report, Error> {
    let load = Load::prepare(config, Share::default(), stop).await?;
    load.begin(Instant::now());
    let measured = load.finish(stop, progress).await?;
    Ok(Report::new(config, measured, Vec::new()))
}

/// Which of the workers of all generators are this one's.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Share {
    /// So many are before them.
    pub(crate) first: usize,
    /// How many there are in all; 0 where all are this one's.
    pub(crate) of: usize,
}

/// What a run counted.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) workers: usize,
    pub(crate) timeline: Timeline,
    pub(crate) cut: Cut,
    /// Pieces that count, which is fewer than there could be where a run ended before its time.
    pub(crate) whole: u32,
    /// Whether it was stopped.
    pub(crate) stopped: bool,
    /// How long it was, where a recording was over before the time was.
    pub(crate) over: Option<Duration>,
}

/// A load that is ready to begin, or has begun.
pub(crate) struct Load {
    config: Config,
    workers: usize,
    cut: Cut,
    together: Arc<Together>,
    collector: Collector,
    handles: Vec<runtime::JoinHandle<Result<Option<Instant>, Error>>>,
}

impl Load {
    /// Makes the connections, and all else that would take time later.
    pub(crate) async fn prepare(config: &Config, share: Share, stop: &AtomicBool) -> Result<Self, Error> {
        config.check()?;
        let workers_here = runtime::workers();
        if config.round_robin && share.of.max(workers_here) < config.servers.len() {
            return Err(Error::Config(
                "each worker asks one server, and there are fewer workers than servers".to_owned(),
            ));
        }
        let together = Arc::new(Together::default());
        let cut = Cut::of(config.duration);
        let (collector, outlet) = Collector::start(config, cut)?;
        let mut handles = Vec::new();
        for here in 0..workers_here {
            let place =
                Place { workers_here, worker: share.first + here, workers: share.of.max(workers_here) };
            let (config, outlet, together) = (config.clone(), outlet.clone(), Arc::clone(&together));
            handles.push(runtime::spawn_on(here, move || async move {
                let result = take_part(&config, place, &together, outlet).await;
                if result.is_err() {
                    // The others would go on for nothing.
                    together.stop.store(true, Ordering::SeqCst);
                }
                result
            }));
        }
        let load = Self { config: config.clone(), workers: workers_here, cut, together, collector, handles };
        // Connections are made before the clock starts, however many there are.
        while load.together.ready.load(Ordering::SeqCst) < workers_here as u64 {
            if load.has_ended() || stop.load(Ordering::Relaxed) {
                break;
            }
            runtime::sleep(Duration::from_millis(1)).await;
        }
        Ok(load)
    }

    /// Whether a worker has, which before the beginning is because it could not connect.
    pub(crate) fn has_ended(&self) -> bool {
        self.handles.iter().any(runtime::JoinHandle::is_finished)
    }

    /// Gives up before the beginning.
    pub(crate) fn abandon(self) {
        self.handles.iter().for_each(runtime::JoinHandle::abort);
    }

    /// Begins at a time that may be yet to come.
    pub(crate) fn begin(&self, at: Instant) {
        let begun = *self.together.begun.get_or_init(|| at);
        self.collector.begin(begun);
    }

    /// Runs until the time is over or `stop` is set, and returns what was counted.
    pub(crate) async fn finish(
        self,
        stop: &AtomicBool,
        mut progress: impl FnMut(Progress),
    ) -> Result<Measured, Error> {
        let Self { config, workers, cut, together, collector, handles } = self;
        let begun = *together.begun.get_or_init(Instant::now);
        let mut failed = None;
        let mut stopped = None;
        // When each worker's recording was over; a worker whose isn't goes on to the end.
        let mut over: Option<Vec<Instant>> = Some(Vec::new());
        for mut handle in handles {
            let result = loop {
                let result = runtime::timeout(LOOK, &mut handle).await;
                let enough = stop.load(Ordering::Relaxed) || collector.is_sure();
                if enough && !together.stop.swap(true, Ordering::SeqCst) {
                    stopped = Some(begun.elapsed());
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
            match result {
                Ok(Some(ended)) => over.iter_mut().for_each(|all| all.push(ended)),
                Ok(None) => over = None,
                Err(error) => {
                    // Also for a worker that panicked, which could not say so itself.
                    together.stop.store(true, Ordering::SeqCst);
                    failed = failed.or(Some(error));
                }
            }
        }
        let (timeline, written) = collector.finish();
        if let Some(error) = failed {
            return Err(error);
        }
        written?;
        let over = over.and_then(|all| all.into_iter().max()).map(|last| last - begun);
        let measured = |ended: Duration| ended.saturating_sub(config.warm_up());
        let over = over.map(measured).filter(|_| stopped.is_none());
        let whole = match (stopped, over) {
            // A piece that is not whole would show a rate that never was.
            (Some(stopped), _) => cut.whole(measured(stopped)),
            // All of a recording is told.
            (None, Some(over)) => (cut.whole(over) + 1).min(cut.pieces),
            (None, None) => cut.pieces,
        };
        Ok(Measured { workers, timeline, cut, whole, stopped: stopped.is_some(), over })
    }
}

/// The first piece that is not left out, of so many.
pub(crate) fn first_that_counts(config: &Config, timeline: &Timeline, end: u32) -> u32 {
    match config.warm_up {
        WarmUp::Fixed(_) => 0,
        WarmUp::UntilSteady => steady::first_steady(timeline, end, config.pacing.is_closed()),
    }
}
