//! What the application asks for: settings of the code, which override the environment's, which
//! override the attribute's.

use std::env;
use std::fmt;
use std::panic::Location;
use std::str::FromStr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use policies::controller::{ForcedSettings, PollInterval, QueueSettings};
use policies::{Affinity, Cpus, GraceTime, Interface, JournalDir, Policy, Settings, WorkerWait};

use crate::driver::DriverKind;
use crate::driver::uring::ring::RingOptions;
use crate::task_core::identity::Id;

/// Declares the settings that the code, the environment and the attributes can give: each with its
/// type, how it is made of text, its variable if it has one, and its values for the documentation.
macro_rules! settings {
    ($($name:ident: $type:ty, $parse:expr, $([$variable:literal])? $values:literal;)*) => {
        /// The arguments of `#[runtime::main(…)]` and `#[runtime::test(…)]`.
        #[doc(hidden)]
        #[derive(Debug, Clone, Default)]
        pub struct Attribute {
            $(pub $name: Option<String>,)*
        }

        /// The settings that have a name.
        #[derive(Debug, Default)]
        pub(crate) struct Named {
            $(pub(crate) $name: Option<$type>,)*
        }

        impl Named {
            /// Takes what is not set from the environment, else from the attribute.
            fn or(
                self,
                environment: impl Fn(&str) -> Option<String>,
                attribute: Attribute,
            ) -> Result<Self, BuildError> {
                Ok(Self {
                    $($name: match self.$name {
                        None => {
                            let variable: Option<&str> = None$(.or(Some($variable)))?;
                            let value = variable.and_then(|name| Some((name.to_owned(), environment(name)?)));
                            let argument = || format!("#[runtime({} = …)]", stringify!($name));
                            let value = value.or_else(|| Some((argument(), attribute.$name?)));
                            let parsed = value.map(|(source_name, text)| {
                                $parse(&text).map_err(|reason| BuildError::Setting { source_name, reason })
                            });
                            parsed.transpose()?
                        }
                        set => set,
                    },)*
                })
            }
        }

        macro_rules! settings_table {
            () => {
                concat!(
                    "| argument | environment | values |\n|---|---|---|\n",
                    $("| `", stringify!($name), "` | ", $("`", $variable, "`",)? " | ", $values, " |\n",)*
                )
            };
        }
        pub(crate) use settings_table;
    };
}

settings! {
    policy: Policy, parse, ["RUNTIME_POLICY"]
        "`vanilla` (default), `packing`, `suppression`, `kernel-polling`, `kernel-thread`";
    workers: usize, parse_workers, ["RUNTIME_WORKERS"]
        "1 to 4096; by default one per core, under a policy that polls at most one per receive queue of the interface";
    interface: String, parse, ["RUNTIME_INTERFACE"]
        "a network interface, for example `eth0`; none by default";
    wait: WaitStrategy, parse, ["RUNTIME_WAIT"]
        "`block` (default), `spin`, `adaptive`";
    driver: DriverKind, parse, ["RUNTIME_DRIVER"]
        "`auto` (default), `epoll`, `uring`";
    cores: Cpus, parse,
        "cores to pin workers to, for example `0,2-3`; workers are not pinned by default";
    affinity: Affinity, parse, ["RUNTIME_AFFINITY"]
        "`pin` (default), `follow`, `none`";
    grace_time: GraceTime, parse, ["RUNTIME_GRACE_TIME"]
        "microseconds, or `auto` (default); see [`Builder::grace_time`]";
    poll_interval: PollInterval, parse, ["RUNTIME_POLL_INTERVAL"]
        "microseconds from 10 to 1000, 30 by default; 0 never sleeps; see [`Builder::poll_interval`]";
}

fn parse<T: FromStr<Err: fmt::Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}

fn parse_workers(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(workers @ 1..=4096) => Ok(workers),
        _ => Err(format!("{text:?} is not a number of workers; write one from 1 to 4096")),
    }
}

