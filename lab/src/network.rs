//! How a server on Lull's runtime handles the network.

use std::fmt;

use policies::controller::PollInterval;
use policies::{GraceTime, Policy};
use runtime::{Builder, DriverKind};
use serde::{Deserialize, Serialize};

/// How a server's queue is polled. Other policies than kernel polling ignore the interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PollingConfig {
    /// The grace time: adaptive (the default), or one at every load.
    pub grace_time: GraceTime,
    pub poll_interval: PollInterval,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Network {
    pub policy: Policy,
    pub driver: DriverKind,
    /// `None` on loopback.
    pub interface: Option<String>,
    pub workers: usize,
    /// The core that does the network work under packing, and on which the thread of kernel-thread
    /// polls. `None` for the runtime's own choice.
    pub packing_core: Option<u32>,
    pub polling: PollingConfig,
}

impl Network {
    /// A runtime whose workers have these cores; without any the runtime chooses.
    pub(crate) fn builder(&self, cores: &[u32]) -> Builder {
        let PollingConfig { grace_time, poll_interval } = self.polling;
        let builder = Builder::new().ignore_environment().policy(self.policy).driver(self.driver);
        let builder = builder.workers(self.workers).packing_cores(self.packing_core.into_iter().collect());
        let mut builder = builder.grace_time(grace_time).poll_interval(poll_interval);
        if !cores.is_empty() {
            builder = builder.cores(cores.iter().copied().collect());
        }
        self.interface.iter().fold(builder, |builder, name| builder.interface(name))
    }
}

/// What differs from the default, behind a comma.
impl fmt::Display for PollingConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.grace_time {
            GraceTime::Adaptive if self.poll_interval == PollInterval::default() => Ok(()),
            GraceTime::Adaptive => write!(f, ", {} µs", self.poll_interval),
            fixed => write!(f, ", grace {fixed} µs"),
        }
    }
}
