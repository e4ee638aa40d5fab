//! What the server counts, a set of counters a worker, so that workers don't share cache lines.

use std::sync::atomic::{AtomicU64, Ordering};

use super::storing::Counted;

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
    get_hits, get_misses,
    cmd_set, total_items,
    cmd_meta,
    touch_hits, touch_misses,
    cmd_flush,
    delete_hits, delete_misses,
    incr_hits, incr_misses, decr_hits, decr_misses,
    cas_hits, cas_misses, cas_badval,
    store_too_large, store_no_memory,
    auth_cmds, auth_errors,
    idle_kicks, conn_yields,
    bytes_read, bytes_written,
    total_connections, rejected_connections,
    aligned, misaligned, without_napi,
    handshake_errors,
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

impl WorkerStats {
    pub fn count_get(&self, found: bool) {
        if found { self.get_hits.add(1) } else { self.get_misses.add(1) }
    }

    pub fn count_touch(&self, found: bool) {
        if found { self.touch_hits.add(1) } else { self.touch_misses.add(1) }
    }

    pub fn count_delete(&self, found: bool) {
        if found { self.delete_hits.add(1) } else { self.delete_misses.add(1) }
    }

    pub fn count_delta(&self, counted: Counted, up: bool) {
        match (counted, up) {
            (Counted::Value(..), true) => self.incr_hits.add(1),
            (Counted::Value(..), false) => self.decr_hits.add(1),
            (Counted::NotFound, true) => self.incr_misses.add(1),
            (Counted::NotFound, false) => self.decr_misses.add(1),
            _ => {}
        }
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

    /// A worker's connections: aligned with its NAPI, of another one, of none.
    pub fn aligned(&self, worker: usize) -> (u64, u64, u64) {
        let stats = self.worker(worker);
        (stats.aligned.get(), stats.misaligned.get(), stats.without_napi.get())
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