/// What only the code sets. What each is, [`Builder`](crate::Builder) says.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) thread_wait: WaitStrategy,
    pub(crate) packing_cores: Cpus,
    pub(crate) busy_poll: Option<Duration>,
    pub(crate) max_events: usize,
    pub(crate) stall_threshold: Duration,
    pub(crate) max_blocking_threads: usize,
    pub(crate) threads: ThreadOptions,
    pub(crate) ring: RingOptions,
    pub(crate) poll_time_histogram: bool,
    pub(crate) schedule_latency_histogram: bool,
    pub(crate) journals: JournalDir,
    /// Worker 0 has a thread, too.
    pub(crate) background: bool,
    /// For tests: a queue is polled from 2,000 events a second on.
    pub(crate) polls_always: bool,
    /// For tests: who chooses the queues' settings in the place of the controllers.
    pub(crate) forced: Option<ForcedSettings>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            // No queue is polled by these threads, so the policy has no say.
            thread_wait: WaitStrategy::Adaptive,
            packing_cores: Cpus::default(),
            busy_poll: None,
            // The budget of one NAPI poll.
            max_events: 64,
            stall_threshold: Duration::from_millis(100),
            // As tokio has it.
            max_blocking_threads: 512,
            threads: ThreadOptions::default(),
            ring: RingOptions::default(),
            poll_time_histogram: false,
            schedule_latency_histogram: false,
            journals: JournalDir::default(),
            background: false,
            polls_always: false,
            forced: None,
        }
    }
}

/// The settings of a runtime.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) policy: Policy,
    pub(crate) workers: Option<usize>,
    pub(crate) interface: Option<String>,
    pub(crate) wait: WaitStrategy,
    /// What the settings lead to that is not plain from them; for worker 0's report.
    pub(crate) notes: Vec<String>,
    pub(crate) driver: DriverKind,
    pub(crate) cores: Vec<u32>,
    pub(crate) affinity: Affinity,
    pub(crate) settings: Settings,
    pub(crate) busy_poll: Duration,
    pub(crate) options: Options,
}

/// How long a wait busy-polls under suppression before it sleeps (`busy_poll_usecs`): the value of
/// the kernel series' *napibusy* case.
const SUPPRESSION_BUSY_POLL: Duration = Duration::from_micros(64);
/// How long a wait busy-polls under [`WaitStrategy::Spin`] before the worker spins in user space.
const SPIN_BUSY_POLL: Duration = Duration::from_micros(50);

const NO_SPIN: &str = "the wait strategy adaptive has no effect, because the kernel polls the queue in the wait: the \
                       workers block";

impl Config {
    /// The number of workers on a machine with `cores`. A worker polls one queue, so under a policy
    /// that polls there are no more than queues, unless more are asked for.
    pub(crate) fn choose_workers(&mut self, cores: usize, interface: Option<&Interface>) -> usize {
        if let Some(workers) = self.workers {
            return workers;
        }
        if self.policy.uses_packing_cores() {
            return cores.saturating_sub(self.settings.packing_cores.len().max(1)).max(1);
        }
        let Some(interface) = interface.filter(|_| self.policy.busy_polls()) else { return cores };
        let (name, queues) = (&interface.name, interface.queues.len());
        if !(1..cores).contains(&queues) {
            return cores;
        }
        self.notes.push(format!(
            "{queues} of {cores} cores: a worker polls one queue, and {name} has {queues}. The others serve with more \
             queues (`ethtool -L {name} combined {cores}`, as far as the device allows), or under vanilla, which \
             spreads connections over a worker for each core"
        ));
        queues
    }

