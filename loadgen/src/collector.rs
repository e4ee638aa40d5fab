//! A thread that puts together what the workers have counted. To look a piece through takes a tenth of a
//! millisecond, and more in a build for tests: on a worker that would be a delay in what it measures.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use rustix::process::setpriority_process;
use rustix::thread::gettid;

use crate::batches::{Figure, estimate};
use crate::run::{Config, Progress, first_that_counts};
use crate::tally::{Cut, Live, Taken, Timeline};

/// Pieces on their way from a worker, and back.
struct Parcel {
    taken: Taken,
    back: Sender<Vec<Live>>,
}

/// A worker's end.
#[derive(Clone)]
pub(crate) struct Outlet(Sender<Parcel>);

/// A worker's end once it has begun.
pub(crate) struct Post {
    there: Outlet,
    back: Sender<Vec<Live>>,
    emptied: Receiver<Vec<Live>>,
}

impl Outlet {
    pub(crate) fn open(self) -> Post {
        let (back, emptied) = channel();
        Post { there: self, back, emptied }
    }
}

impl Post {
    /// Sends pieces off, and returns those that have come back empty.
    pub(crate) fn exchange(&self, taken: Taken) -> Vec<Live> {
        // Nobody listens any more where the run has failed elsewhere.
        let _ = self.there.0.send(Parcel { taken, back: self.back.clone() });
        self.emptied.try_iter().flatten().collect()
    }
}

/// The lowest priority (nice).
const LEAST: i32 = 19;

/// So many pieces apart it is looked whether the figures are sure enough.
const LOOK_EVERY: u32 = 5;

/// Whether rate, median and 99th percentile are known within a share of themselves.
fn within(timeline: &Timeline, config: &Config, cut: Cut, whole: u32, share: f64) -> bool {
    // The newest may not be complete on all workers.
    let end = whole.saturating_sub(3);
    let pieces = first_that_counts(config, timeline, end)..end;
    [Figure::Rate, Figure::Quantile(0.5), Figure::Quantile(0.99)].into_iter().all(|figure| {
        estimate(timeline, pieces.clone(), cut.piece.as_secs_f64(), figure)
            .is_some_and(|estimate| estimate.relative() <= share)
    })
}

/// The thread.
pub(crate) struct Collector {
    thread: thread::JoinHandle<Timeline>,
    seen: Arc<Mutex<Option<Progress>>>,
    sure: Arc<AtomicBool>,
    begun: Sender<Instant>,
}

impl Collector {
    pub(crate) fn start(config: &Config, cut: Cut) -> io::Result<(Self, Outlet)> {
        let config = config.clone();
        let (outlet, parcels) = channel();
        let (begun, beginning) = channel();
        let seen = Arc::new(Mutex::new(None));
        let shown = Arc::clone(&seen);
        let sure = Arc::new(AtomicBool::new(false));
        let is_sure = Arc::clone(&sure);
        let thread = thread::Builder::new().name("collector".to_owned()).spawn(move || {
            // It has the core of a worker that is pinned: another one may be the server's. Whoever measures
            // goes first; more polite one may always be.
            let _ = setpriority_process(Some(gettid()), LEAST);
            let mut timeline = Timeline::default();
            let beginning: Option<Instant> = beginning.recv().ok();
            let mut looked = 0;
            for Parcel { taken, back } in parcels {
                // Fails where its worker is done.
                let _ = back.send(timeline.add(taken));
                if let Some(beginning) = beginning {
                    let progress = Progress::of(&timeline, beginning.elapsed(), config.warm_up(), cut);
                    *shown.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
                    let whole = cut.whole(beginning.elapsed().saturating_sub(config.warm_up()));
                    if let Some(share) = config.until_sure
                        && whole >= looked + LOOK_EVERY
                    {
                        // A longer run changes more slowly, and costs more to look through.
                        looked = whole + whole / 8;
                        is_sure.fetch_or(within(&timeline, &config, cut, whole, share), Ordering::Relaxed);
                    }
                }
            }
            timeline
        })?;
        Ok((Self { thread, seen, sure, begun }, Outlet(outlet)))
    }

    pub(crate) fn begin(&self, begun: Instant) {
        // The thread waits for it.
        let _ = self.begun.send(begun);
    }

    /// Whether the figures are as sure as was asked.
    pub(crate) fn is_sure(&self) -> bool {
        self.sure.load(Ordering::Relaxed)
    }

    /// How far the run was with the last piece.
    pub(crate) fn progress(&self) -> Option<Progress> {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of it; every outlet must be gone.
    pub(crate) fn finish(self) -> Timeline {
        drop(self.begun);
        match self.thread.join() {
            Ok(timeline) => timeline,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}
