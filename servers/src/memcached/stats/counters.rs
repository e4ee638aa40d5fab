//! The server's counters. Each worker has its own set, so workers do not share cache lines.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::memcached::mutation::DeltaOutcome;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// One worker's counters, in their own cache lines.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct WorkerCounters {
            $($(#[$doc])* pub $name: Counter,)*
        }

        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct CounterTotals {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl CounterTotals {
            pub fn named(&self, name: &str) -> Option<u64> {
                match name {
                    $(stringify!($name) => Some(self.$name),)*
                    _ => None,
                }
            }

            fn add(&mut self, worker: &WorkerCounters) {
                $(self.$name += worker.$name.get();)*
            }
        }

        impl WorkerCounters {
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
    reply_no_memory, read_no_memory,
    auth_cmds, auth_errors,
    idle_kicks, conn_yields,
    bytes_read, bytes_written,
    total_connections, rejected_connections,
    aligned, misaligned, without_napi,
    handshake_errors,
}

/// A counter with a single writer, its worker.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, amount: u64) {
        // A plain load and store suffice for one writer. `stats reset` also writes: its race with
        // an addition loses one count.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl WorkerCounters {
    /// Counts a get, or the touch of a get that sets the expiry.
    pub fn count_get_or_touch(&self, touches: bool, found: bool) {
        if touches {
            self.count_touch(found);
        } else if found {
            self.get_hits.add(1);
        } else {
            self.get_misses.add(1);
        }
    }

    pub fn count_touch(&self, found: bool) {
        if found { self.touch_hits.add(1) } else { self.touch_misses.add(1) }
    }

    pub fn count_delete(&self, found: bool) {
        if found { self.delete_hits.add(1) } else { self.delete_misses.add(1) }
    }

    pub fn count_delta(&self, outcome: DeltaOutcome, increments: bool) {
        match (outcome, increments) {
            (DeltaOutcome::Changed { .. }, true) => self.incr_hits.add(1),
            (DeltaOutcome::Changed { .. }, false) => self.decr_hits.add(1),
            (DeltaOutcome::NotFound, true) => self.incr_misses.add(1),
            (DeltaOutcome::NotFound, false) => self.decr_misses.add(1),
            _ => {}
        }
    }
}

#[derive(Debug)]
pub struct Counters(Box<[WorkerCounters]>);

impl Counters {
    pub fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| WorkerCounters::default()).collect())
    }

    pub fn worker(&self, index: usize) -> &WorkerCounters {
        &self.0[index % self.0.len()]
    }

    pub fn workers(&self) -> usize {
        self.0.len()
    }

    /// A worker's accepted connections: aligned with its NAPI instance, misaligned, without NAPI.
    pub fn alignment(&self, worker: usize) -> (u64, u64, u64) {
        let counters = self.worker(worker);
        (counters.aligned.get(), counters.misaligned.get(), counters.without_napi.get())
    }

    pub fn totals(&self) -> CounterTotals {
        let mut totals = CounterTotals::default();
        self.0.iter().for_each(|worker| totals.add(worker));
        totals
    }

    pub fn reset(&self) {
        self.0.iter().for_each(WorkerCounters::reset);
    }
}
