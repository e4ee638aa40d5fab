//! The comparison of policies and drivers under one kernel client in a closed loop, in interleaved rounds.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use loadgen::interleaved_rounds::{RepeatPolicy, Round, Rounds, figures, ratios};
use loadgen::medians::{Interval, median, median_interval};
use policies::{Cpus, Policy};
use runtime::{DriverKind, WaitStrategy};
use serde::{Serialize, Serializer};

use super::contestant::Contestant;
use super::core_assignment::CoreAssignment;
use super::slowest_turn::slowest_over_median;
use super::steal::STEAL_LIMIT;
use super::turn_conditions::{ConditionsGuard, MeasuredRounds};
use crate::Error;
use crate::experiment_process::{
    ExperimentProcess, LoadMeasurement, LoadSpec, ProcessRole, ServerMeasurement, ServerReady, ServerSpec,
};
use crate::polling_config::PollingConfig;
use crate::testbed::{CLIENT_INTERFACE, SERVER_ADDRESS, SERVER_INTERFACE, Testbed};

/// How much is measured.
#[derive(Debug, Clone, Serialize)]
pub struct ComparisonConfig {
    /// Rounds; each measures every contestant once.
    pub rounds: usize,
    /// Seconds of a measurement.
    pub duration: f64,
    /// Seconds of load before each measurement.
    pub warm_up: f64,
    /// Connections of the load.
    pub connections: usize,
    /// How the server's worker waits.
    #[serde(serialize_with = "as_text")]
    pub wait: WaitStrategy,
    /// What is compared.
    pub contestants: Vec<Contestant>,
    /// Seconds that repeating disturbed turns may take in total.
    pub repeat_budget: f64,
}

impl ComparisonConfig {
    /// A comparison of a minute, or of less if `quick`.
    pub fn new(contestants: Vec<Contestant>, quick: bool) -> Self {
        Self {
            rounds: if quick { 6 } else { 8 },
            duration: if quick { 0.3 } else { 0.4 },
            warm_up: 0.1,
            connections: 64,
            wait: WaitStrategy::Block,
            contestants,
            repeat_budget: if quick { 4.0 } else { 20.0 },
        }
    }
}

fn as_text<S: Serializer>(wait: &WaitStrategy, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(wait)
}

/// One contestant measured once.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Measurement {
    /// The policy that was requested.
    pub asked: Policy,
    /// The server's driver.
    pub driver: DriverKind,
    /// What the server's worker ran.
    pub ran: String,
    /// Why it ran something else than the requested policy.
    pub steps_down: Vec<String>,
    /// The client's measurement.
    pub load: LoadMeasurement,
    /// The server's measurement.
    pub server: ServerMeasurement,
    /// The server's first message: its worker's report, and the knobs read back.
    pub ready: ServerReady,
}

impl Measurement {
    /// Busy time of the server's core, and CPU time of the kernel thread that polls its queue on another core, per
    /// request, µs.
    pub fn cpu_us(&self) -> f64 {
        let ServerMeasurement { core_busy, kernel_thread_elsewhere, .. } = &self.server;
        (core_busy + kernel_thread_elsewhere) * 1e6 / self.server.requests.max(1) as f64
    }

    /// CPU time of the server's worker thread per request, µs.
    pub fn thread_cpu_us(&self) -> f64 {
        self.server.thread_cpu * 1e6 / self.server.requests.max(1) as f64
    }
}

/// One contestant's row of a table: medians over the rounds.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct PolicyRow {
    /// The policy that was requested.
    pub asked: Policy,
    /// The server's driver.
    pub driver: DriverKind,
    /// What ran.
    pub ran: String,
    /// Requests per second.
    pub qps: f64,
    /// Requests per second of the slowest turn over the median.
    pub slowest_turn: f64,
    /// The turns that the row is of.
    pub turns: usize,
    /// Median latency, µs.
    pub p50_us: f64,
    /// 99th percentile of the latency, µs.
    pub p99_us: f64,
    /// 99.9th percentile of the latency, µs.
    pub p999_us: f64,
    /// Busy time of the server's core, and CPU time of the kernel thread that polls its queue on another core, per
    /// request, µs.
    pub cpu_us_per_request: f64,
    /// CPU time of the server's worker thread per request, µs.
    pub thread_cpu_us_per_request: f64,
    /// Packets per wake-up of the kernel thread that stands in for the queue's interrupt; infinite if there was none.
    /// Without a testbed, per softirq.
    pub packets_per_wake: f64,
    /// The share of packets that busy polling received, 0 to 1.
    pub busy_poll_share: f64,
    /// CPU time of the client's thread over elapsed time, 0 to 1.
    pub client_busy: f64,
    /// Throughput over that of the first contestant (vanilla) in the same round.
    pub ratio_to_vanilla: Interval,
    /// The CPU time per request over that of the first contestant in the same round.
    pub cpu_ratio_to_vanilla: Interval,
}

/// A comparison of contestants, on the testbed or on loopback.
#[derive(Debug)]
#[non_exhaustive]
pub struct PolicyComparison {
    testbed: Option<Testbed>,
    /// Which core runs what.
    pub cores: CoreAssignment,
    /// How much is measured.
    pub config: ComparisonConfig,
    /// The grace time under kernel polling.
    pub polling: PollingConfig,
    /// Time left for repeating disturbed turns.
    repeat_budget: Duration,
}

