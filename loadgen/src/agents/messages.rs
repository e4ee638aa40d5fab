//! What masters and agents tell each other.

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::progress::Progress;
use crate::run::{Measured, Share};

/// From a master.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// What time is it?
    Time,
    /// Make the connections.
    Prepare(Box<Config>, Share),
    /// Begin when the agent's clock says so, in nanoseconds of its own.
    Begin(u64),
    /// End before the time is over.
    Stop,
}

/// From an agent.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Word {
    /// It takes part.
    Welcome {
        /// Its threads.
        threads: usize,
        /// How much of the rate it takes, for each of its connections.
        weight: u32,
    },
    /// Its clock, nanoseconds since some beginning.
    Time(u64),
    /// All is prepared.
    Ready,
    /// It can't do what it was told to.
    Failed(String),
    /// It is at work.
    Working(Option<Progress>),
    /// The run is over.
    Done(Box<Measured>),
}
