//! A runtime's settings: those of the code override the environment's, which override the
//! attribute's.

use std::env;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use policies::controller::{CpuBudget, ForcedSettings, LatencyBudget, QueueSettings};
use policies::{Affinity, Cpus, GraceTime, JournalDir, Policy, Settings, WorkerWait};

use crate::config::threads::ThreadOptions;
use crate::config::wait_strategy::WaitStrategy;
use crate::driver::driver_kind::DriverKind;
use crate::driver::uring::ring_options::RingOptions;
use crate::error::BuildError;

/// A setting that the environment and the attributes can give, as strings.
struct Setting {
    argument: &'static str,
    /// The environment variable; empty if there is none.
    variable: &'static str,
}

/// Declares the settings, and their table for the documentation.
macro_rules! settings {
    ($($name:ident: $argument:literal, $variable:literal, $shown:literal, $values:literal;)*) => {
        $(const $name: Setting = Setting { argument: $argument, variable: $variable };)*

        macro_rules! settings_table {
            () => {
                concat!(
                    "| argument | environment | values |\n|---|---|---|\n",
                    $("| `", $argument, "` | ", $shown, " | ", $values, " |\n",)*
                )
            };
        }
        pub(crate) use settings_table;
    };
}

settings! {
    POLICY: "policy", "RUNTIME_POLICY", "`RUNTIME_POLICY`",
        "`vanilla` (default), `packing`, `suppression`, `kernel-polling`, `kernel-thread`";
    WORKERS: "workers", "RUNTIME_WORKERS", "`RUNTIME_WORKERS`",
        "1 to 4096; by default one per receive queue of the interface, at most one per core";
    INTERFACE: "interface", "RUNTIME_INTERFACE", "`RUNTIME_INTERFACE`",
        "a network interface, for example `eth0`; none by default";
    WAIT: "wait", "RUNTIME_WAIT", "`RUNTIME_WAIT`",
        "`block` (default), `spin`, `adaptive`";
    DRIVER: "driver", "RUNTIME_DRIVER", "`RUNTIME_DRIVER`",
        "`auto` (default), `epoll`, `uring`";
    CORES: "cores", "", "–",
        "cores to pin workers to, for example `0,2-3`; workers are not pinned by default";
    AFFINITY: "affinity", "RUNTIME_AFFINITY", "`RUNTIME_AFFINITY`",
        "`pin` (default), `follow`, `none`";
    GRACE_TIME: "grace_time", "RUNTIME_GRACE_TIME", "`RUNTIME_GRACE_TIME`",
        "microseconds, or `auto` (default); see [`Builder::grace_time`]";
    LATENCY_BUDGET: "latency_budget", "RUNTIME_LATENCY_BUDGET", "`RUNTIME_LATENCY_BUDGET`",
        "microseconds from 0 (default) to 1000; see [`Builder::latency_budget`]";
    CPU_BUDGET: "cpu_budget", "RUNTIME_CPU_BUDGET", "`RUNTIME_CPU_BUDGET`",
        "percent from 0 (default) to 400; see [`Builder::cpu_budget`]";
}

/// The arguments of `#[runtime::main(…)]` and `#[runtime::test(…)]`.
#[doc(hidden)]
#[derive(Debug, Clone, Default)]
pub struct Attribute {
    pub policy: Option<String>,
    pub workers: Option<usize>,
    pub interface: Option<String>,
    pub wait: Option<String>,
    pub driver: Option<String>,
    pub cores: Option<String>,
    pub affinity: Option<String>,
    pub grace_time: Option<String>,
    pub latency_budget: Option<String>,
    pub cpu_budget: Option<String>,
}

#[derive(Debug, Default)]
pub(crate) struct CodeSettings {
    pub(crate) policy: Option<Policy>,
    pub(crate) workers: Option<usize>,
    pub(crate) interface: Option<String>,
    pub(crate) wait: Option<WaitStrategy>,
    pub(crate) thread_wait: Option<WaitStrategy>,
    pub(crate) driver: Option<DriverKind>,
    pub(crate) cores: Option<Cpus>,
    pub(crate) affinity: Option<Affinity>,
    pub(crate) packing_cores: Cpus,
    pub(crate) grace_time: Option<GraceTime>,
    pub(crate) latency_budget: Option<LatencyBudget>,
    pub(crate) cpu_budget: Option<CpuBudget>,
    pub(crate) ignores_polling_costs: bool,
    pub(crate) forced: Option<ForcedSettings>,
    pub(crate) busy_poll: Option<Duration>,
    pub(crate) max_events: Option<usize>,
    pub(crate) stall_threshold: Option<Duration>,
    pub(crate) max_blocking_threads: Option<usize>,
    pub(crate) threads: ThreadOptions,
    pub(crate) ring: RingOptions,
    pub(crate) poll_time_histogram: bool,
    pub(crate) schedule_latency_histogram: bool,
    pub(crate) journals: JournalDir,
}

