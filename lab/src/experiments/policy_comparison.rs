//! The comparison of policies and drivers, in interleaved rounds.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use loadgen::interleaved_rounds::{Conditions, DisturbedTurn, RepeatPolicy, Round, Rounds, figures, ratios};
use loadgen::medians::{Interval, median, median_interval};
use policies::{GraceTime, Policy};
use runtime::{DriverKind, WaitStrategy};
use serde::{Serialize, Serializer};

use super::contestant::Contestant;
use super::core_assignment::CoreAssignment;
use super::steal::STEAL_LIMIT;
use crate::Error;
use crate::experiment_process::{
    ExperimentProcess, GraceTimeTurns, LoadMeasurement, LoadSpec, ProcessRole, ServerMeasurement,
    ServerReady, ServerSpec,
};
use crate::testbed::{CLIENT_INTERFACE, SERVER_ADDRESS, SERVER_INTERFACE, Testbed};

/// How much is measured.
#[derive(Debug, Clone, Serialize)]
pub struct ComparisonConfig {
    /// Rounds at saturation; each measures every contestant once.
    pub rounds: usize,
    /// Seconds of a measurement at saturation.
    pub duration: f64,
    /// Seconds of load before each measurement.
    pub warm_up: f64,
    /// Rates of the open loop, as shares of the highest throughput at saturation.
    pub load_shares: Vec<f64>,
    /// Rounds at each rate.
    pub load_rounds: usize,
    /// Seconds of a measurement at a rate.
    pub load_duration: f64,
    /// Grace times to choose from.
    pub grace_candidates: Vec<Duration>,
    /// Rounds of the grace times.
    pub grace_rounds: usize,
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
    /// A comparison of five minutes, or of half a minute if `quick`. Rates below saturation are measured if all
    /// contestants have the same driver.
    pub fn new(contestants: Vec<Contestant>, quick: bool) -> Self {
        let one_driver = contestants.iter().all(|contestant| contestant.driver == contestants[0].driver);
        Self {
            rounds: if quick { 3 } else { 7 },
            duration: if quick { 0.8 } else { 2.5 },
            warm_up: if quick { 0.2 } else { 0.5 },
            load_shares: match (one_driver, quick) {
                (false, _) => Vec::new(),
                (true, true) => vec![0.5],
                (true, false) => vec![0.2, 0.4, 0.6, 0.8],
            },
            load_rounds: if quick { 1 } else { 2 },
            load_duration: if quick { 0.8 } else { 2.0 },
            grace_candidates: [50, 100, 200, 400].map(Duration::from_micros).into(),
            grace_rounds: if quick { 20 } else { 40 },
            connections: 64,
            wait: WaitStrategy::Block,
            contestants,
            repeat_budget: if quick { 4.0 } else { 60.0 },
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
    /// Requests a second that were requested; `None` at saturation.
    pub rate: Option<f64>,
    /// The client's measurement.
    pub load: LoadMeasurement,
    /// The server's measurement.
    pub server: ServerMeasurement,
    /// The server's first message: its worker's report, and the knobs read back.
    pub ready: ServerReady,
}

impl Measurement {
    /// Busy time of the server's core per request, µs.
    pub fn cpu_us(&self) -> f64 {
        self.server.core_busy * 1e6 / self.server.requests.max(1) as f64
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
    /// Requests a second that were requested; `None` at saturation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_qps: Option<f64>,
    /// Requests per second.
    pub qps: f64,
    /// Median latency, µs.
    pub p50_us: f64,
    /// 99th percentile of the latency, µs.
    pub p99_us: f64,
    /// 99.9th percentile of the latency, µs.
    pub p999_us: f64,
    /// Busy time of the server's core per request, µs.
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
    /// Busy time of the server's core per request over that of the first contestant in the same round.
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
    pub grace_time: GraceTime,
    /// Disturbed turns that were repeated, a sentence each.
    pub repeated: Vec<String>,
    /// Disturbed turns that were kept because the time for repeating was used up, a sentence each.
    pub kept_disturbed: Vec<String>,
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
        grace_time: GraceTime,
    ) -> Self {
        Self {
            testbed,
            cores,
            repeat_budget: Duration::from_secs_f64(config.repeat_budget),
            config,
            grace_time,
            repeated: Vec::new(),
            kept_disturbed: Vec::new(),
        }
    }

    /// Whether it runs on the testbed, not on loopback.
    pub fn has_testbed(&self) -> bool {
        self.testbed.is_some()
    }

    /// Measures one contestant once. With `turns`, grace times take turns meanwhile.
    pub(super) fn measure(
        &self,
        contestant: Contestant,
        grace_time: GraceTime,
        rate: Option<f64>,
        warm_up: f64,
        duration: f64,
        turns: Option<GraceTimeTurns>,
    ) -> Result<Measurement, Error> {
        let on_testbed = |name: &str| self.testbed.as_ref().map(|_| name.to_owned());
        let role = ProcessRole::Server(ServerSpec {
            policy: contestant.policy,
            driver: contestant.driver,
            interface: on_testbed(SERVER_INTERFACE),
            address: IpAddr::V4(if self.has_testbed() { SERVER_ADDRESS } else { Ipv4Addr::LOCALHOST }),
            core: self.cores.server,
            packing_core: self.cores.packing,
            grace_time,
            grace_time_turns: turns,
            wait: self.config.wait,
        });
        let namespace = self.testbed.as_ref().map(|testbed| &testbed.server);
        let mut server = ExperimentProcess::start(&role, namespace)?;
        let ready = server.server_ready()?;
        let role = ProcessRole::Load(LoadSpec {
            interface: on_testbed(CLIENT_INTERFACE),
            server: ready.address,
            core: self.cores.client,
            connections: self.config.connections,
            rate,
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
            rate,
            load: load_measurement,
            server: server_measurement,
            ready,
        })
    }

    /// Measures all contestants in `count` rounds, at saturation or at `rate` requests a second. Calls `progress`
    /// before each turn.
    ///
    /// # Errors
    /// If a server or a load can't be run.
    pub fn compare(
        &mut self,
        rate: Option<f64>,
        count: usize,
        duration: f64,
        mut progress: impl FnMut(&str),
    ) -> Result<Vec<Round<Measurement>>, Error> {
        let contestants = self.config.contestants.clone();
        let at = rate.map_or_else(|| "saturated".to_owned(), |rate| format!("{rate:.0}/s"));
        let mut rounds = Rounds::new(contestants.len(), count)
            .repeat_above(STEAL_LIMIT, RepeatPolicy::Within(self.repeat_budget));
        while let Some(turn) = rounds.next_turn() {
            let contestant = contestants[turn.contestant()];
            if !turn.is_repeat() {
                progress(&format!("{contestant}, {at}, round {} of {count}", turn.round() + 1));
            }
            let warm_up = self.config.warm_up;
            let measurement = self.measure(contestant, self.grace_time, rate, warm_up, duration, None)?;
            let conditions = Conditions::with_steal(measurement.server.steal);
            rounds.finish_turn(turn, Some(measurement), conditions);
        }
        let finished = rounds.finish();
        self.repeat_budget = self.repeat_budget.saturating_sub(finished.repeated_time);
        let at = rate.map_or_else(String::new, |rate| format!(" at {rate:.0}/s"));
        for DisturbedTurn { contestant, conditions, repeated, .. } in &finished.disturbed {
            let percent = conditions.steal * 100.0;
            let sentence =
                format!("{}{at}: the hypervisor stole {percent:.1} % of a core", contestants[*contestant]);
            if *repeated { &mut self.repeated } else { &mut self.kept_disturbed }.push(sentence);
        }
        Ok(finished.into_leading().rounds)
    }
}

/// Summarises rounds: one row for each contestant.
pub fn policy_rows(contestants: &[Contestant], rounds: &[Round<Measurement>]) -> Vec<PolicyRow> {
    (0..contestants.len()).filter_map(|index| policy_row(contestants[index], index, rounds)).collect()
}

fn policy_row(contestant: Contestant, index: usize, rounds: &[Round<Measurement>]) -> Option<PolicyRow> {
    let measurements = || rounds.iter().filter_map(|round| round.value(index));
    let first = measurements().next()?;
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
        asked_qps: first.rate,
        qps: median_of(|it| it.load.qps),
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
