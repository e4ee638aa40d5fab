//! The calling thread as a worker's: its core and its timer slack, which it gets back afterwards.

use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;

use policies::Cpus;
use rustix::thread::{CpuSet, gettid, set_current_timer_slack};

use super::worker_handle::WorkerHandle;
use crate::thread_settings::KeptSettings;
use crate::worker::runtime_state::RuntimeState;

/// While it lives, the calling thread runs a worker. Dropping it puts the thread's affinity and
/// timer slack back: the thread of a `block_on` is its caller's.
pub(crate) struct WorkerThread {
    handle: Arc<WorkerHandle>,
    /// Put back after the worker has ceased to follow its interrupt.
    _before: KeptSettings,
}

impl WorkerThread {
    pub(crate) fn enter(runtime: &RuntimeState, index: usize) -> io::Result<Self> {
        let handle = Arc::clone(&runtime.workers[index]);
        handle.thread.get_or_init(|| gettid().as_raw_nonzero().get());
        let before = KeptSettings::new();
        // From here on the worker follows its interrupt.
        handle.set_in_loop(true);
        let entered = Self { handle, _before: before };
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
