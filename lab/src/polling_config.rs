//! How a server under kernel polling adapts.

use std::fmt;

use policies::GraceTime;
use policies::controller::{CpuBudget, LatencyBudget};
use runtime::Builder;
use serde::{Deserialize, Serialize};

/// The grace time and the budgets of a server. Other policies than kernel polling ignore the
/// budgets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PollingConfig {
    /// The grace time: adaptive (the default), or one at every load.
    pub grace_time: GraceTime,
    /// Delay that may be paid for less CPU time.
    pub latency_budget: LatencyBudget,
    /// CPU time that may be paid for less delay.
    #[serde(default)]
    pub cpu_budget: CpuBudget,
}

impl PollingConfig {
    pub fn set(self, builder: Builder) -> Builder {
        builder.grace_time(self.grace_time).latency_budget(self.latency_budget).cpu_budget(self.cpu_budget)
    }
}

/// What differs from the default, behind a comma.
impl fmt::Display for PollingConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.grace_time {
            GraceTime::Adaptive if self.cpu_budget > CpuBudget::ZERO => {
                write!(f, ", CPU budget {} %", self.cpu_budget)
            }
            GraceTime::Adaptive if self.latency_budget == LatencyBudget::ZERO => Ok(()),
            GraceTime::Adaptive => write!(f, ", budget {} µs", self.latency_budget),
            fixed => write!(f, ", grace {fixed} µs"),
        }
    }
}
