//! Counts of connections by whether they are on the worker that polls their NAPI, and of accepts
//! that fail for want of descriptors or memory.

use std::iter::Sum;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

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
    /// Without a NAPI (loopback, Unix sockets), and all of a runtime without an interface, which asks
    /// none for it. They go to the worker with the fewest connections.
    pub without_napi: u64,
    /// Handed over from the worker that accepted them to the one that serves them.
    pub rehomed: u64,
}

impl Sum for Alignment {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |sum, other| Self {
            accepted: sum.accepted + other.accepted,
            aligned: sum.aligned + other.aligned,
            misaligned: sum.misaligned + other.misaligned,
            without_napi: sum.without_napi + other.without_napi,
            rehomed: sum.rehomed + other.rehomed,
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

/// How often a server could not accept a connection for a reason of this host: it has no
/// descriptors or no memory left, mostly. Each time its listener pauses for 20 ms, and connections
/// wait in the backlog; one a second is logged. Clones are the same counter.
#[derive(Debug, Clone, Default)]
pub struct AcceptErrors(Arc<Counted>);

#[derive(Debug, Default)]
struct Counted {
    total: AtomicU64,
    /// When one is logged next, and how many there were up to the one that was logged last.
    next: Mutex<Option<(Instant, u64)>>,
}

impl AcceptErrors {
    /// The number since the start.
    pub fn total(&self) -> u64 {
        self.0.total.load(Ordering::Relaxed)
    }

    /// Counts one. If it is to be logged, returns how many there were since the last that was.
    pub(super) fn count(&self) -> Option<u64> {
        let total = self.0.total.fetch_add(1, Ordering::Relaxed) + 1;
        let mut next = self.0.next.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let (due, logged) = next.unwrap_or((now, 0));
        if now < due {
            return None;
        }
        *next = Some((now + Duration::from_secs(1), total));
        Some(total.saturating_sub(logged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_accept_errors_one_is_logged_and_all_are_counted() {
        let errors = AcceptErrors::default();
        let logged: Vec<_> = (0..100).filter_map(|_| errors.count()).collect();
        assert_eq!((logged.first(), errors.total()), (Some(&1), 100));
        assert!(logged.len() < 50, "{logged:?}");
    }
}