    /// Merges the sources of settings.
    pub(crate) fn resolve(
        named: Named,
        options: Options,
        attribute: Attribute,
        ignore_environment: bool,
    ) -> Result<Self, BuildError> {
        let environment =
            |name: &str| env::var(name).ok().filter(|value| !ignore_environment && !value.is_empty());
        let named = named.or(environment, attribute)?;
        let policy = named.policy.unwrap_or_default();
        let wait = named.wait.unwrap_or_default();
        if let Some(time) = named.grace_time.filter(|time| !time.is_valid()) {
            let reason = format!("{time:?} is not a valid grace time: it must be from 1 ns to 1 s");
            return Err(BuildError::Setting { source_name: "grace_time".to_owned(), reason });
        }
        let mut settings = Settings {
            packing_cores: options.packing_cores.clone(),
            poll_interval: named.poll_interval.unwrap_or_default(),
            gro_flush_timeout: named.grace_time.unwrap_or_default(),
            ..Settings::default()
        };
        // Without an interface no queue is polled.
        let polls = policy.busy_polls() && named.interface.is_some();
        // The kernel polls the queue in the wait, and for how long is the controller's.
        let has_no_spin = polls && wait == WaitStrategy::Adaptive;
        let wait = if has_no_spin { WaitStrategy::Block } else { wait };
        // Where the controller does not run, kernel polling has the fixed values.
        let polls_always = wait != WaitStrategy::Block || options.busy_poll.is_some();
        if policy.adapts(settings.gro_flush_timeout) && polls_always {
            let fixed = QueueSettings::fixed(settings.poll_interval);
            settings.gro_flush_timeout = GraceTime::Fixed(fixed.grace_time);
            settings.defer_hard_irqs = fixed.defer_hard_irqs;
        }
        // After an empty pass a loop of passes polls nothing until a packet comes, because the
        // kernel forgets the NAPI (`fs/eventpoll.c`, `ep_busy_loop`). Within one wait it goes on
        // polling.
        let spin = if polls && wait == WaitStrategy::Spin { SPIN_BUSY_POLL } else { Duration::ZERO };
        let busy_poll = options.busy_poll.unwrap_or(match policy.worker_wait() {
            WorkerWait::Polls => spin.max(SUPPRESSION_BUSY_POLL),
            WorkerWait::Blocks | WorkerWait::Suspends => spin,
        });
        Ok(Self {
            policy,
            workers: named.workers,
            interface: named.interface,
            wait,
            notes: if has_no_spin { vec![NO_SPIN.to_owned()] } else { Vec::new() },
            driver: named.driver.unwrap_or_default(),
            cores: named.cores.unwrap_or_default().iter().collect(),
            affinity: named.affinity.unwrap_or_default(),
            settings,
            busy_poll,
            options,
        })
    }
}

/// What a worker does when it has nothing to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WaitStrategy {
    /// Sleep in the kernel until an event, a timer or a wake-up. A worker that was woken soon after
    /// it had gone to sleep, by another thread, first spins for the next such wake-up.
    #[default]
    Block,
    /// Poll without sleeping. Takes the whole core.
    Spin,
    /// After a short sleep (at most 100 µs) that no timer has ended, poll for up to 20 µs before
    /// the next one. After a spin in vain a growing number of short sleeps, up to 256, passes
    /// without a spin.
    ///
    /// Under a policy that polls a queue this is `Block`, as the worker's report says: the kernel
    /// polls in the wait.
    Adaptive,
}

policies::names!(WaitStrategy, "wait strategy": Block = "block", Spin = "spin", Adaptive = "adaptive");

/// What threads of workers and of blocking work have in common.
#[derive(Debug, Clone, Default)]
pub(crate) struct ThreadOptions {
    pub(crate) name: Option<String>,
    pub(crate) stack_size: Option<usize>,
}

impl ThreadOptions {
    /// A thread that is called `kind`, after the name that all have in common.
    pub(crate) fn builder(&self, kind: impl fmt::Display) -> thread::Builder {
        let name = self.name.as_deref().unwrap_or("lull");
        let builder = thread::Builder::new().name(format!("{name}-{kind}"));
        match self.stack_size {
            Some(bytes) => builder.stack_size(bytes),
            None => builder,
        }
    }
}

