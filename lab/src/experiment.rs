//! The comparison of the four policies, in rounds.

use std::fmt;
use std::io;
use std::time::Duration;

use loadgen::medians::{Interval, median, median_interval};
use loadgen::rounds::{self, Conditions, DisturbedTurn, RepeatPolicy, Rounds, figures, ratios};
use policies::{Cpus, GraceTime, Policy};
use runtime::DriverKind;
use serde::Serialize;

use crate::grace_blocks::Blocks;
use crate::party::{LOOPBACK, LoadOrder, LoadSide, Party, Role, ServerOrder, ServerSide};
use crate::testbed::{CLIENT_INTERFACE, SERVER_ADDRESS, SERVER_INTERFACE, Testbed};

/// How much is measured.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    /// Rounds at saturation, each with every policy once.
    pub rounds: usize,
    /// Seconds of one measurement.
    pub duration: f64,
    /// Seconds of load before it.
    pub warm_up: f64,
    /// Rates of the open loop, as shares of the best policy's saturation.
    pub load_shares: Vec<f64>,
    /// Rounds a rate.
    pub load_rounds: usize,
    /// Seconds of a measurement at a rate.
    pub load_duration: f64,
    /// Grace times to choose from.
    pub grace_candidates: Vec<Duration>,
    /// Passes over them.
    pub grace_rounds: usize,
    /// Connections of the load.
    pub connections: usize,
    /// How the server's worker waits.
    pub wait: String,
    /// What is compared.
    pub contestants: Vec<Contestant>,
    /// All in all no more time than this, in seconds, goes into rounds that are run again.
    pub repeat_budget: f64,
}

/// What is compared: a policy on a driver. The first of a comparison is what the others are measured by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Contestant {
    /// The policy.
    pub policy: Policy,
    /// The server's driver.
    pub driver: DriverKind,
}

impl Contestant {
    /// The four policies on one driver: what differs is the policy alone.
    pub fn policies(driver: DriverKind) -> Vec<Self> {
        Policy::ALL.map(|policy| Self { policy, driver }).into()
    }

    /// Vanilla and kernel polling on each driver.
    pub fn drivers() -> Vec<Self> {
        [
            (Policy::Vanilla, DriverKind::Epoll),
            (Policy::Vanilla, DriverKind::Uring),
            (Policy::KernelPolling, DriverKind::Epoll),
            (Policy::KernelPolling, DriverKind::Uring),
            (Policy::KernelPolling, DriverKind::Hybrid),
        ]
        .map(|(policy, driver)| Self { policy, driver })
        .into()
    }
}

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.policy, self.driver)
    }
}

/// Steal above this spoils a round.
pub const STEAL_LIMIT: f64 = 0.02;

/// Which core does what.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Cores {
    /// The server's worker.
    pub server: u32,
    /// The load.
    pub client: u32,
    /// Packing's network work.
    pub packing: u32,
}

impl Cores {
    /// Chooses from the cores that this process may use.
    pub fn choose() -> io::Result<Self> {
        let cores: Vec<u32> = Cpus::allowed()?.iter().collect();
        let first = *cores.first().ok_or(io::ErrorKind::NotFound)?;
        let client = cores.get(1).copied().unwrap_or(first);
        Ok(Self { server: first, client, packing: cores.get(2).copied().unwrap_or(client) })
    }
}

/// One measurement.
#[derive(Debug, Clone, Serialize)]
pub struct Round {
    /// The policy asked.
    pub asked: Policy,
    /// The server's driver.
    pub driver: DriverKind,
    /// What the server's worker really ran.
    pub ran: String,
    /// Why that isn't what was asked.
    pub steps_down: Vec<String>,
    /// The rate asked, in an open loop.
    pub rate: Option<f64>,
    /// The load's side.
    pub load: LoadSide,
    /// The server's side.
    pub server: ServerSide,
    /// What the server said of itself at its start: reports, and knobs read back.
    pub ready: serde_json::Value,
}