impl PolicyComparison {
    /// A comparison on `testbed`, or on loopback without one.
    ///
    /// # Panics
    /// If the repeat budget of `config` is negative or not finite.
    pub fn new(
        testbed: Option<Testbed>,
        cores: CoreAssignment,
        config: ComparisonConfig,
        polling: PollingConfig,
    ) -> Self {
        Self { testbed, cores, repeat_budget: Duration::from_secs_f64(config.repeat_budget), config, polling }
    }

    /// Whether it runs on the testbed, not on loopback.
    pub fn has_testbed(&self) -> bool {
        self.testbed.is_some()
    }

    /// Measures one contestant once.
    pub(super) fn measure(
        &self,
        contestant: Contestant,
        polling: PollingConfig,
        warm_up: f64,
        duration: f64,
    ) -> Result<Measurement, Error> {
        let on_testbed = |name: &str| self.testbed.as_ref().map(|_| name.to_owned());
        let role = ProcessRole::Server(ServerSpec {
            policy: contestant.policy,
            driver: contestant.driver,
            interface: on_testbed(SERVER_INTERFACE),
            address: IpAddr::V4(if self.has_testbed() { SERVER_ADDRESS } else { Ipv4Addr::LOCALHOST }),
            cores: Cpus::one(self.cores.server),
            packing_core: self.cores.packing,
            polling,
            wait: self.config.wait,
            memory: 0,
        });
        let namespace = self.testbed.as_ref().map(|testbed| &testbed.server);
        let mut server = ExperimentProcess::start(&role, namespace)?;
        let ready = server.server_ready()?;
        let role = ProcessRole::Load(LoadSpec {
            interface: on_testbed(CLIENT_INTERFACE),
            server: ready.address,
            cores: Cpus::one(self.cores.client),
            connections: self.config.connections,
            rate: None,
            warm_up,
            duration,
            records: 10_000,
            load_records: true,
        });
        let namespace = self.testbed.as_ref().map(|testbed| &testbed.client);
        let mut load = ExperimentProcess::start(&role, namespace)?;
        let (load_measurement, server_measurement) = load.measure(&mut server)?;
        load.finish()?;
        server.finish()?;
        Ok(Measurement {
            asked: contestant.policy,
            driver: contestant.driver,
            ran: ready.ran.clone(),
            steps_down: ready.steps_down.clone(),
            load: load_measurement,
            server: server_measurement,
            ready,
        })
    }

    /// Measures all contestants in a closed loop. Calls `progress` before each turn.
    ///
    /// # Errors
    /// If a server or a load can't be run.
    pub fn compare(&mut self, mut progress: impl FnMut(&str)) -> Result<MeasuredRounds<Measurement>, Error> {
        let contestants = self.config.contestants.clone();
        let ComparisonConfig { rounds: count, duration, warm_up, .. } = self.config;
        let mut rounds = Rounds::new(contestants.len(), count)
            .repeat_above(STEAL_LIMIT, RepeatPolicy::Within(self.repeat_budget));
        while let Some(turn) = rounds.next_turn() {
            let contestant = contestants[turn.contestant()];
            if !turn.is_repeat() {
                progress(&format!("{contestant}, closed loop, round {} of {count}", turn.round() + 1));
            }
            let guard = ConditionsGuard::begin(self.cores)?;
            let measurement = self.measure(contestant, self.polling, warm_up, duration)?;
            let conditions = guard.end()?;
            rounds.finish_turn(turn, Some(measurement), conditions);
        }
        let finished = rounds.finish();
        self.repeat_budget = self.repeat_budget.saturating_sub(finished.repeated_time);
        let contestants = contestants.iter().map(ToString::to_string).collect();
        Ok(MeasuredRounds { load: "closed loop".to_owned(), contestants, finished })
    }
}

/// Summarises rounds: one row for each contestant.
pub fn policy_rows(contestants: &[Contestant], rounds: &[Round<Measurement>]) -> Vec<PolicyRow> {
    (0..contestants.len()).filter_map(|index| policy_row(contestants[index], index, rounds)).collect()
}

fn policy_row(contestant: Contestant, index: usize, rounds: &[Round<Measurement>]) -> Option<PolicyRow> {
    let measurements = || rounds.iter().filter_map(|round| round.value(index));
    measurements().next()?;
    let median_of = |figure: fn(&Measurement) -> f64| median(&figures(rounds, index, figure));
    let ratio_to_first = |figure: fn(&Measurement) -> f64| median_interval(&ratios(rounds, index, 0, figure));
    // If rounds ran different things, the row names all of them.
    let mut ran: Vec<&str> = measurements().map(|measurement| measurement.ran.as_str()).collect();
    ran.sort_unstable();
    ran.dedup();
    Some(PolicyRow {
        asked: contestant.policy,
        driver: contestant.driver,
        ran: ran.join(" or "),
        qps: median_of(|it| it.load.qps),
        slowest_turn: slowest_over_median(&figures(rounds, index, |it| it.load.qps)),
        turns: measurements().count(),
        p50_us: median_of(|it| it.load.latency.p50),
        p99_us: median_of(|it| it.load.latency.p99),
        p999_us: median_of(|it| it.load.latency.p999),
        cpu_us_per_request: median_of(Measurement::cpu_us),
        thread_cpu_us_per_request: median_of(Measurement::thread_cpu_us),
        packets_per_wake: median_of(|it| it.server.packets_per_event.unwrap_or(f64::INFINITY)),
        busy_poll_share: median_of(|it| it.server.busy_poll_share),
        client_busy: median_of(|it| it.load.client_busy),
        ratio_to_vanilla: ratio_to_first(|it| it.load.qps),
        cpu_ratio_to_vanilla: ratio_to_first(Measurement::cpu_us),
    })
}
