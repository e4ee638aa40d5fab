//! A thread that puts together what the workers have counted. To look a piece through takes a tenth of a
//! millisecond, and more in a build for tests: on a worker that would be a delay in what it measures.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::setpriority_process;
use rustix::thread::gettid;

use crate::batches::{Figure, estimate};
use crate::config::Config;
use crate::error::Error;
use crate::progress::Progress;
use crate::run::first_that_counts;
use crate::tally::{Cut, Live, Sample, Taken, Timeline};

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

/// The file for each request: seconds since the beginning of the time that is measured, and microseconds.
struct Samples {
    path: PathBuf,
    file: BufWriter<File>,
    failed: Option<io::Error>,
}

impl Samples {
    fn create(path: &Path) -> Result<Self, Error> {
        let file = File::create(path).map_err(|error| Error::Samples(path.to_owned(), error))?;
        Ok(Self { path: path.to_owned(), file: BufWriter::new(file), failed: None })
    }

    fn write(&mut self, samples: Vec<Sample>, end: Duration) {
        for Sample { at, latency } in samples.iter().filter(|sample| sample.at < end) {
            if self.failed.is_some() {
                return;
            }
            let micros = latency.as_nanos() as f64 / 1e3;
            self.failed = writeln!(self.file, "{:.6} {micros:.3}", at.as_secs_f64()).err();
        }
    }

    fn finish(mut self) -> Result<(), Error> {
        let written = self.failed.take().map_or_else(|| self.file.flush(), Err);
        written.map_err(|error| Error::Samples(self.path, error))
    }
}

/// The thread.
pub(crate) struct Collector {
    thread: thread::JoinHandle<(Timeline, Result<(), Error>)>,
    seen: Arc<Mutex<Option<Progress>>>,
    sure: Arc<AtomicBool>,
    begun: Sender<Instant>,
}

impl Collector {
    pub(crate) fn start(config: &Config, cut: Cut) -> Result<(Self, Outlet), Error> {
        let config = config.clone();
        let mut samples = config.samples.as_deref().map(Samples::create).transpose()?;
        let (outlet, parcels) = channel();
        let (begun, beginning) = channel();
        let seen = Arc::new(Mutex::new(None));
        let shown = Arc::clone(&seen);
        let sure = Arc::new(AtomicBool::new(false));
        let is_sure = Arc::clone(&sure);
        let end = cut.piece * cut.pieces;
        let thread = thread::Builder::new().name("collector".to_owned()).spawn(move || {
            // It has the core of a worker that is pinned: another one may be the server's. Whoever measures
            // goes first; more polite one may always be.
            let _ = setpriority_process(Some(gettid()), LEAST);
            let mut timeline = Timeline::default();
            let beginning: Option<Instant> = beginning.recv().ok();
            let mut looked = 0;
            for Parcel { mut taken, back } in parcels {
                if let Some(samples) = &mut samples {
                    samples.write(std::mem::take(&mut taken.samples), end);
                }
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
            (timeline, samples.map_or(Ok(()), Samples::finish))
        });
        let thread = thread.map_err(Error::Thread)?;
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

    /// All of it; every outlet must be gone. The error is that of the file for samples.
    pub(crate) fn finish(self) -> (Timeline, Result<(), Error>) {
        drop(self.begun);
        match self.thread.join() {
            Ok(all) => all,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}
