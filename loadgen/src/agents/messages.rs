//! The messages between coordinator and agents.

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::run::measured_run::WorkerRange;
use crate::stats::collector::Measurement;
use crate::stats::progress::Progress;

/// A message of the coordinator.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum CoordinatorRequest {
    /// Report the clock.
    Clock,
    /// Make the connections.
    Prepare(Box<Config>, WorkerRange),
    /// Start when the agent's clock shows this time, in nanoseconds.
    Start(u64),
    /// End the run early.
    Stop,
}

/// A message of an agent.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum AgentResponse {
    /// The agent accepts the coordinator.
    Welcome {
        /// Worker threads.
        threads: usize,
        /// Share of the rate per connection.
        weight: u32,
    },
    /// The agent's clock, in nanoseconds since an arbitrary time.
    Clock(u64),
    /// The load is prepared.
    Ready,
    /// The agent can't do what was requested.
    Failed(String),
    /// Heartbeat during a run.
    Running(Option<Progress>),
    /// The run is over.
    Done(Box<Measurement>),
}
