//! How a dispatcher runs its threads.

/// Where the threads of connections run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Placement {
    /// On the core of the connection's worker, if that is pinned to one; else where the worker may run. For threads that
    /// mostly wait and answer.
    #[default]
    SameCore,
    /// On any core that the program may use but the worker's: waking takes an interrupt between cores, and the worker keeps
    /// its core. For threads that compute. With one core it is [`Placement::AnyCore`].
    OtherCores,
    /// On any core that the program may use, as the scheduler decides.
    AnyCore,
}

/// Configures a [`Dispatcher`](crate::Dispatcher).
///
/// ```
/// use dispatcher::{Builder, Placement};
///
/// let dispatcher = Builder::new()
///     .max_threads(5000)
///     .stack_size(512 << 10)
///     .thread_name("session")
///     .placement(Placement::OtherCores)
///     .build();
/// assert_eq!(dispatcher.metrics().threads, 0);
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until it builds"]
pub struct Builder {
    pub(crate) name: String,
    pub(crate) stack_size: usize,
    pub(crate) max_threads: usize,
    pub(crate) buffer_size: usize,
    pub(crate) placement: Placement,
    pub(crate) batch_class: bool,
    pub(crate) wake_batch: usize,
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl Builder {
    /// The defaults that each setting names.
    pub fn new() -> Self {
        Self {
            name: "lull-connection".to_owned(),
            stack_size: 256 << 10,
            max_threads: 10_000,
            buffer_size: 64 << 10,
            placement: Placement::SameCore,
            batch_class: true,
            wake_batch: 16,
        }
    }

    /// The threads' name, of which the kernel shows 15 bytes. Default: `lull-connection`. With a name that has a NUL byte no
    /// thread starts: [`Dispatcher::spawn_thread`](crate::Dispatcher::spawn_thread) returns `InvalidInput`.
    pub fn thread_name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// A thread's stack, in bytes. Default: 256 KiB, of address space; memory is used for the pages that are touched. The
    /// system rounds it up, to at least 16 KiB and what thread locals need.
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.stack_size = bytes;
        self
    }

    /// The most threads at a time, over all workers. Default: 10,000. The system has limits, too: `kernel.threads-max`,
    /// `kernel.pid_max`, `vm.max_map_count` (two mappings a thread), the user's `RLIMIT_NPROC`, and `pids.max` of a control
    /// group or systemd's `TasksMax`.
    pub fn max_threads(mut self, threads: usize) -> Self {
        self.max_threads = threads;
        self
    }

    /// Received bytes that may wait for a connection's thread, at least 1. The worker stops reading above it; what its ring has
    /// received by then comes on top (128 KiB and more). Default: 64 KiB. The slot and the thread's buffer
    /// each keep the capacity of the largest backlog so far.
    pub fn buffer_size(mut self, bytes: usize) -> Self {
        self.buffer_size = bytes.max(1);
        self
    }

    /// Where the threads run. Default: [`Placement::SameCore`].
    pub fn placement(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// Whether threads are `SCHED_BATCH`, which do not preempt the worker when it wakes them (`sched(7)`). Default: yes.
    #[doc(alias = "SCHED_BATCH")]
    pub fn batch_class(mut self, batch: bool) -> Self {
        self.batch_class = batch;
        self
    }

    /// The worker wakes at most this many threads at a time, and then yields its core to them (`sched_yield(2)`). 0: it
    /// wakes all at the end of its turn, and yields only as its wait does. Default: 16. Small batches find their bytes and
    /// sockets in the core's caches, and the worker is back at its queue sooner; each costs a switch. Only with
    /// [`Placement::SameCore`]. If several dispatchers share a worker, the one that took the most recent connection sets its
    /// batch size. The yield is within a task's poll: poll times and reports of stalls
    /// ([`runtime::Builder::on_stall`]) include what the threads take.
    #[doc(alias = "sched_yield")]
    pub fn wake_batch(mut self, wakes: usize) -> Self {
        self.wake_batch = wakes;
        self
    }
}
