//! How a runtime is put together: code over environment over attribute.

use std::env;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use policies::{
    Affinity, Change, Cpus, GraceTime, InvalidGraceTime, JournalDir, Policy, Settings, UnknownPolicy,
};

use crate::driver::{DriverKind, UnknownDriver};
use crate::lifecycle::{Runtime, Tell};
use crate::wait::{UnknownWaitStrategy, WaitStrategy};

/// Why a runtime could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A setting from the environment or an attribute doesn't parse.
    #[error("{source_name}: {reason}")]
    Setting {
        /// Where it came from, for example `RUNTIME_POLICY`.
        source_name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The host could not be asked or set.
    #[error(transparent)]
    Host(#[from] policies::Error),
    /// A worker could not be started.
    #[error("cannot start worker {worker}: {source}")]
    Worker {
        /// Which.
        worker: usize,
        /// The kernel's answer.
        source: std::io::Error,
    },
}

/// What `#[runtime::main(…)]` was given.
#[doc(hidden)]
#[derive(Debug, Clone, Default)]
pub struct Attribute {
    pub policy: Option<String>,
    pub workers: Option<usize>,
    pub interface: Option<String>,
    pub wait: Option<String>,
    pub driver: Option<String>,
    pub cores: Option<String>,
}

/// Builds a [`Runtime`].
///
/// What is set here is stronger than the environment (`RUNTIME_POLICY`, `RUNTIME_WORKERS`,
/// `RUNTIME_INTERFACE`, `RUNTIME_WAIT`, `RUNTIME_DRIVER`, `RUNTIME_AFFINITY`, `RUNTIME_GRACE_TIME`), and that
/// is stronger than the attribute.
#[derive(Debug, Default)]
#[must_use = "a builder does nothing until it is built"]
pub struct Builder {
    policy: Option<Policy>,
    workers: Option<usize>,
    interface: Option<String>,
    wait: Option<WaitStrategy>,
    driver: Option<DriverKind>,
    cores: Option<Cpus>,
    affinity: Option<Affinity>,
    on_host_change: OnChange,
    packing_cores: Cpus,
    grace_time: Option<GraceTime>,
    busy_poll: Option<Duration>,
    max_events: Option<usize>,
    journals: JournalDir,
    attribute: Attribute,
    ignore_environment: bool,
}

/// What is told of changes to the interface.
#[derive(Default)]
struct OnChange(Option<Tell>);

impl fmt::Debug for OnChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnChange")
    }
}

/// Every setting, decided.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) policy: Policy,
    pub(crate) workers: Option<usize>,
    pub(crate) interface: Option<String>,
    pub(crate) wait: WaitStrategy,
    pub(crate) driver: DriverKind,
    pub(crate) cores: Vec<u32>,
    pub(crate) affinity: Affinity,
    pub(crate) settings: Settings,
    pub(crate) busy_poll: Duration,
    pub(crate) max_events: usize,
    pub(crate) journals: JournalDir,
}

/// How long a wait busy-polls under suppression before it sleeps (`busy_poll_usecs`): the value of
/// the kernel series' *napibusy* case.
const SUPPRESSION_BUSY_POLL: Duration = Duration::from_micros(64);
/// How many events one wait takes: the budget of one NAPI poll.
const MAX_EVENTS: usize = 64;

impl Builder {
    /// A builder with nothing set.
    pub fn new() -> Self {
        Self::default()
    }

    #[doc(hidden)]
    pub fn from_attribute(attribute: Attribute) -> Self {
        Self { attribute, ..Self::default() }
    }

