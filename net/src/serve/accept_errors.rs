//! Accepts that fail for want of descriptors or memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

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
