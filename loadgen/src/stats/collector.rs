//! A thread that merges what the workers record. Processing an interval takes a tenth of a
//! millisecond, and more in a debug build: on a worker it would delay requests.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::setpriority_process;
use rustix::thread::gettid;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::error::Error;
use crate::stats::Slicing;
use crate::stats::batch_means::{Figure, estimate};
use crate::stats::recorder::{IntervalHistograms, RecordedBatch, Sample};
use crate::stats::timeline::{Progress, Timeline};
use crate::stats::warm_up::first_counted_interval;

/// A batch on its way to the collector, and the way back for its histograms.
pub(crate) struct Delivery {
    pub(crate) batch: RecordedBatch,
    pub(crate) emptied: Sender<Vec<IntervalHistograms>>,
}

/// The lowest scheduling priority (nice value).
const LOWEST_PRIORITY: i32 = 19;

const PRECISION_CHECK_INTERVALS: u32 = 5;

/// The least time between two computations of the progress, to which each worker contributes.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);

/// Whether rate, median and 99th percentile of the run's first `end` intervals have the precision.
fn has_precision(timeline: &Timeline, config: &Config, slicing: Slicing, end: u32, precision: f64) -> bool {
    let intervals = first_counted_interval(config, timeline, end)..end;
    [Figure::Rate, Figure::Quantile(0.5), Figure::Quantile(0.99)].into_iter().all(|figure| {
        estimate(timeline, intervals.clone(), slicing.interval.as_secs_f64(), figure)
            .is_some_and(|estimate| estimate.relative_precision() <= precision)
    })
}

pub(crate) struct Collector {
    thread: thread::JoinHandle<(Timeline, Result<(), Error>)>,
    progress: Arc<Mutex<Option<Progress>>>,
    precise_intervals: Arc<OnceLock<u32>>,
    start: Sender<Instant>,
}

impl Collector {
    pub(crate) fn spawn(config: &Config, slicing: Slicing) -> Result<(Self, Sender<Delivery>), Error> {
        let config = config.clone();
        let mut sample_file = config.sample_file.as_deref().map(SampleFile::create).transpose()?;
        let (sender, deliveries) = channel();
        let (start, started) = channel();
        let progress = Arc::new(Mutex::new(None));
        let shown = Arc::clone(&progress);
        let precise_intervals = Arc::new(OnceLock::new());
        let reached = Arc::clone(&precise_intervals);
        let end = slicing.interval * slicing.count;
        let thread = thread::Builder::new().name("collector".to_owned()).spawn(move || {
            // The thread inherits the worker's affinity, which keeps it off the server's cores. The
            // lowest priority makes it yield to the worker. It needs no privilege; if it fails
            // nothing is lost.
            let _ = setpriority_process(Some(gettid()), LOWEST_PRIORITY);
            let mut timeline = Timeline::default();
            let started: Option<Instant> = started.recv().ok();
            let (mut checked, mut shown_at) = (0, None::<Instant>);
            for Delivery { mut batch, emptied } in deliveries {
                if let Some(file) = &mut sample_file {
                    file.write(std::mem::take(&mut batch.samples), end);
                }
                // Fails if the worker has finished.
                let _ = emptied.send(timeline.add(batch));
                let is_due = shown_at.is_none_or(|shown_at| shown_at.elapsed() >= PROGRESS_INTERVAL);
                if let Some(started) = started.filter(|_| is_due) {
                    shown_at = Some(Instant::now());
                    let progress = Progress::new(&timeline, started.elapsed(), config.warm_up(), slicing);
                    *shown.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
                    let complete = slicing.complete_after(started.elapsed().saturating_sub(config.warm_up()));
                    if let Some(precision) = config.target_precision
                        && complete >= checked + PRECISION_CHECK_INTERVALS
                    {
                        // A longer run changes more slowly, and takes longer to check.
                        checked = complete + complete / 8;
                        // Workers may not have handed over the newest intervals.
                        let end = complete.saturating_sub(3);
                        if has_precision(&timeline, &config, slicing, end, precision) {
                            // Of several ends the first counts.
                            let _ = reached.set(end);
                        }
                    }
                }
            }
            (timeline, sample_file.map_or(Ok(()), SampleFile::finish))
        });
        let thread = thread.map_err(Error::Thread)?;
        Ok((Self { thread, progress, precise_intervals, start }, sender))
    }

    /// Tells the collector when the run starts.
    pub(crate) fn start(&self, start: Instant) {
        // The thread waits for the message, so this can't fail.
        let _ = self.start.send(start);
    }

    /// How many intervals the run had when its figures reached the configured precision; `None`
    /// before that.
    pub(crate) fn precise_intervals(&self) -> Option<u32> {
        self.precise_intervals.get().copied()
    }

    pub(crate) fn progress(&self) -> Option<Progress> {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the timeline, and the error of the sample file. Blocks until every sender is
    /// dropped.
    pub(crate) fn finish(self) -> (Timeline, Result<(), Error>) {
        drop(self.start);
        match self.thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Measurement {
    pub(crate) workers: usize,
    pub(crate) timeline: Timeline,
    pub(crate) slicing: Slicing,
    /// Complete intervals. Less than the slicing's if the run ended early.
    pub(crate) intervals: u32,
    pub(crate) stopped: bool,
    /// Which connection broke first, and why.
    pub(crate) broken: Option<String>,
    /// The CPU utilization of the busiest worker's thread, 0 to 1.
    pub(crate) busiest: f64,
}

/// A file with one line per request: seconds since the start of the measurement, and latency in
/// microseconds.
struct SampleFile {
    path: PathBuf,
    file: BufWriter<File>,
    failed: Option<io::Error>,
}

impl SampleFile {
    fn create(path: &Path) -> Result<Self, Error> {
        let file = File::create(path).map_err(|error| Error::SampleFile(path.to_owned(), error))?;
        Ok(Self { path: path.to_owned(), file: BufWriter::new(file), failed: None })
    }

    /// Writes the samples before `end`. An error is reported by [`finish`](Self::finish).
    fn write(&mut self, samples: Vec<Sample>, end: Duration) {
        for Sample { time, latency } in samples.iter().filter(|sample| sample.time < end) {
            if self.failed.is_some() {
                return;
            }
            let micros = latency.as_nanos() as f64 / 1e3;
            self.failed = writeln!(self.file, "{:.6} {micros:.3}", time.as_secs_f64()).err();
        }
    }

    fn finish(mut self) -> Result<(), Error> {
        let written = self.failed.take().map_or_else(|| self.file.flush(), Err);
        written.map_err(|error| Error::SampleFile(self.path, error))
    }
}