/// The application's functions that workers call.
#[derive(Clone, Default)]
pub(crate) struct Hooks {
    pub(crate) on_stall: Option<StallHook>,
    pub(crate) on_worker_start: Option<WorkerHook>,
    pub(crate) on_worker_stop: Option<WorkerHook>,
}

/// Called with a worker's number, on its thread.
pub(crate) type WorkerHook = Arc<dyn Fn(usize) + Send + Sync>;

opaque_debug!(
    Hooks,
    "Hooks",
    |it| "on_stall" = it.on_stall.is_some(),
    "on_worker_start" = it.on_worker_start.is_some(),
    "on_worker_stop" = it.on_worker_stop.is_some()
);

/// A poll of a task that took longer than
/// [`Builder::stall_threshold`](crate::Builder::stall_threshold).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stall {
    /// The worker whose timers, sockets and other tasks had to wait.
    pub worker: usize,
    /// The task's number, as [`JoinHandle::id`](crate::JoinHandle::id) returns it.
    pub id: Id,
    /// The task's name, if it has one ([`task::Builder::name`](crate::task::Builder::name)).
    pub name: Option<String>,
    /// Where the task was spawned; for the future of a `block_on`, where that was called.
    pub spawned: &'static Location<'static>,
    /// How long the poll took, give or take the kernel's tick (1 to 10 ms). This contains time in
    /// which the thread was not running.
    pub took: Duration,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { worker, id, spawned, .. } = self;
        let name = self.name.as_deref().unwrap_or("without a name");
        let took = self.took.as_millis();
        write!(
            f,
            "task {id} ({name}), spawned or served at {spawned}, kept worker {worker} for {took} ms in one poll, while its other \
             tasks, timers and sockets waited: move what blocks or computes to runtime::spawn_blocking, and wrap the receives \
             of a loop over a channel in runtime::cooperative"
        )
    }
}

pub(crate) type StallHook = Arc<dyn Fn(&Stall) + Send + Sync>;

/// Why a runtime could not be built.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// A setting of the environment, an attribute or the builder is not valid.
    Setting {
        /// Where it came from, for example `RUNTIME_POLICY`.
        source_name: String,
        /// Why it is not valid.
        reason: String,
    },
    /// The interface could not be read.
    Host(policies::Error),
    /// A worker could not be started.
    Worker {
        /// The worker's number, from 0.
        worker: usize,
        /// The error of starting its thread, of pinning it, or of opening its driver.
        source: std::io::Error,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting { source_name, reason } => write!(f, "{source_name}: {reason}"),
            Self::Host(error) => error.fmt(f),
            Self::Worker { worker, source } => write!(f, "cannot start worker {worker}: {source}"),
        }
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Setting { .. } => None,
            Self::Host(error) => error.source(),
            Self::Worker { source, .. } => Some(source),
        }
    }
}