#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) policy: Policy,
    pub(crate) workers: Option<usize>,
    pub(crate) interface: Option<String>,
    pub(crate) wait: WaitStrategy,
    /// Why that is not the strategy that was asked for.
    pub(crate) wait_note: Option<&'static str>,
    pub(crate) thread_wait: WaitStrategy,
    pub(crate) driver: DriverKind,
    pub(crate) cores: Vec<u32>,
    pub(crate) affinity: Affinity,
    pub(crate) settings: Settings,
    pub(crate) cpu_budget: CpuBudget,
    pub(crate) ignores_polling_costs: bool,
    pub(crate) forced: Option<ForcedSettings>,
    pub(crate) busy_poll: Duration,
    pub(crate) max_events: usize,
    pub(crate) stall_threshold: Duration,
    pub(crate) max_blocking_threads: usize,
    pub(crate) threads: ThreadOptions,
    pub(crate) ring: RingOptions,
    pub(crate) background: bool,
    pub(crate) poll_time_histogram: bool,
    pub(crate) schedule_latency_histogram: bool,
    pub(crate) journals: JournalDir,
}

/// How long a wait busy-polls under suppression before it sleeps (`busy_poll_usecs`): the value of
/// the kernel series' *napibusy* case.
const SUPPRESSION_BUSY_POLL: Duration = Duration::from_micros(64);
/// How long a wait busy-polls under [`WaitStrategy::Spin`] before the worker spins in user space.
const SPIN_BUSY_POLL: Duration = Duration::from_micros(50);
/// How many events one wait takes: the budget of one NAPI poll.
const MAX_EVENTS: usize = 64;
/// The number of threads for blocking work, as tokio has it.
const MAX_BLOCKING_THREADS: usize = 512;
/// How long one poll of a task may take before it is reported.
const STALL_THRESHOLD: Duration = Duration::from_millis(100);

