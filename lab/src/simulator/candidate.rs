//! The rules that are compared.

use std::fmt;
use std::time::Duration;

use policies::law::LatencyBudget;
use serde::{Serialize, Serializer};

use super::costs::Costs;
use super::rules::{
    Drive, Fixed, HaltPolling, LONGEST_SLEEP, LawRule, NET_DIM_LADDER, NetDim, Rule, SpinByCost, TwoOutcomes,
};

/// A rule that chooses how a queue is driven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Candidate {
    /// Plain mode: vanilla.
    Plain,
    /// Interrupt-first mode.
    InterruptFirst,
    /// Grace mode with this grace time in µs, and `napi_defer_hard_irqs` 100.
    Grace(u64),
    /// Grace mode with this grace time in µs, and `napi_defer_hard_irqs`.
    GraceDefer(u64, u32),
    /// KVM's halt polling, as the spin of interrupt-first mode.
    HaltPolling,
    /// net_dim's ladder, as the grace time.
    NetDim,
    /// The rule of PAS (FAST '26), as the grace time.
    TwoOutcomes,
    /// The spin that costs least on average, in interrupt-first mode.
    SpinByCost,
    /// The law that the runtime uses.
    Law(LatencyBudget),
}

impl Candidate {
    /// All rules, with the law once for each budget. The first is plain mode.
    pub fn all(budgets: &[LatencyBudget]) -> Vec<Self> {
        let mut all = vec![Self::Plain, Self::InterruptFirst];
        all.extend([20, 50, 100].map(Self::Grace));
        all.extend([Self::GraceDefer(20, 2), Self::GraceDefer(50, 5)]);
        all.extend([Self::HaltPolling, Self::SpinByCost, Self::NetDim, Self::TwoOutcomes]);
        all.extend(budgets.iter().copied().map(Self::Law));
        all
    }

    /// By how much the rule may delay a request while the core has nothing to do, in ns: its longest grace time.
    pub fn delay(self) -> u64 {
        match self {
            Self::Plain | Self::InterruptFirst | Self::HaltPolling | Self::SpinByCost => 0,
            Self::Grace(micros) | Self::GraceDefer(micros, _) => micros * 1_000,
            Self::NetDim => NET_DIM_LADDER[NET_DIM_LADDER.len() - 1] * 1_000,
            Self::TwoOutcomes => LONGEST_SLEEP,
            Self::Law(budget) => Duration::as_nanos(&budget.delay()) as u64,
        }
    }

    pub(super) fn rule(self, costs: &Costs) -> Box<dyn Rule> {
        match self {
            Self::Plain => Box::new(Fixed(Drive::Plain)),
            Self::InterruptFirst => Box::new(Fixed(Drive::interrupt_first(0))),
            Self::Grace(micros) => Box::new(Fixed(Drive::grace(micros * 1_000))),
            Self::GraceDefer(micros, defer) => {
                let ticks = defer.saturating_sub(1);
                Box::new(Fixed(Drive::Polling { grace: micros * 1_000, ticks, spin: 0 }))
            }
            Self::HaltPolling => Box::new(HaltPolling::default()),
            Self::NetDim => Box::new(NetDim::default()),
            Self::TwoOutcomes => Box::new(TwoOutcomes::default()),
            Self::SpinByCost => Box::new(SpinByCost::new(costs)),
            Self::Law(budget) => Box::new(LawRule::new(budget, *costs)),
        }
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => write!(f, "plain"),
            Self::InterruptFirst => write!(f, "interrupt-first"),
            Self::Grace(micros) => write!(f, "grace {micros} µs"),
            Self::GraceDefer(micros, defer) => write!(f, "grace {micros} µs, defer {defer}"),
            Self::HaltPolling => write!(f, "halt polling"),
            Self::NetDim => write!(f, "net_dim"),
            Self::TwoOutcomes => write!(f, "two outcomes (PAS)"),
            Self::SpinByCost => write!(f, "spin by cost"),
            Self::Law(budget) => write!(f, "law, budget {budget} µs"),
        }
    }
}

impl Serialize for Candidate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
