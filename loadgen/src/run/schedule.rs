//! The schedule of the open loop: requests are due at their times, whatever the server does.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::SmallRng;

use crate::config::Assign;
use crate::connection::{Connection, WaitingRequest, WorkerState};
use crate::workload::arrival::Gaps;

/// How often waiting tasks check for an interrupt, and report progress.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Requests assigned without yielding to the connections.
const BURST: usize = 256;

/// When requests are due, as durations since the start.
pub(crate) enum ArrivalTimes {
    Random { gaps: Gaps, seconds: f64 },
    PerConnection { gaps: Gaps, next: BinaryHeap<Reverse<(Duration, usize)>> },
}

impl ArrivalTimes {
    pub(crate) fn per_connection(gaps: Gaps, connections: usize, random: &mut SmallRng) -> Self {
        // Fixed gaps would let all connections send at the same times.
        let mut first = || seconds(gaps.draw(random) * random.random::<f64>());
        let first = (0..connections).map(|index| Reverse((first(), index)));
        Self::PerConnection { next: first.collect(), gaps }
    }

    /// The next time, and the connection if it is that connection's; `None` without connections.
    fn next(&mut self, worker: &WorkerState) -> Option<(Duration, Option<usize>)> {
        match self {
            Self::Random { gaps, seconds: due } => {
                let now = *due;
                *due += gaps.draw(worker.requests.borrow_mut().random());
                Some((seconds(now), None))
            }
            Self::PerConnection { gaps, next } => {
                let Reverse((now, index)) = next.pop()?;
                let gap = seconds(gaps.draw(worker.requests.borrow_mut().random()));
                next.push(Reverse((now.saturating_add(gap), index)));
                Some((now, Some(index)))
            }
        }
    }
}

/// The longest time until a request is due, in seconds: thirty years.
const LONGEST: f64 = 1e9;

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(0.0, LONGEST))
}

/// Assigns requests to the connections, each when it is due.
pub(crate) struct Schedule {
    pub(crate) worker: Rc<WorkerState>,
    pub(crate) connections: Vec<Rc<Connection>>,
    pub(crate) times: ArrivalTimes,
    /// The smallest gap between two requests, if moderated.
    pub(crate) min_gap: Option<Duration>,
    pub(crate) start: Instant,
    pub(crate) interrupted: Arc<AtomicBool>,
}

impl Schedule {
    pub(crate) async fn run(mut self) {
        let Some((mut due, mut connection)) = self.next_due() else { return };
        // With a minimum gap, nothing is sent before this.
        let mut earliest = self.start;
        let (mut turn, mut burst) = (0, 0);
        // Compares due times, not the clock, with the end: requests that a delayed generator didn't
        // send in time are late, not lost.
        while due < self.worker.end && !self.interrupted.load(Ordering::Relaxed) {
            let planned = due.max(earliest);
            let now = Instant::now();
            if planned > now {
                runtime::sleep_until(planned.min(now + POLL_INTERVAL)).await;
                burst = 0;
                continue;
            }
            while due <= now && earliest <= now && due < self.worker.end && burst < BURST {
                let planned = due.max(earliest);
                match connection.or_else(|| self.choose(&mut turn)) {
                    Some(index) => self.connections[index].assign(due, planned, now),
                    None if self.worker.config.skip => {
                        self.worker.recorder.borrow_mut().counts(due).skipped += 1;
                    }
                    None => {
                        let send_lag = now.saturating_duration_since(planned);
                        let waiting = WaitingRequest { due, send_lag, sendable_since: None };
                        self.worker.for_any.borrow_mut().push_back(waiting);
                    }
                }
                burst += 1;
                if let Some(gap) = self.min_gap {
                    earliest = now + gap;
                }
                let Some(next) = self.next_due() else { return };
                (due, connection) = next;
            }
            // With a minimum gap a late schedule reaches the burst limit one request at a time.
            if burst >= BURST {
                runtime::yield_now().await;
                burst = 0;
            }
        }
    }

    /// The connection of a request that is nobody's; `None` if it waits for any that becomes free.
    fn choose(&self, turn: &mut usize) -> Option<usize> {
        let count = self.connections.len();
        if self.worker.config.assign == Assign::RandomFree {
            let first = self.worker.requests.borrow_mut().random().random_range(0..count);
            let is_free = |index: &usize| {
                let connection = &self.connections[*index];
                !connection.is_broken.get() && !connection.is_busy()
            };
            return (first..count).chain(0..first).find(is_free);
        }
        let next = (*turn..*turn + count).find(|index| !self.connections[index % count].is_broken.get());
        let index = next.unwrap_or(*turn);
        *turn = index + 1;
        Some(index % count)
    }

    fn next_due(&mut self) -> Option<(Instant, Option<usize>)> {
        let (time, connection) = self.times.next(&self.worker)?;
        Some((self.start.checked_add(time)?, connection))
    }
}