impl Config {
    /// Merges the three sources of settings.
    pub(crate) fn resolve(
        code: CodeSettings,
        attribute: Attribute,
        ignore_environment: bool,
    ) -> Result<Self, BuildError> {
        let environment = |name: &str| {
            if ignore_environment || name.is_empty() {
                return None;
            }
            env::var(name).ok().filter(|value| !value.is_empty())
        };
        let policy = layered(code.policy, &POLICY, &environment, attribute.policy, parse::<Policy>)?;
        let wait = layered(code.wait, &WAIT, &environment, attribute.wait, parse::<WaitStrategy>)?;
        let driver = layered(code.driver, &DRIVER, &environment, attribute.driver, parse::<DriverKind>)?;
        let workers = attribute.workers.map(|workers| workers.to_string());
        let workers = layered(code.workers, &WORKERS, &environment, workers, parse_workers)?;
        let interface =
            layered(code.interface, &INTERFACE, &environment, attribute.interface, parse::<String>)?;
        let cores = layered(code.cores, &CORES, &environment, attribute.cores, parse::<Cpus>)?;
        let affinity =
            layered(code.affinity, &AFFINITY, &environment, attribute.affinity, parse::<Affinity>)?;
        let grace_time =
            layered(code.grace_time, &GRACE_TIME, &environment, attribute.grace_time, parse::<GraceTime>)?;
        let latency_budget = layered(
            code.latency_budget,
            &LATENCY_BUDGET,
            &environment,
            attribute.latency_budget,
            parse::<LatencyBudget>,
        )?;
        let cpu_budget =
            layered(code.cpu_budget, &CPU_BUDGET, &environment, attribute.cpu_budget, parse::<CpuBudget>)?;
        let policy = policy.unwrap_or_default();
        let (driver, wait) = (driver.unwrap_or_default(), wait.unwrap_or_default());
        let cores: Vec<u32> = cores.unwrap_or_default().iter().collect();
        let mut settings = Settings { packing_cores: code.packing_cores, ..Settings::default() };
        if let Some(time) = grace_time.filter(|time| !time.is_valid()) {
            let reason = format!("{time:?} is not a valid grace time: it must be from 1 ns to 1 s");
            return Err(BuildError::Setting { source_name: GRACE_TIME.argument.to_owned(), reason });
        }
        settings.latency_budget = latency_budget.unwrap_or_default();
        settings.gro_flush_timeout = grace_time.unwrap_or_default();
        let adapts = policy.adapts(settings.gro_flush_timeout);
        // Without an interface no queue is polled.
        let polls = policy.busy_polls() && interface.is_some();
        // The kernel polls the queue in the wait, and for how long is the controller's.
        let has_no_spin = polls && wait == WaitStrategy::Adaptive;
        let wait = if has_no_spin { WaitStrategy::Block } else { wait };
        // Where the controller does not run, kernel polling has the values that suit the budget
        // without it.
        let polls_always = wait != WaitStrategy::Block || code.busy_poll.is_some();
        if adapts && polls_always {
            let fixed = QueueSettings::fixed(settings.latency_budget);
            settings.gro_flush_timeout = GraceTime::Fixed(fixed.grace_time);
            settings.defer_hard_irqs = fixed.defer_hard_irqs;
        }
        // After an empty pass a loop of passes polls nothing until a packet comes, because the
        // kernel forgets the NAPI (`fs/eventpoll.c`, `ep_busy_loop`). Within one wait it goes on
        // polling.
        let spin = if polls && wait == WaitStrategy::Spin { SPIN_BUSY_POLL } else { Duration::ZERO };
        let busy_poll = code.busy_poll.unwrap_or(match policy.worker_wait() {
            WorkerWait::Polls => spin.max(SUPPRESSION_BUSY_POLL),
            WorkerWait::Blocks | WorkerWait::Suspends => spin,
        });
        Ok(Self {
            policy,
            workers,
            interface,
            wait,
            wait_note: has_no_spin.then_some(
                "the wait strategy adaptive has no effect, because the kernel polls the queue in the wait: the workers block",
            ),
            // No queue is polled by these threads, so the policy has no say.
            thread_wait: code.thread_wait.unwrap_or(WaitStrategy::Adaptive),
            driver,
            cores,
            affinity: affinity.unwrap_or_default(),
            settings,
            cpu_budget: cpu_budget.unwrap_or_default(),
            ignores_polling_costs: code.ignores_polling_costs,
            forced: code.forced,
            busy_poll,
            max_events: code.max_events.unwrap_or(MAX_EVENTS),
            stall_threshold: code.stall_threshold.unwrap_or(STALL_THRESHOLD),
            max_blocking_threads: code.max_blocking_threads.unwrap_or(MAX_BLOCKING_THREADS),
            threads: code.threads,
            ring: code.ring,
            background: false,
            poll_time_histogram: code.poll_time_histogram,
            schedule_latency_histogram: code.schedule_latency_histogram,
            journals: code.journals,
        })
    }
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

/// The value of the strongest source that gives one.
fn layered<T>(
    code: Option<T>,
    setting: &Setting,
    environment: &dyn Fn(&str) -> Option<String>,
    attribute: Option<String>,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, BuildError> {
    if code.is_some() {
        return Ok(code);
    }
    let (source_name, text) = match environment(setting.variable) {
        Some(text) => (setting.variable.to_owned(), text),
        None => match attribute {
            Some(text) => (format!("#[runtime({} = …)]", setting.argument), text),
            None => return Ok(None),
        },
    };
    parse(&text).map(Some).map_err(|reason| BuildError::Setting { source_name, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy_of(
        code: Option<Policy>,
        environment: Option<&str>,
        attribute: Option<&str>,
    ) -> Result<Option<Policy>, BuildError> {
        layered(
            code,
            &POLICY,
            &|_| environment.map(str::to_owned),
            attribute.map(str::to_owned),
            parse::<Policy>,
        )
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
        let config = Config::resolve(CodeSettings::default(), attribute, true).unwrap();
        assert_eq!(config.affinity, Affinity::Follow);
        assert_eq!(config.settings.gro_flush_timeout, GraceTime::Fixed(Duration::from_micros(20)));
    }

    #[test]
    fn waits_spin_within_the_kernel_only_where_a_queue_is_polled() {
        let with = |policy, interface: Option<&str>, driver, wait| {
            let interface = interface.map(str::to_owned);
            let (policy, driver, wait) = (Some(policy), Some(driver), Some(wait));
            let code = CodeSettings { policy, interface, driver, wait, ..Default::default() };
            let config = Config::resolve(code, Attribute::default(), true).unwrap();
            assert_eq!(config.wait_note.is_some(), Some(config.wait) != wait);
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
    fn the_table_names_every_variable() {
        for setting in
            [POLICY, WORKERS, INTERFACE, WAIT, DRIVER, AFFINITY, GRACE_TIME, LATENCY_BUDGET, CPU_BUDGET]
        {
            assert!(settings_table!().contains(&format!("`{}` | `{}`", setting.argument, setting.variable)));
        }
    }
}
