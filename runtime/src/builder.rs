//! Building a runtime.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use policies::controller::PollInterval;
use policies::{AdaptedQueue, Affinity, Change, Cpus, GraceTime, JournalDir, Policy};

use crate::config::{
    Attribute, BuildError, Config, Hooks, Named, Options, Stall, WaitStrategy, settings_table,
};
use crate::driver::DriverKind;
use crate::driver::uring::ring::RingOptions;
use crate::host_policy::HostHooks;
use crate::runtime::BackgroundRuntime;
use crate::runtime::Runtime;

/// Builds a [`Runtime`].
///
/// # Configuration
/// A setting comes from the builder's method, else from the environment, else from the argument of
/// [`#[runtime::main]`](crate::main):
///
#[doc = settings_table!()]
///
/// # Examples
/// ```
/// use runtime::policy::Policy;
/// use runtime::{Builder, WaitStrategy};
///
/// let runtime = Builder::new().policy(Policy::Vanilla).workers(2).wait(WaitStrategy::Block).build()?;
/// assert_eq!(runtime.block_on(async { runtime::workers() }), 2);
/// # Ok::<(), runtime::BuildError>(())
/// ```
#[derive(Default)]
#[must_use = "a builder does nothing until it is built"]
pub struct Builder {
    named: Named,
    options: Options,
    host: HostHooks,
    hooks: Hooks,
    attribute: Attribute,
    ignore_environment: bool,
}

opaque_debug!(Builder, "Builder", |it| "named" = it.named, "options" = it.options);

impl Builder {
    /// A builder with nothing set.
    pub fn new() -> Self {
        Self::default()
    }

    #[doc(hidden)]
    pub fn from_attribute(attribute: Attribute) -> Self {
        Self { attribute, ..Self::default() }
    }