    /// The policy; vanilla unless set.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// The number of workers. Unless set: the receive queues of the interface, else the cores.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers.max(1));
        self
    }

    /// The interface that the program serves. Without one no host setting is touched.
    pub fn interface(mut self, name: impl Into<String>) -> Self {
        self.interface = Some(name.into());
        self
    }

    /// How workers wait; block unless set.
    pub fn wait(mut self, wait: WaitStrategy) -> Self {
        self.wait = Some(wait);
        self
    }

    /// The driver; auto unless set.
    pub fn driver(mut self, driver: DriverKind) -> Self {
        self.driver = Some(driver);
        self
    }

    /// Pins workers to these cores, one each in ascending order, wrapping around. Unpinned unless set.
    pub fn cores(mut self, cores: Cpus) -> Self {
        self.cores = Some(cores);
        self
    }

    /// What workers and their queues' interrupts have to do with each other; pin unless set. To follow
    /// their interrupts workers need no cores of their own, and none are set then on the host.
    pub fn affinity(mut self, affinity: Affinity) -> Self {
        self.affinity = Some(affinity);
        self
    }

    /// Has a function hear what happens to the interface under the policy: links that go down and come
    /// up, interrupts that others move, a name that changes. It is called on a thread of its own.
    pub fn on_host_change(mut self, tell: impl FnMut(&Change) + Send + 'static) -> Self {
        self.on_host_change = OnChange(Some(Box::new(tell)));
        self
    }

    /// The cores that the packing policy gathers network work on.
    pub fn packing_cores(mut self, cores: Cpus) -> Self {
        self.packing_cores = cores;
        self
    }

    /// The grace time after an empty poll, under suppression and kernel polling. Unless set, it is
    /// adapted to the load under kernel polling, and 200 µs under suppression.
    #[doc(alias = "gro_flush_timeout")]
    pub fn grace_time(mut self, time: GraceTime) -> Self {
        self.grace_time = Some(time);
        self
    }

    /// How long a wait busy-polls before it sleeps. Unless set, 64 µs under suppression and 0 under
    /// kernel polling, where one pass decides.
    #[doc(alias = "busy_poll_usecs")]
    pub fn busy_poll(mut self, time: Duration) -> Self {
        self.busy_poll = Some(time);
        self
    }

    /// How many events one wait takes; 64 unless set. Under suspension this bounds how long packets
    /// wait in the queue while the batch before them is worked on.
    pub fn max_events(mut self, events: usize) -> Self {
        self.max_events = Some(events.max(1));
        self
    }

    /// Where old host settings are journalled; `/run/lull` unless set.
    pub fn journals(mut self, journals: JournalDir) -> Self {
        self.journals = journals;
        self
    }

    /// Leaves `RUNTIME_…` in the environment unread.
    pub fn ignore_environment(mut self) -> Self {
        self.ignore_environment = true;
        self
    }

    /// Applies the policy to the host and starts the workers.
    ///
    /// # Errors
    /// On settings that don't parse, an interface that isn't there, or workers that don't start. A
    /// policy that can't be had in full is no error: the workers' reports say what runs, and why.
    pub fn build(mut self) -> Result<Runtime, BuildError> {
        let tell = self.on_host_change.0.take();
        Runtime::new(self.resolve()?, tell)
    }

    fn resolve(self) -> Result<Config, BuildError> {
        let environment = |name: &str| {
            if self.ignore_environment { None } else { env::var(name).ok().filter(|value| !value.is_empty()) }
        };
        let attribute = self.attribute;
        let policy =
            layered(self.policy, "RUNTIME_POLICY", &environment, "policy", attribute.policy, |text| {
                Policy::from_str(text).map_err(|error: UnknownPolicy| error.to_string())
            })?;
        let wait = layered(self.wait, "RUNTIME_WAIT", &environment, "wait", attribute.wait, |text| {
            WaitStrategy::from_str(text).map_err(|error: UnknownWaitStrategy| error.to_string())
        })?;
        let driver =
            layered(self.driver, "RUNTIME_DRIVER", &environment, "driver", attribute.driver, |text| {
                DriverKind::from_str(text).map_err(|error: UnknownDriver| error.to_string())
            })?;
        let workers = attribute.workers.map(|workers| workers.to_string());
        let workers =
            layered(self.workers, "RUNTIME_WORKERS", &environment, "workers", workers, parse_workers)?;
        let interface = layered(
            self.interface,
            "RUNTIME_INTERFACE",
            &environment,
            "interface",
            attribute.interface,
            |text| Ok(text.to_owned()),
        )?;
        let none = |_: &str| None;
        let cores = layered(self.cores, "", &none, "cores", attribute.cores, |text| {
            text.parse::<Cpus>().map_err(|error| error.to_string())
        })?;
        let affinity = layered(self.affinity, "RUNTIME_AFFINITY", &environment, "affinity", None, |text| {
            text.parse().map_err(|error: policies::UnknownAffinity| error.to_string())
        })?;
        let policy = policy.unwrap_or_default();
        let cores: Vec<u32> = cores.unwrap_or_default().iter().collect();
        let mut settings = Settings { packing_cores: self.packing_cores, ..Settings::default() };
        let grace_time =
            layered(self.grace_time, "RUNTIME_GRACE_TIME", &environment, "grace_time", None, |text| {
                GraceTime::from_str(text).map_err(|error: InvalidGraceTime| error.to_string())
            })?;
        let adapted = (policy == Policy::KernelPolling).then_some(GraceTime::ADAPTIVE);
        if let Some(time) = grace_time.filter(|time| !time.is_valid()) {
            let reason = format!("{time:?} is no grace time: its bounds are out of order or out of range");
            return Err(BuildError::Setting { source_name: "grace_time".to_owned(), reason });
        }
        if let Some(time) = grace_time.or(adapted) {
            settings.gro_flush_timeout = time;
        }
        let busy_poll = self.busy_poll.unwrap_or(match policy {
            Policy::Suppression => SUPPRESSION_BUSY_POLL,
            _ => Duration::ZERO,
        });
        Ok(Config {
            policy,
            workers,
            interface,
            wait: wait.unwrap_or_default(),
            driver: driver.unwrap_or_default(),
            cores,
            affinity: affinity.unwrap_or_default(),
            settings,
            busy_poll,
            max_events: self.max_events.unwrap_or(MAX_EVENTS),
            journals: self.journals,
        })
    }
}