impl Round {
    /// Busy time of the server's core for a request, µs.
    pub fn cpu_us(&self) -> f64 {
        self.server.core_busy * 1e6 / self.server.requests.max(1) as f64
    }
}

/// One policy's row of a table.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The policy asked.
    pub asked: Policy,
    /// The server's driver.
    pub driver: DriverKind,
    /// What ran.
    pub ran: String,
    /// The rate asked, in an open loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_qps: Option<f64>,
    /// Requests a second, median.
    pub qps: f64,
    /// Latency, µs, median of the rounds.
    pub p50_us: f64,
    /// Latency, µs, median of the rounds.
    pub p99_us: f64,
    /// Latency, µs, median of the rounds.
    pub p999_us: f64,
    /// Busy time of the server's core a request, µs, median.
    pub cpu_us_per_request: f64,
    /// CPU time of the server's worker thread a request, µs, median.
    pub thread_cpu_us_per_request: f64,
    /// Packets a softirq (or an interrupt), median.
    pub packets_per_softirq: f64,
    /// The share of packets that a busy poll got, median.
    pub busy_poll_share: f64,
    /// How busy the client was, 0 to 1, median.
    pub client_busy: f64,
    /// Throughput over that of the first contestant (vanilla) in the same round.
    pub ratio_to_vanilla: Interval,
    /// Busy time of the server's core a request, over the first contestant's in the same round.
    pub cpu_ratio_to_vanilla: Interval,
}

/// Where and how rounds are run.
#[derive(Debug)]
pub struct Bench {
    testbed: Option<Testbed>,
    /// Which core does what.
    pub cores: Cores,
    /// The plan.
    pub plan: Plan,
    /// The grace time in use.
    pub grace_time: GraceTime,
    /// Rounds that were run again, a sentence each.
    pub repeated: Vec<String>,
    /// Rounds that were spoilt and could not be run again, for lack of time.
    pub spoilt: Vec<String>,
    /// Time left for repeating disturbed rounds.
    repeat_budget: Duration,
}

impl Bench {
    /// On the testbed, or on loopback where there is none.
    pub fn new(testbed: Option<Testbed>, cores: Cores, plan: Plan, grace_time: GraceTime) -> Self {
        Self {
            testbed,
            cores,
            repeat_budget: Duration::from_secs_f64(plan.repeat_budget),
            plan,
            grace_time,
            repeated: Vec::new(),
            spoilt: Vec::new(),
        }
    }

    /// Whether this is the testbed, not loopback.
    pub fn has_testbed(&self) -> bool {
        self.testbed.is_some()
    }

    /// Runs one measurement; with `blocks`, grace times are taken in turns meanwhile.
    pub(crate) fn measure(
        &self,
        contestant: Contestant,
        grace_time: GraceTime,
        rate: Option<f64>,
        warm_up: f64,
        duration: f64,
        blocks: Option<Blocks>,
    ) -> io::Result<Round> {
        let on_testbed = |name: &str| self.testbed.as_ref().map(|_| name.to_owned());
        let order = Role::Server(ServerOrder {
            policy: contestant.policy,
            driver: contestant.driver,
            interface: on_testbed(SERVER_INTERFACE),
            address: if self.has_testbed() { SERVER_ADDRESS.into() } else { LOOPBACK },
            core: self.cores.server,
            packing_core: self.cores.packing,
            grace_time,
            grace_blocks: blocks,
            wait: self.plan.wait.clone(),
        });
        let mut server = Party::start(&order, self.testbed.as_ref().map(|testbed| &testbed.server))?;
        let (address, ready) = server.server_ready()?;
        let order = Role::Load(LoadOrder {
            interface: on_testbed(CLIENT_INTERFACE),
            server: address,
            core: self.cores.client,
            connections: self.plan.connections,
            rate,
            warm_up,
            duration,
            records: 10_000,
            load_records: true,
        });
        let mut load = Party::start(&order, self.testbed.as_ref().map(|testbed| &testbed.client))?;
        let (load_side, server_side) = load.measure(&mut server)?;
        load.finish()?;
        server.finish()?;
        let report = &ready["reports"][0];
        let steps_down = serde_json::from_value(report["steps_down"].clone()).unwrap_or_default();
        Ok(Round {
            asked: contestant.policy,
            driver: contestant.driver,
            ran: report["running"].as_str().unwrap_or("unknown").to_owned(),
            steps_down,
            rate,
            load: load_side,
            server: server_side,
            ready,
        })
    }

