//! Kernel threads that poll queues all the time (`kernel-thread`).

use super::placement::core_for;
use super::planner::Planner;
use crate::host::{Cpus, Interface, RxQueue};
use crate::knob::{Knob, Value};
use crate::netlink::netdev::{Netdev, THREADED_BUSY_POLL};

impl Planner<'_> {
    /// Plans a polling thread for each queue, and returns the threads' cores. Without a queue that can have one
    /// plans nothing: the placement is vanilla's then.
    ///
    /// These steps come before the rest of the placement, because where one of them fails vanilla runs instead.
    pub(super) fn place_polling_threads(&mut self, interface: &Interface) -> Option<Vec<u32>> {
        let can_have_thread =
            |queue: &&RxQueue| queue.napi.as_ref().is_some_and(|napi| napi.threaded.is_some());
        let queues: Vec<&RxQueue> = self.rx.iter().copied().filter(can_have_thread).collect();
        if queues.is_empty() {
            if self.rx.iter().any(|queue| queue.napi.is_some()) {
                self.notes.push(NEEDS_LINUX_6_19.to_owned());
            }
            return None;
        }
        if Netdev::open().ok().and_then(|mut netdev| netdev.accepts_threaded_busy_poll()) == Some(false) {
            self.notes.push(NEEDS_LINUX_6_19.to_owned());
        }
        let cores = self.packing_cores(interface, queues.len());
        self.note_shared_cores(&cores, queues.len());
        for queue in queues {
            let position = self.rx.iter().position(|other| other.index == queue.index).unwrap_or(0);
            self.start_polling_thread(queue, core_for(&cores, position));
        }
        Some(cores)
    }

    /// The first interrupt after this wakes the thread, which then polls without an end: `napi_complete_done`
    /// returns early while it does (`NAPI_STATE_IN_BUSY_POLL`), so that the driver never enables the interrupt.
    fn start_polling_thread(&mut self, queue: &RxQueue, core: Cpus) {
        let index = queue.index;
        // The thread is an ordinary one. A real-time thread that never sleeps would leave its core to nothing else
        // until real-time throttling stops it, for 50 ms of each second by default, in which it polls nothing. A
        // thread from before the policy may be real-time, and must not poll so for one moment.
        if queue.napi.as_ref().is_some_and(|napi| napi.pid.is_some()) {
            self.set(
                Knob::NapiThreadPriority { queue: index },
                Value::Number(0),
                "an ordinary thread: a real-time one that polls all the time would keep its core to itself",
            );
        }
        self.set(
            Knob::NapiThreaded { queue: index },
            Value::Number(THREADED_BUSY_POLL),
            "a kernel thread polls the queue all the time; the interrupt stays masked",
        );
        self.set(
            Knob::NapiThreadAffinity { queue: index },
            Value::Cpus(core),
            "the thread polls on a packing core, and keeps it busy",
        );
    }

    fn note_shared_cores(&mut self, cores: &[u32], threads: usize) {
        let all: Cpus = cores.iter().copied().collect();
        if cores.len() < threads {
            self.notes.push(format!(
                "{threads} kernel threads poll on cores {all}; those that share a core take turns of some \
                 milliseconds, in which the other queues wait. Name a packing core for each queue, or fewer queues"
            ));
        }
        let shared: Cpus =
            cores.iter().copied().filter(|core| self.settings.worker_cores.contains(core)).collect();
        if !shared.is_empty() {
            self.notes.push(format!(
                "a kernel thread polls all the time on cores {shared}, which have workers, and takes up to half of each; \
                 leave a core without a worker, and name it as packing core"
            ));
        }
    }
}

const NEEDS_LINUX_6_19: &str =
    "this kernel has no kernel threads that poll all the time (they need Linux 6.19); vanilla runs instead";
