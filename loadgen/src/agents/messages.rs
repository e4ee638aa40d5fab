//! The messages between coordinator and agents.

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::run::measured_run::WorkerRange;
use crate::stats::collector::Measurement;
use crate::stats::progress::Progress;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum CoordinatorRequest {
    Clock,
    Prepare(Box<Config>, WorkerRange),
    /// Start when the agent's clock shows this time, in nanoseconds.
    Start(u64),
    Stop,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum AgentResponse {
    Welcome {
        threads: usize,
        /// Share of the rate per connection.
        weight: u32,
    },
    /// The agent's clock, in nanoseconds since an arbitrary time.
    Clock(u64),
    Ready,
    /// The agent can't do what was requested.
    Failed(String),
    Running(Option<Progress>),
    Done(Box<Measurement>),
}
