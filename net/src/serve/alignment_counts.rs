//! Counts of connections by whether they are on the worker that polls their NAPI.

use std::iter::Sum;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers of connections since the serving began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Alignment {
    /// Connections taken on: `aligned + misaligned + without_napi`.
    pub accepted: u64,
    /// Served by the worker that polls their NAPI.
    pub aligned: u64,
    /// With a NAPI that their worker doesn't poll: another interface's, or that of a queue in
    /// excess of the workers.
    pub misaligned: u64,
    /// Without a NAPI (loopback, Unix sockets). They go to the worker with the fewest connections.
    pub without_napi: u64,
    /// Handed over from the worker that accepted them to the one that serves them.
    pub rehomed: u64,
}

impl AddAssign for Alignment {
    fn add_assign(&mut self, other: Self) {
        self.accepted += other.accepted;
        self.aligned += other.aligned;
        self.misaligned += other.misaligned;
        self.without_napi += other.without_napi;
        self.rehomed += other.rehomed;
    }
}

impl Sum for Alignment {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |mut sum, counts| {
            sum += counts;
            sum
        })
    }
}

#[derive(Default)]
pub(super) struct AlignmentCounters {
    aligned: AtomicU64,
    misaligned: AtomicU64,
    without_napi: AtomicU64,
    accepted: AtomicU64,
    rehomed: AtomicU64,
}

impl AlignmentCounters {
    /// Counts a connection of this NAPI, taken on by the calling worker.
    pub(super) fn count_accepted(&self, napi: u32) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
        let counter = if napi == 0 {
            &self.without_napi
        } else if napi == runtime::io::own_napi() {
            &self.aligned
        } else {
            &self.misaligned
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_rehomed(&self) {
        self.rehomed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> Alignment {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Alignment {
            accepted: read(&self.accepted),
            aligned: read(&self.aligned),
            misaligned: read(&self.misaligned),
            without_napi: read(&self.without_napi),
            rehomed: read(&self.rehomed),
        }
    }
}
