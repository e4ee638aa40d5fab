//! The open loop: requests are due at their times, whatever the server does.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::client::{Connection, Shared};
use crate::error::Error;
use crate::run::LOOK;
use crate::workload::Gaps;

/// No recording is longer, in seconds: thirty years.
const LONGEST: f64 = 1e9;

/// The farthest that a schedule is worked out ahead in one go.
const BURST: usize = 256;

/// When requests are due, since the beginning.
pub(crate) enum Times {
    /// With gaps that are drawn.
    Drawn { gaps: Gaps, seconds: f64 },
    /// As they were recorded.
    Recorded(std::vec::IntoIter<Duration>),
    /// Those of the requests of a trace, so many times as fast.
    OfTrace { speed: f64 },
}

impl Times {
    /// A worker's share of the times in a file.
    pub(crate) fn read(path: &Path, speed: f64, worker: usize, workers: usize) -> Result<Self, Error> {
        let share = (worker, workers.max(1));
        let mut times = Vec::new();
        each_time(path, |index, at| {
            if index % share.1 == share.0 {
                times.push(at.div_f64(speed));
            }
        })?;
        Ok(Self::Recorded(times.into_iter()))
    }

    /// The next; `None` when there is none any more.
    fn next(&mut self, shared: &Shared) -> Option<Duration> {
        match self {
            Self::Drawn { gaps, seconds } => {
                let now = *seconds;
                *seconds += gaps.draw(shared.requests.borrow_mut().random());
                Some(Duration::from_secs_f64(now.min(LONGEST)))
            }
            Self::Recorded(times) => times.next(),
            // Those that are handed out and not written yet are before it: it is the place that counts.
            Self::OfTrace { speed } => {
                let mut requests = shared.requests.borrow_mut();
                requests.trace().and_then(|trace| trace.next_time()).map(|at| at.div_f64(*speed))
            }
        }
    }
}

/// How long a file of recorded times is, at its own speed.
///
/// # Errors
/// Where it can't be read, or a line is no time, or times go backwards.
pub fn recorded_length(path: &Path) -> Result<Duration, Error> {
    let mut last = Duration::ZERO;
    each_time(path, |_, at| last = at)?;
    Ok(last)
}

fn each_time(path: &Path, mut tell: impl FnMut(usize, Duration)) -> Result<(), Error> {
    let wrong = |what: String| Error::Config(format!("{}{what}", path.display()));
    let file = File::open(path).map_err(|error| wrong(format!(": {error}")))?;
    let (mut first, mut last, mut count) = (None, f64::NEG_INFINITY, 0);
    for (index, line) in BufReader::new(file).lines().enumerate() {
        let line = line.map_err(|error| wrong(format!(": {error}")))?;
        if line.trim().is_empty() {
            continue;
        }
        let time: Option<f64> = line.trim().parse().ok();
        let begin = *first.get_or_insert(time.unwrap_or(0.0));
        // Neither before the one above it nor too far from the first; nor no number, which is neither.
        let Some(time) = time.filter(|time| (begin..=begin + LONGEST).contains(time) && *time >= last) else {
            let what = "is no time in seconds, from that of the line above on";
            return Err(wrong(format!(", line {}: {:?} {what}", index + 1, line.trim())));
        };
        last = time;
        tell(count, Duration::from_secs_f64(time - begin));
        count += 1;
    }
    if count == 0 { Err(wrong(": there is no time in it".to_owned())) } else { Ok(()) }
}

/// Hands requests to the connections in turn, each when it is due.
pub(crate) struct Schedule {
    pub(crate) shared: Rc<Shared>,
    pub(crate) connections: Vec<Rc<Connection>>,
    pub(crate) times: Times,
    pub(crate) least_gap: Option<Duration>,
    pub(crate) begun: Instant,
    pub(crate) end: Instant,
    pub(crate) interrupted: Arc<AtomicBool>,
}

impl Schedule {
    pub(crate) async fn run(mut self) {
        let Some(mut due) = self.next() else { return };
        // With a least gap: before this nothing is sent.
        let mut earliest = self.begun;
        let (mut turn, mut burst) = (0, 0);
        // By the schedule, not by the clock, and to its end: what a generator that was held up did not get to
        // in time is late, not lost.
        while due < self.end && !self.interrupted.load(Ordering::Relaxed) && !self.is_over() {
            let planned = due.max(earliest);
            let now = Instant::now();
            if planned > now {
                runtime::sleep_until(planned.min(now + LOOK)).await;
                burst = 0;
                continue;
            }
            while due <= now && earliest <= now && due < self.end && burst < BURST {
                self.connections[turn % self.connections.len()].hand(due, due.max(earliest), now);
                turn += 1;
                burst += 1;
                if let Some(gap) = self.least_gap {
                    earliest = now + gap;
                }
                let Some(next) = self.next() else { return };
                due = next;
            }
            // Also after turns of one each, which is what moderation makes of being late.
            if burst >= BURST {
                runtime::yield_now().await;
                burst = 0;
            }
        }
    }

    /// Whether the requests have come to an end before their times.
    fn is_over(&self) -> bool {
        self.shared.exhausted.get().is_some()
    }

    fn next(&mut self) -> Option<Instant> {
        let next = self.times.next(&self.shared).and_then(|at| self.begun.checked_add(at));
        if next.is_none() {
            self.shared.exhaust(Instant::now());
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &str, worker: usize, workers: usize) -> Result<Vec<f64>, Error> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), lines).unwrap();
        match Times::read(file.path(), 2.0, worker, workers)? {
            Times::Recorded(times) => Ok(times.map(|at| at.as_secs_f64()).collect()),
            _ => panic!("recorded times are recorded"),
        }
    }

    #[test]
    fn recorded_times_begin_with_the_first_and_are_shared_among_workers() {
        assert_eq!(read("10.5\n11.5\n\n11.5\n14.5\n", 0, 1).unwrap(), [0.0, 0.5, 0.5, 2.0]);
        assert_eq!(read("10.5\n11.5\n11.5\n14.5\n", 1, 2).unwrap(), [0.5, 2.0]);
    }

    #[test]
    fn what_is_no_time_is_refused_with_its_line() {
        for (lines, what) in
            [("1\nx\n", "line 2"), ("2\n1\n", "line 2"), ("nan\n", "line 1"), ("", "no time")]
        {
            let error = read(lines, 0, 1).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