    /// The policy. Default: vanilla.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.named.policy = Some(policy);
        self
    }

    /// The number of workers, at least 1. Default: one per core, less the packing cores; under a
    /// policy that polls at most one per receive queue of the interface. With more workers than
    /// queues, the connections of a queue are shared by several.
    pub fn workers(mut self, workers: usize) -> Self {
        self.named.workers = Some(workers.max(1));
        self
    }

    /// The interface that the program serves. Without one, which is the default, no host setting is
    /// changed.
    pub fn interface(mut self, name: impl Into<String>) -> Self {
        self.named.interface = Some(name.into());
        self
    }

    /// What workers do when they have nothing to run. Default: block.
    pub fn wait(mut self, wait: WaitStrategy) -> Self {
        self.named.wait = Some(wait);
        self
    }

    /// What non-worker threads do while they wait in [`Handle::block_on`](crate::Handle::block_on).
    /// Default: adaptive, whatever the workers do.
    pub fn thread_wait(mut self, wait: WaitStrategy) -> Self {
        self.options.thread_wait = wait;
        self
    }

    /// The driver. Default: auto.
    pub fn driver(mut self, driver: DriverKind) -> Self {
        self.named.driver = Some(driver);
        self
    }

    /// Pins workers to these cores, one each in ascending order, wrapping around. Default: not
    /// pinned.
    pub fn cores(mut self, cores: Cpus) -> Self {
        self.named.cores = Some(cores);
        self
    }

    /// How workers and their queues' interrupts are placed on the same cores. Default: pin, which
    /// moves the interrupts to the workers' cores. With follow, workers move to their interrupts'
    /// cores, need no [`cores`](Self::cores), and no interrupt is moved.
    pub fn affinity(mut self, affinity: Affinity) -> Self {
        self.named.affinity = Some(affinity);
        self
    }

    /// Calls a function on each change of the interface under the policy: links that go down or
    /// come up, interrupts that others move, a new name. It is called on the supervisor's thread.
    pub fn on_host_change(mut self, hook: impl FnMut(&Change) + Send + 'static) -> Self {
        self.host.on_change = Some(Box::new(hook));
        self
    }

    /// A function that sets a queue's values, for a process that gives up its privileges after its
    /// start: without one it can't adapt its queues any more. The function passes them to a process
    /// that may, which calls [`AdaptedQueue::set_for`](policies::AdaptedQueue::set_for). It is
    /// called on the supervisor's thread. That process also restores the host's settings, by
    /// [`policies::recover`], when this one has ended.
    pub fn queue_delegate(
        mut self,
        delegate: impl FnMut(&AdaptedQueue) -> io::Result<()> + Send + 'static,
    ) -> Self {
        self.host.delegate = Some(Box::new(delegate));
        self
    }

    /// Polls a queue from 2,000 events a second on, for tests of what polling does.
    #[cfg(feature = "test-hooks")]
    #[doc(hidden)]
    pub fn poll_always(mut self) -> Self {
        self.options.polls_always = true;
        self
    }

    /// Chooses the queues' settings in the place of the workers' controllers, for tests of what a
    /// change of settings does.
    #[cfg(feature = "test-hooks")]
    #[doc(hidden)]
    pub fn force_queue_settings(mut self, forced: policies::controller::ForcedSettings) -> Self {
        self.options.forced = Some(forced);
        self
    }

    /// The cores on which the packing policy gathers network processing, and on which the threads
    /// of kernel-thread poll.
    pub fn packing_cores(mut self, cores: Cpus) -> Self {
        self.options.packing_cores = cores;
        self
    }

    /// The longest time for which a packet waits until a sleeping worker looks at its queue, while
    /// kernel polling polls the queue. Default: 30 µs. See [`PollInterval`].
    pub fn poll_interval(mut self, interval: PollInterval) -> Self {
        self.named.poll_interval = Some(interval);
        self
    }

    /// The grace time after an empty poll, under suppression and kernel polling. Default: under
    /// kernel polling the controller chooses it, with the queue's mode; 200 µs under suppression. A
    /// fixed grace time is in effect at every load.
    #[doc(alias = "gro_flush_timeout")]
    pub fn grace_time(mut self, time: GraceTime) -> Self {
        self.named.grace_time = Some(time);
        self
    }

    /// How long a wait busy-polls before it sleeps. Default: 64 µs under suppression. Under kernel
    /// polling it turns the controller off; [`Builder::poll_interval`] 0 keeps waits from sleeping
    /// with it.
    #[doc(alias = "busy_poll_usecs")]
    pub fn busy_poll(mut self, time: Duration) -> Self {
        self.options.busy_poll = Some(time);
        self
    }

    /// How many events one wait takes, at least 1. Default: 64. Under suspension this bounds how
    /// long packets stay in the queue while the batch before them is processed.
    pub fn max_events(mut self, events: usize) -> Self {
        self.options.max_events = events.max(1);
        self
    }

    /// A poll of a task that takes longer is a stall: it is counted
    /// ([`Metrics::stalls`](crate::Metrics::stalls)), logged (level warn) with the place where the
    /// task was spawned, and given to [`on_stall`](Self::on_stall). While a task computes or blocks
    /// its thread, its worker's other tasks, timers and sockets wait, and its queue is not polled.
    /// Default: 100 ms. The resolution is the kernel's tick, 1 to 10 ms.
    ///
    /// A task is noticed when its poll returns; one that never does is not.
    pub fn stall_threshold(mut self, threshold: Duration) -> Self {
        self.options.stall_threshold = threshold;
        self
    }

    /// Calls a function on each stall ([`stall_threshold`](Self::stall_threshold)), on the worker
    /// that stalled.
    pub fn on_stall(mut self, hook: impl Fn(&Stall) + Send + Sync + 'static) -> Self {
        self.hooks.on_stall = Some(Arc::new(hook));
        self
    }

    /// Calls a function on each worker's thread before the worker runs its first task, with the
    /// worker's number. Worker 0 starts in the first `block_on`.
    pub fn on_worker_start(mut self, hook: impl Fn(usize) + Send + Sync + 'static) -> Self {
        self.hooks.on_worker_start = Some(Arc::new(hook));
        self
    }

    /// Calls a function on each worker's thread after its tasks are dropped, with the worker's
    /// number. Worker 0 stops when the runtime is dropped.
    pub fn on_worker_stop(mut self, hook: impl Fn(usize) + Send + Sync + 'static) -> Self {
        self.hooks.on_worker_stop = Some(Arc::new(hook));
        self
    }

    /// How many received bytes of a connection may wait for their reader on the driver `uring`, at
    /// least 4 KiB. Default: 32 KiB. The ring receives before a task reads. A connection whose
    /// peer sends more than its task reads holds that much memory, in addition to the kernel's
    /// socket buffer. A burst may bring more, up to 512 KiB for all connections of a worker
    /// together, before the receive is cancelled. From then on the connection receives one buffer
    /// of 16 KiB at a time, or into its reader's memory, until 16 receives have brought less.
    pub fn ring_unread_limit(mut self, bytes: usize) -> Self {
        self.options.ring.unread_limit = bytes.max(RingOptions::LEAST);
        self
    }

    /// How many written bytes of a connection may wait to be sent on the driver `uring`, at least 4
    /// KiB. Default: 64 KiB. A write waits while there are as many.
    pub fn ring_unsent_limit(mut self, bytes: usize) -> Self {
        self.options.ring.unsent_limit = bytes.max(RingOptions::LEAST);
        self
    }

    /// The size of the submission queue of each worker's ring, which the kernel rounds up to a
    /// power of two, up to 32,768. The default is 512. The completion queue has eight times as many
    /// entries, up to 65,536. More submissions in a turn take further enters.
    pub fn ring_size(mut self, submissions: u32) -> Self {
        self.options.ring.submissions = submissions.clamp(2, 32_768);
        self
    }

    /// The name of the threads of workers and of blocking work, to which `-1` or `-blocking-1` with
    /// the thread's number is added. The kernel keeps 15 bytes. Default: `lull`. The thread of
    /// [`Runtime::block_on`] keeps its name.
    pub fn thread_name(mut self, name: impl Into<String>) -> Self {
        self.options.threads.name = Some(name.into());
        self
    }

    /// The size of the stacks of these threads, in bytes. Default: that of the standard library, 2
    /// MiB or `RUST_MIN_STACK`. The thread of [`Runtime::block_on`] keeps its stack.
    pub fn thread_stack_size(mut self, bytes: usize) -> Self {
        self.options.threads.stack_size = Some(bytes);
        self
    }

    /// The number of threads for blocking work, at least 1
    /// ([`spawn_blocking`](crate::spawn_blocking)). Default: 512.
    pub fn max_blocking_threads(mut self, threads: usize) -> Self {
        self.options.max_blocking_threads = threads;
        self
    }

    /// Records how long each poll of a task takes
    /// ([`Metrics::poll_times`](crate::Metrics::poll_times)). Default: off.
    ///
    /// Each poll then reads the precise clock at its end, where it would read one that is as coarse
    /// as the kernel's tick. [`stall_threshold`](Self::stall_threshold) has the precise clock's
    /// resolution, too.
    pub fn enable_metrics_poll_time_histogram(mut self) -> Self {
        self.options.poll_time_histogram = true;
        self
    }

    /// Records how long tasks wait from being spawned or woken to being polled
    /// ([`Metrics::schedule_latency`](crate::Metrics::schedule_latency)): the time in which the
    /// worker polls other tasks, and in which a sleeping worker wakes up. Default: off.
    ///
    /// Each wake then reads the precise clock, and each poll as with
    /// [`enable_metrics_poll_time_histogram`](Self::enable_metrics_poll_time_histogram), which this
    /// does not switch on.
    pub fn enable_metrics_schedule_latency_histogram(mut self) -> Self {
        self.options.schedule_latency_histogram = true;
        self
    }

    /// The directory in which old host settings are journalled. Default: `/run/lull`.
    pub fn journals(mut self, journals: JournalDir) -> Self {
        self.options.journals = journals;
        self
    }

    /// Ignores the environment variables `RUNTIME_…`.
    pub fn ignore_environment(mut self) -> Self {
        self.ignore_environment = true;
        self
    }

    /// Applies the policy to the host and starts the workers.
    ///
    /// # Errors
    /// If a setting is not valid, the interface doesn't exist, or a worker doesn't start. A policy
    /// that is only partly available is not an error: the workers' reports say what is in effect,
    /// and why.
    pub fn build(self) -> Result<Runtime, BuildError> {
        let (config, hooks, host) = self.resolve()?;
        Runtime::new(config, hooks, host)
    }

    /// As [`Builder::build`], but worker 0 has a thread, too: no `block_on` has to run for its
    /// tasks and its share of the connections to go on.
    pub fn build_background(mut self) -> Result<BackgroundRuntime, BuildError> {
        self.options.background = true;
        let (config, hooks, host) = self.resolve()?;
        BackgroundRuntime::new(config, hooks, host)
    }

    fn resolve(self) -> Result<(Config, Hooks, HostHooks), BuildError> {
        let config = Config::resolve(self.named, self.options, self.attribute, self.ignore_environment)?;
        Ok((config, self.hooks, self.host))
    }
}
