//! Writes lines to a file, without holding a worker up.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use super::line::LogLine;

/// The size in bytes at which a worker's lines are written at once.
const WRITE_AT: usize = 64 << 10;
/// How often smaller amounts are written.
const INTERVAL: Duration = Duration::from_secs(1);
/// What a worker keeps at most while the disk is slow, in bytes; lines beyond are dropped and counted.
const MAX_KEPT: usize = 4 << 20;

/// An access log. Each worker gathers its lines, and a thread of blocking work writes them.
#[derive(Debug)]
pub struct AccessLog {
    path: PathBuf,
    target: Mutex<Target>,
    workers: Box<[WorkerLines]>,
    dropped: AtomicU64,
}

#[derive(Debug)]
enum Target {
    /// Not opened yet.
    Nothing,
    File(File),
    StandardOutput,
}

#[derive(Debug, Default)]
struct WorkerLines {
    lines: Mutex<String>,
    /// Whether a thread is writing this worker's lines.
    writing: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open(path: &Path) -> io::Result<Target> {
    match path.as_os_str() == "-" {
        true => Ok(Target::StandardOutput),
        false => Ok(Target::File(File::options().append(true).create(true).open(path)?)),
    }
}

impl AccessLog {
    /// A log that keeps its lines until it is [opened](Self::reopen).
    pub fn new(path: &Path) -> Arc<Self> {
        let workers = (0..runtime::workers()).map(|_| WorkerLines::default()).collect();
        let (path, target) = (path.to_owned(), Mutex::new(Target::Nothing));
        Arc::new(Self { path, target, workers, dropped: AtomicU64::new(0) })
    }

    /// Writes the lines of all workers at intervals, as long as the log exists.
    pub fn start_writing(self: &Arc<Self>) {
        let log = Arc::downgrade(self);
        drop(runtime::spawn(async move {
            loop {
                runtime::sleep(INTERVAL).await;
                let Some(log) = log.upgrade() else { return };
                (0..log.workers.len()).for_each(|worker| log.write_soon(worker));
            }
        }));
    }

    /// The path; `-` is the standard output.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a request's line.
    pub fn record(self: &Arc<Self>, line: &LogLine) {
        let worker = runtime::current_worker();
        let mut lines = lock(&self.workers[worker].lines);
        if lines.len() >= MAX_KEPT {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        line.write(&mut lines, SystemTime::now());
        let full = lines.len() >= WRITE_AT;
        drop(lines);
        if full {
            self.write_soon(worker);
        }
    }

    /// Opens the path, to append to the file, on a thread of blocking work; also again, when what rotates logs has moved the
    /// file away.
    ///
    /// # Errors
    /// Those of `open(2)`, with the path; the file that is open stays in use.
    pub async fn reopen(self: &Arc<Self>) -> io::Result<()> {
        let log = Arc::clone(self);
        let reopened = runtime::spawn_blocking(move || {
            // Lines that were gathered before belong to the file that was moved.
            log.write_all();
            let named =
                |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", log.path.display()));
            *lock(&log.target) = open(&log.path).map_err(named)?;
            Ok(())
        });
        reopened.await.map_err(io::Error::other)?
    }

    /// Lines that were dropped, because the disk was slow or full.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn write_soon(self: &Arc<Self>, worker: usize) {
        let lines = &self.workers[worker];
        if lock(&lines.lines).is_empty() || lines.writing.swap(true, Ordering::AcqRel) {
            return;
        }
        let log = Arc::clone(self);
        drop(runtime::spawn_blocking(move || {
            log.write(worker);
            log.workers[worker].writing.store(false, Ordering::Release);
        }));
    }

    fn write(&self, worker: usize) {
        let mut target = lock(&self.target);
        if matches!(*target, Target::Nothing) {
            return;
        }
        let lines = std::mem::take(&mut *lock(&self.workers[worker].lines));
        let written = match &mut *target {
            Target::Nothing => Ok(()),
            Target::File(file) => file.write_all(lines.as_bytes()),
            Target::StandardOutput => io::stdout().lock().write_all(lines.as_bytes()),
        };
        if let Err(error) = written {
            let count = lines.lines().count() as u64;
            if self.dropped.fetch_add(count, Ordering::Relaxed) == 0 {
                tracing::warn!("cannot write to the access log {}: {error}", self.path.display());
            }
        }
    }

    /// Writes everything that is gathered, on the calling thread.
    pub fn write_all(&self) {
        (0..self.workers.len()).for_each(|worker| self.write(worker));
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.write_all();
    }
}