impl From<policies::Error> for BuildError {
    fn from(error: policies::Error) -> Self {
        Self::Host(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy_of(
        code: Option<Policy>,
        environment: Option<&str>,
        attribute: Option<&str>,
    ) -> Result<Option<Policy>, BuildError> {
        let named = Named { policy: code, ..Named::default() };
        let attribute = Attribute { policy: attribute.map(str::to_owned), ..Attribute::default() };
        let environment = |name: &str| environment.filter(|_| name == "RUNTIME_POLICY").map(str::to_owned);
        named.or(environment, attribute).map(|named| named.policy)
    }

    #[test]
    fn code_overrides_the_environment_which_overrides_the_attribute() {
        let (packing, polling) = (Some("packing"), Some("kernel-polling"));
        assert_eq!(policy_of(None, None, polling).unwrap(), Some(Policy::KernelPolling));
        assert_eq!(policy_of(None, packing, polling).unwrap(), Some(Policy::Packing));
        assert_eq!(policy_of(Some(Policy::Vanilla), packing, polling).unwrap(), Some(Policy::Vanilla));
    }

    #[test]
    fn a_bad_value_is_reported_with_its_source() {
        let error = policy_of(None, Some("fast"), None).unwrap_err().to_string();
        assert!(error.starts_with("RUNTIME_POLICY: ") && error.contains("\"fast\""), "{error}");
    }

    #[test]
    fn zero_workers_are_refused() {
        assert!(parse_workers("0").is_err() && parse_workers("x").is_err());
        assert_eq!(parse_workers("3"), Ok(3));
    }

    #[test]
    fn affinity_and_grace_time_come_from_the_attribute() {
        let attribute = Attribute {
            affinity: Some("follow".to_owned()),
            grace_time: Some("20".to_owned()),
            ..Attribute::default()
        };
        let config = Config::resolve(Named::default(), Options::default(), attribute, true).unwrap();
        assert_eq!(config.affinity, Affinity::Follow);
        assert_eq!(config.settings.gro_flush_timeout, GraceTime::Fixed(Duration::from_micros(20)));
    }

    #[test]
    fn without_a_queue_to_poll_every_core_has_a_worker() {
        let lo = policies::host::interface("lo").unwrap();
        let queues = lo.queues.len();
        let choose = |policy, cores| {
            let named = Named { policy: Some(policy), ..Named::default() };
            let mut config = Config::resolve(named, Options::default(), Attribute::default(), true).unwrap();
            let workers = config.choose_workers(cores, Some(&lo));
            (workers, config.notes.join(" "))
        };
        let cores = queues + 15;
        assert_eq!(choose(Policy::Vanilla, cores), (cores, String::new()));
        assert_eq!(choose(Policy::Packing, cores), (cores - 1, String::new()));
        let (workers, note) = choose(Policy::KernelPolling, cores);
        assert_eq!(workers, queues);
        assert!(note.starts_with(&format!("{queues} of {cores} cores: a worker polls one queue")), "{note}");
        assert_eq!(choose(Policy::KernelPolling, queues), (queues, String::new()));
    }

    #[test]
    fn waits_spin_within_the_kernel_only_where_a_queue_is_polled() {
        let with = |policy, interface: Option<&str>, driver, wait| {
            let interface = interface.map(str::to_owned);
            let (policy, driver, wait) = (Some(policy), Some(driver), Some(wait));
            let named = Named { policy, interface, driver, wait, ..Named::default() };
            let config = Config::resolve(named, Options::default(), Attribute::default(), true).unwrap();
            assert_eq!(!config.notes.is_empty(), Some(config.wait) != wait);
            (config.wait, config.busy_poll)
        };
        use WaitStrategy::{Adaptive, Block, Spin};
        let (auto, kernel_polling) = (DriverKind::default(), Policy::KernelPolling);
        assert_eq!(with(kernel_polling, Some("lo"), auto, Spin), (Spin, SPIN_BUSY_POLL));
        assert_eq!(with(Policy::Suppression, Some("lo"), auto, Spin), (Spin, SUPPRESSION_BUSY_POLL));
        assert_eq!(with(kernel_polling, Some("lo"), auto, Adaptive), (Block, Duration::ZERO));
        for policy in [kernel_polling, Policy::Vanilla] {
            assert_eq!(with(policy, None, auto, Spin), (Spin, Duration::ZERO));
            assert_eq!(with(policy, None, auto, Adaptive), (Adaptive, Duration::ZERO));
        }
        assert_eq!(with(kernel_polling, Some("lo"), DriverKind::Uring, Adaptive), (Block, Duration::ZERO));
    }

    #[test]
    fn the_table_names_every_setting() {
        let table = settings_table!();
        assert!(table.contains("\n| `policy` | `RUNTIME_POLICY` | `vanilla` (default), "));
        assert!(table.contains("\n| `cores` |  | cores to pin"));
    }
}