    /// All contestants in rounds, each round beginning with another one; rounds that the hypervisor spoilt are
    /// run again.
    pub fn compare(
        &mut self,
        rate: Option<f64>,
        count: usize,
        duration: f64,
        mut tick: impl FnMut(&str),
    ) -> io::Result<Vec<rounds::Round<Round>>> {
        let contestants = self.plan.contestants.clone();
        let at = rate.map_or_else(|| "saturated".to_owned(), |rate| format!("{rate:.0}/s"));
        let mut rounds = Rounds::new(contestants.len(), count)
            .repeat_above(STEAL_LIMIT, RepeatPolicy::Within(self.repeat_budget));
        while let Some(turn) = rounds.next_turn() {
            let contestant = contestants[turn.contestant()];
            if !turn.is_repeat() {
                tick(&format!("{contestant}, {at}, round {} of {count}", turn.round() + 1));
            }
            let round = self.measure(contestant, self.grace_time, rate, self.plan.warm_up, duration, None)?;
            let conditions = Conditions::with_steal(round.server.steal);
            rounds.finish_turn(turn, Some(round), conditions);
        }
        let finished = rounds.finish();
        self.repeat_budget = self.repeat_budget.saturating_sub(finished.repeated_time);
        let at = rate.map_or_else(String::new, |rate| format!(" at {rate:.0}/s"));
        for DisturbedTurn { contestant, conditions, repeated, .. } in finished.disturbed {
            let what = format!(
                "{}{at}: the hypervisor stole {:.1} % of a core",
                contestants[contestant],
                conditions.steal * 100.0
            );
            if repeated { &mut self.repeated } else { &mut self.spoilt }.push(what);
        }
        Ok(finished.rounds)
    }
}

/// Puts rounds together, a row a contestant.
pub fn rows(contestants: &[Contestant], rounds: &[rounds::Round<Round>]) -> Vec<Row> {
    (0..contestants.len()).filter_map(|index| row(contestants[index], index, rounds)).collect()
}

fn row(contestant: Contestant, index: usize, rounds: &[rounds::Round<Round>]) -> Option<Row> {
    let first = rounds.iter().find_map(|round| round.value(index))?;
    let of_all = |figure: fn(&Round) -> f64| median(&figures(rounds, index, figure));
    let over_first = |figure: fn(&Round) -> f64| median_interval(&ratios(rounds, index, 0, figure));
    // Rounds that ran different things under one name would make the row mean nothing.
    let mut ran: Vec<&str> =
        rounds.iter().filter_map(|round| round.value(index)).map(|round| round.ran.as_str()).collect();
    ran.sort_unstable();
    ran.dedup();
    Some(Row {
        asked: contestant.policy,
        driver: contestant.driver,
        ran: ran.join(" or "),
        asked_qps: first.rate,
        qps: of_all(|round| round.load.qps),
        p50_us: of_all(|round| round.load.latency.p50),
        p99_us: of_all(|round| round.load.latency.p99),
        p999_us: of_all(|round| round.load.latency.p999),
        cpu_us_per_request: of_all(Round::cpu_us),
        thread_cpu_us_per_request: of_all(|round| {
            round.server.thread_cpu * 1e6 / round.server.requests.max(1) as f64
        }),
        packets_per_softirq: of_all(|round| round.server.packets_per_event),
        busy_poll_share: of_all(|round| round.server.busy_poll_share),
        client_busy: of_all(|round| round.load.client_busy),
        ratio_to_vanilla: over_first(|round| round.load.qps),
        cpu_ratio_to_vanilla: over_first(Round::cpu_us),
    })
}
