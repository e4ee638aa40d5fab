//! What the server counts, a set of counters a worker, so that workers don't share cache lines.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// One worker's counters, in cache lines of their own.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct WorkerStats {
            $($(#[$doc])* pub $name: Counter,)*
        }

        /// The sums over all workers.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Totals {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Totals {
            fn add(&mut self, worker: &WorkerStats) {
                $(self.$name += worker.$name.get();)*
            }
        }

        impl WorkerStats {
            fn reset(&self) {
                $(self.$name.0.store(0, Ordering::Relaxed);)*
            }
        }
    };
}

counters! {
    cmd_get, get_hits, get_misses,
    cmd_set,
    cmd_touch, touch_hits, touch_misses,
    cmd_flush,
    delete_hits, delete_misses,
    incr_hits, incr_misses, decr_hits, decr_misses,
    cas_hits, cas_misses, cas_badval,
    bytes_read, bytes_written,
    total_connections, rejected_connections,
}

/// A counter that its worker adds to.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, amount: u64) {
        // One writer, except for `stats reset`, whose race with an addition costs one count.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of all workers.
#[derive(Debug)]
pub struct Stats(Box<[WorkerStats]>);

impl Stats {
    pub fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| WorkerStats::default()).collect())
    }

    pub fn worker(&self, index: usize) -> &WorkerStats {
        &self.0[index % self.0.len()]
    }

    pub fn workers(&self) -> usize {
        self.0.len()
    }

    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        self.0.iter().for_each(|worker| totals.add(worker));
        totals
    }

    pub fn reset(&self) {
        self.0.iter().for_each(WorkerStats::reset);
    }
}
