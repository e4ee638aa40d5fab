//! What a process's threads wait on, from samples.

use std::collections::BTreeMap;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use crate::attach::process::{RunTimes, ThreadWait, run_times, thread_wait, threads};

/// How often each thread is looked at, and the time between.
const SAMPLES: u32 = 30;
const INTERVAL: Duration = Duration::from_millis(10);
/// More threads of a process are not looked at.
const MOST_THREADS: usize = 128;
/// The share of the time from which on a thread counts as always busy.
const ALWAYS: f64 = 0.9;

#[derive(Debug, Clone, Default)]
pub(super) struct ThreadWaits {
    /// By epoll instance, in how many samples the thread waited on it.
    pub(super) epolls: BTreeMap<i32, u32>,
    pub(super) polls: u32,
    pub(super) rings: u32,
    running: u32,
    samples: u32,
    first: RunTimes,
    last: RunTimes,
    time: Duration,
}

impl ThreadWaits {
    /// Whether the thread was never seen waiting, and used all of its core: as one whose waits have
    /// a timeout of 0, or one that is overloaded.
    pub(super) fn never_sleeps(&self) -> bool {
        let awake = self.last.run + self.last.ready
            - self.first.run.min(self.last.run)
            - self.first.ready.min(self.last.ready);
        self.samples > 0
            && self.running == self.samples
            && awake as f64 >= self.time.as_nanos() as f64 * ALWAYS
    }
}

pub(super) type Waits = BTreeMap<(u32, i32), ThreadWaits>;

/// Observes for 0.3 s.
///
/// # Errors
/// `EPERM` without `CAP_SYS_PTRACE` over one of the processes.
pub(super) fn sample(pids: impl IntoIterator<Item = u32>) -> io::Result<Waits> {
    let mut seen = Waits::new();
    for pid in pids {
        // A process may have ended.
        for thread in threads(pid).unwrap_or_default().into_iter().take(MOST_THREADS) {
            let first = run_times(pid, thread).unwrap_or_default();
            seen.insert((pid, thread), ThreadWaits { first, ..ThreadWaits::default() });
        }
    }
    let start = Instant::now();
    for _ in 0..SAMPLES {
        thread::sleep(INTERVAL);
        for (&(pid, thread), waits) in &mut seen {
            let wait = match thread_wait(pid, thread) {
                Ok(wait) => wait,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
                Err(_) => continue,
            };
            waits.samples += 1;
            match wait {
                ThreadWait::Epoll(descriptor) => *waits.epolls.entry(descriptor).or_default() += 1,
                ThreadWait::Poll => waits.polls += 1,
                ThreadWait::Ring => waits.rings += 1,
                ThreadWait::Runs => waits.running += 1,
                ThreadWait::Other => {}
            }
        }
    }
    for (&(pid, thread), waits) in &mut seen {
        waits.time = start.elapsed();
        waits.last = run_times(pid, thread).unwrap_or(waits.first);
    }
    Ok(seen)
}
