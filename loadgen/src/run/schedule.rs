//! The schedule of the open loop: requests are due at their times, whatever the server does.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::connection::pipeline::Connection;
use crate::connection::worker_state::WorkerState;
use crate::workload::arrival::Gaps;
use crate::workload::recorded_times::LONGEST;

/// How often waiting tasks check for an interrupt, and report progress.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Requests assigned without yielding to the connections.
const BURST: usize = 256;

/// When requests are due, as durations since the start.
pub(crate) enum ArrivalTimes {
    /// With random gaps.
    Random { gaps: Gaps, seconds: f64 },
    /// From a file of times.
    Recorded(std::vec::IntoIter<Duration>),
    /// From the requests of a trace, sped up.
    Trace { speed: f64 },
}

impl ArrivalTimes {
    /// The next time, or `None` at the end of a recording.
    fn next(&mut self, worker: &WorkerState) -> Option<Duration> {
        match self {
            Self::Random { gaps, seconds } => {
                let now = *seconds;
                *seconds += gaps.draw(worker.requests.borrow_mut().random());
                Some(Duration::from_secs_f64(now.min(LONGEST)))
            }
            Self::Recorded(times) => times.next(),
            // Connections take requests in the same order, possibly later.
            Self::Trace { speed } => {
                let mut requests = worker.requests.borrow_mut();
                requests.trace().and_then(|trace| trace.next_time()).map(|time| time.div_f64(*speed))
            }
        }
    }
}

/// Assigns requests to the connections round-robin, each when it is due.
pub(crate) struct Schedule {
    pub(crate) worker: Rc<WorkerState>,
    pub(crate) connections: Vec<Rc<Connection>>,
    pub(crate) times: ArrivalTimes,
    /// The smallest gap between two requests, if moderated.
    pub(crate) min_gap: Option<Duration>,
    pub(crate) start: Instant,
    pub(crate) end: Instant,
    pub(crate) interrupted: Arc<AtomicBool>,
}

impl Schedule {
    pub(crate) async fn run(mut self) {
        let Some(mut due) = self.next_due() else { return };
        // With a minimum gap, nothing is sent before this.
        let mut earliest = self.start;
        let (mut turn, mut burst) = (0, 0);
        // Compares due times, not the clock, with the end: requests that a delayed generator didn't send in
        // time are late, not lost.
        while due < self.end && !self.interrupted.load(Ordering::Relaxed) && !self.is_exhausted() {
            let planned = due.max(earliest);
            let now = Instant::now();
            if planned > now {
                runtime::sleep_until(planned.min(now + POLL_INTERVAL)).await;
                burst = 0;
                continue;
            }
            while due <= now && earliest <= now && due < self.end && burst < BURST {
                self.connections[turn % self.connections.len()].assign(due, due.max(earliest), now);
                turn += 1;
                burst += 1;
                if let Some(gap) = self.min_gap {
                    earliest = now + gap;
                }
                let Some(next) = self.next_due() else { return };
                due = next;
            }
            // With a minimum gap a late schedule reaches the burst limit one request at a time.
            if burst >= BURST {
                runtime::yield_now().await;
                burst = 0;
            }
        }
    }

    /// Whether the requests of a trace have run out.
    fn is_exhausted(&self) -> bool {
        self.worker.exhausted.get().is_some()
    }

    fn next_due(&mut self) -> Option<Instant> {
        let next = self.times.next(&self.worker).and_then(|time| self.start.checked_add(time));
        if next.is_none() {
            self.worker.exhaust(Instant::now());
        }
        next
    }
}
