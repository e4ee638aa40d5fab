//! The calling thread as a worker's: its core and its timer slack, which it gets back afterwards.

use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;

use policies::Cpus;
use rustix::thread::{
    CpuSet, current_timer_slack, gettid, sched_getaffinity, sched_setaffinity, set_current_timer_slack,
};

use super::worker_handle::WorkerHandle;
use crate::runtime_state::RuntimeState;

/// While it lives, the calling thread runs a worker. Dropping it puts the thread's affinity and timer slack back: the
/// thread of a `block_on` is its caller's.
pub(crate) struct WorkerThread {
    handle: Arc<WorkerHandle>,
    affinity: Option<CpuSet>,
    slack: Option<u64>,
}

impl WorkerThread {
    pub(crate) fn enter(runtime: &RuntimeState, index: usize) -> io::Result<Self> {
        let handle = Arc::clone(&runtime.workers[index]);
        handle.thread.get_or_init(|| gettid().as_raw_nonzero().get());
        let affinity = sched_getaffinity(None).ok();
        let slack = current_timer_slack().ok();
        // From here on the worker follows its interrupt.
        handle.set_in_loop(true);
        let entered = Self { handle, affinity, slack };
        let core = runtime.core_of(index);
        if let Some(core) = core {
            pin(core)?;
            entered.handle.report_core(core);
        }
        // With the default slack, a timeout of 1 ns sleeps for up to 50 µs.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        Ok(entered)
    }
}

impl Drop for WorkerThread {
    fn drop(&mut self) {
        self.handle.set_in_loop(false);
        // Neither call fails with values that the kernel has returned, unless the cores have gone meanwhile.
        if let Some(affinity) = &self.affinity {
            let _ = sched_setaffinity(None, affinity);
        }
        let _ = set_current_timer_slack(self.slack.and_then(NonZeroU64::new));
    }
}

fn pin(core: u32) -> io::Result<()> {
    if core as usize >= CpuSet::MAX_CPU {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no core {core}")));
    }
    Cpus::one(core)
        .pin(None)
        .map_err(|error| io::Error::other(format!("cannot pin it to core {core}: {error}")))
}
