//! How much is measured under a fleet.

use std::time::Duration;

use loadgen::Workload;
use policies::Policy;
use policies::law::LatencyBudget;
use serde::Serialize;

use super::contender::Contender;
use super::server_command::ServerCommand;
use crate::fleet::{AlternatingRate, FleetRequests};

/// What a contender's ratios refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reference {
    /// The first contender.
    First,
    /// Vanilla on the contender's own driver; the first contender if there is none.
    VanillaOnSameDriver,
}

impl Reference {
    /// The index of the contender that a contender is compared with.
    pub(super) fn of(self, contenders: &[Contender], index: usize) -> usize {
        let driver = contenders[index].policy().map(|(_, driver)| driver);
        let is_vanilla = |other: &Contender| {
            other.policy().is_some_and(|(policy, other)| policy == Policy::Vanilla && Some(other) == driver)
        };
        match self {
            Self::First => 0,
            Self::VanillaOnSameDriver => contenders.iter().position(is_vanilla).unwrap_or(0),
        }
    }
}

/// A load that steps up and down.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Alternation {
    /// The rate after a step up, as a share of the first contender's capacity.
    pub high_share: f64,
    /// The rate after a step down, as such a share; 0 for no requests.
    pub low_share: f64,
    /// Seconds from a step up to the next step down.
    pub high_seconds: f64,
    /// Seconds from a step down to the next step up.
    pub low_seconds: f64,
    /// Seconds of the windows by which latencies are kept apart.
    pub window_seconds: f64,
    /// Steps up that are measured in a turn.
    pub cycles: u32,
}

impl Alternation {
    /// The rate, if this is the first contender's capacity in requests per second.
    pub(super) fn rate(&self, capacity: f64) -> AlternatingRate {
        let rate = |share: f64| rounded(capacity * share);
        AlternatingRate {
            high: rate(self.high_share).max(LOWEST_RATE),
            low: if self.low_share > 0.0 { rate(self.low_share).max(LOWEST_RATE) } else { 0.0 },
            high_seconds: self.high_seconds,
            low_seconds: self.low_seconds,
            window_seconds: self.window_seconds,
        }
    }

    /// Seconds of a measurement.
    pub(super) fn duration(&self) -> f64 {
        (self.high_seconds + self.low_seconds) * f64::from(self.cycles)
    }
}

/// The lowest rate that a share of the capacity gives, requests per second.
pub(super) const LOWEST_RATE: f64 = 100.0;

/// To hundreds, for legibility.
pub(super) fn rounded(rate: f64) -> f64 {
    (rate / LOWEST_RATE).round() * LOWEST_RATE
}

/// How much is measured under a fleet.
#[derive(Debug, Clone, Serialize)]
pub struct FleetComparisonConfig {
    /// What is compared. Rates are shares of the first one's capacity.
    pub contenders: Vec<Contender>,
    /// What ratios refer to.
    pub reference: Reference,
    /// Connections of the fleet, 1 to 20,000.
    pub connections: usize,
    /// Requests in flight on each connection, in the open loop and in the closed one.
    pub depth: usize,
    /// What is asked.
    pub requests: FleetRequests,
    /// Rates of the open loop, as shares of the first contender's capacity. Without shares and rates only the closed loop
    /// is measured.
    pub shares: Vec<f64>,
    /// Rates of the open loop, requests per second. If there are any, the capacity is not searched, and shares of it are
    /// not measured.
    pub rates: Vec<f64>,
    /// Loads that step up and down.
    pub alternations: Vec<Alternation>,
    /// The capacity that shares refer to, requests per second, instead of one that is searched.
    pub given_capacity: Option<f64>,
    /// Rounds at each rate and in the closed loop.
    pub rounds: usize,
    /// Rounds of the search for the capacity.
    pub capacity_rounds: usize,
    /// Whether the closed loop is measured.
    pub closed_loop: bool,
    /// Mean think time of the closed loop, µs.
    pub think_us: f64,
    /// Seconds of load before each turn of which nothing is counted. CPU time is that of a whole turn, warm-up included,
    /// so a policy that takes long to settle needs these. 0 for none.
    pub settle: f64,
    /// Seconds of load before each measurement.
    pub warm_up: f64,
    /// Seconds of a measurement.
    pub duration: f64,
    /// Seconds of load before each trial of the search for the capacity.
    pub trial_warm_up: f64,
    /// Seconds of such a trial.
    pub trial_duration: f64,
    /// The highest 99th percentile at which a rate is within the capacity, µs.
    pub capacity_p99_us: f64,
    /// Seconds for which the CPU time of each contender is measured while its connections are idle, before the rounds. 0 for
    /// not at all.
    pub idle: f64,
    /// The time that all rounds may take.
    pub time_limit: Duration,
    /// The search for the capacity's share of that time, 0 to 1. The loads share the rest equally.
    pub capacity_share: f64,
}

