//! What the host, and whoever waits for a queue, let the law do.

use super::queue_settings::QueueSettings;

/// What the host lets the law do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LawLimits {
    /// The number of packets that the queue's receive ring holds: 256 if it is not known.
    pub ring_slots: u32,
    /// The queue's values if this process can't set them. The law then only chooses between waits
    /// that poll and waits that don't.
    pub fixed: Option<QueueSettings>,
    /// Whether a mode is given up that costs more CPU time than interrupts. Without it only the load decides, which
    /// tests of the modes want: what polling gains depends on the machine and the moment.
    pub compares_costs: bool,
    /// Who can poll the queue by a timer.
    pub timer: PollTimer,
}

/// Who polls a queue while its worker sleeps and its interrupt is masked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PollTimer {
    /// The kernel's timer: what waits for the queue knows of no poll interval, like a program that is attached to.
    #[default]
    Kernel,
    /// The worker, in timed mode.
    Worker {
        /// Whether the queue's interrupts wake a kernel thread (`threaded`), which then wakes the worker.
        wakes_thread: bool,
    },
}

impl Default for LawLimits {
    fn default() -> Self {
        Self { ring_slots: 256, fixed: None, compares_costs: true, timer: PollTimer::Kernel }
    }
}