fn parse_workers(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(workers @ 1..=4096) => Ok(workers),
        _ => Err(format!("{text:?} is not a number of workers; write one from 1 to 4096")),
    }
}

fn layered<T: fmt::Debug>(
    code: Option<T>,
    variable: &str,
    environment: &dyn Fn(&str) -> Option<String>,
    argument: &str,
    attribute: Option<String>,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, BuildError> {
    if code.is_some() {
        return Ok(code);
    }
    let (source_name, text) = match environment(variable) {
        Some(text) => (variable.to_owned(), text),
        None => match attribute {
            Some(text) => (format!("#[runtime({argument} = …)]"), text),
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
            "RUNTIME_POLICY",
            &|_| environment.map(str::to_owned),
            "policy",
            attribute.map(str::to_owned),
            |text| text.parse().map_err(|error: UnknownPolicy| error.to_string()),
        )
    }

    #[test]
    fn code_is_stronger_than_environment_and_that_than_attribute() {
        let (packing, polling) = (Some("packing"), Some("kernel-polling"));
        assert_eq!(policy_of(None, None, polling).unwrap(), Some(Policy::KernelPolling));
        assert_eq!(policy_of(None, packing, polling).unwrap(), Some(Policy::Packing));
        assert_eq!(policy_of(Some(Policy::Vanilla), packing, polling).unwrap(), Some(Policy::Vanilla));
    }

    #[test]
    fn a_bad_value_is_named_with_where_it_came_from() {
        let error = policy_of(None, Some("fast"), None).unwrap_err().to_string();
        assert!(error.starts_with("RUNTIME_POLICY: ") && error.contains("\"fast\""), "{error}");
    }

    #[test]
    fn zero_workers_are_refused() {
        assert!(parse_workers("0").is_err() && parse_workers("x").is_err());
        assert_eq!(parse_workers("3"), Ok(3));
    }
}