impl FleetComparisonConfig {
    /// For four contenders five minutes at most, or one if `quick`; more contenders take proportionally longer.
    pub fn new(contenders: Vec<Contender>, quick: bool) -> Self {
        let fours = contenders.len() as f64 / 4.0;
        Self {
            contenders,
            reference: Reference::VanillaOnSameDriver,
            connections: 64,
            depth: 1,
            requests: FleetRequests::Memcached(Box::<Workload>::default()),
            shares: if quick { vec![0.5] } else { vec![0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.1] },
            rates: Vec::new(),
            alternations: Vec::new(),
            given_capacity: None,
            rounds: if quick { 16 } else { 12 },
            capacity_rounds: if quick { 8 } else { 12 },
            closed_loop: !quick,
            think_us: 0.0,
            settle: 0.0,
            // A policy that adapts needs it to settle.
            warm_up: 0.2,
            duration: if quick { 0.2 } else { 0.25 },
            trial_warm_up: 0.2,
            trial_duration: 0.1,
            capacity_p99_us: 500.0,
            idle: 0.0,
            capacity_share: if quick { 0.65 } else { 0.45 },
            time_limit: Duration::from_secs_f64(if quick { 52.0 } else { 220.0 } * fours.max(1.0)),
        }
    }

    /// For loads that step up and down: between 10 and 90 % of the first contender's capacity, and bursts at 90 % of it. For
    /// two contenders five minutes at most, or 80 s if `quick`; more contenders take proportionally longer.
    pub fn load_steps(contenders: Vec<Contender>, quick: bool) -> Self {
        let twos = contenders.len() as f64 / 2.0;
        let steps = |seconds| Alternation {
            high_share: 0.9,
            low_share: 0.1,
            high_seconds: seconds,
            low_seconds: seconds,
            window_seconds: 0.02,
            cycles: 1,
        };
        // As long as the pauses between them.
        let bursts = |seconds: f64, cycles| Alternation {
            low_share: 0.0,
            // A shorter window has too few requests.
            window_seconds: seconds.min(0.02),
            cycles,
            ..steps(seconds)
        };
        let alternations = if quick {
            vec![steps(0.4), bursts(0.01, 20), bursts(0.1, 2)]
        } else {
            vec![steps(0.5), bursts(0.001, 200), bursts(0.01, 20), bursts(0.1, 3), bursts(1.0, 1)]
        };
        Self {
            shares: Vec::new(),
            alternations,
            rounds: if quick { 8 } else { 12 },
            capacity_rounds: if quick { 6 } else { 10 },
            closed_loop: false,
            capacity_share: 0.35,
            time_limit: Duration::from_secs_f64(if quick { 80.0 } else { 290.0 } * twos.max(1.0)),
            ..Self::new(contenders, quick)
        }
    }

    /// For a server of another project as it runs, and attached to from outside with each latency budget. Ratios refer to
    /// the server as it runs. For three budgets ten minutes at most, or three if `quick`.
    pub fn attached(server: &ServerCommand, budgets: &[LatencyBudget], quick: bool) -> Self {
        let contenders = Contender::attached(server, budgets);
        let fours = contenders.len() as f64 / 4.0;
        Self {
            reference: Reference::First,
            shares: if quick { vec![0.5] } else { vec![0.1, 0.25, 0.5, 0.75, 0.9] },
            rounds: if quick { 8 } else { 12 },
            capacity_rounds: if quick { 6 } else { 10 },
            // From outside the law is asked every 50 ms, and begins with plain interrupts after each idle time.
            settle: 0.8,
            warm_up: 0.1,
            duration: 0.3,
            trial_warm_up: 0.4,
            trial_duration: 0.15,
            capacity_p99_us: 200.0,
            time_limit: Duration::from_secs_f64(if quick { 150.0 } else { 540.0 } * fours.max(1.0)),
            ..Self::new(contenders, quick)
        }
    }

    /// The index of the contender that a contender's ratios refer to.
    pub fn reference_of(&self, index: usize) -> usize {
        self.reference.of(&self.contenders, index)
    }

    /// The number of loads that are measured, the search for the capacity included.
    pub fn loads(&self) -> usize {
        let has_capacity = self.searches_capacity() || self.given_capacity.is_some();
        let of_capacity = if has_capacity { self.shares.len() + self.alternations.len() } else { 0 };
        let measured = self.rates.len() + of_capacity + usize::from(self.closed_loop);
        measured + usize::from(self.searches_capacity())
    }

    /// Whether the capacity is searched: it is what shares refer to.
    pub fn searches_capacity(&self) -> bool {
        let has_shares = !self.shares.is_empty() || !self.alternations.is_empty();
        has_shares && self.rates.is_empty() && self.given_capacity.is_none()
    }
}
