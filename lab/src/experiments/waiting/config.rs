//! How much is measured.

use std::time::Duration;

use runtime::{DriverKind, WaitStrategy};
use serde::{Serialize, Serializer};

use super::gap::Gap;

/// The strategies, by index of contestant.
pub(super) const STRATEGIES: [WaitStrategy; 3] =
    [WaitStrategy::Block, WaitStrategy::Spin, WaitStrategy::Adaptive];
pub(super) const BLOCK: usize = 0;
pub(super) const SPIN: usize = 1;
pub(super) const ADAPTIVE: usize = 2;

/// How much is measured.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct WaitingConfig {
    /// Rounds of each comparison.
    pub rounds: usize,
    /// What passes between an answer and the next message.
    pub gaps: Vec<Gap>,
    /// Seconds of messages at one gap before a measurement. It ends earlier after [`WaitingConfig::WARM_UP_MESSAGES`].
    pub message_warm_up: f64,
    /// Seconds of a measurement at one gap.
    pub message_duration: f64,
    /// The workers' driver.
    pub driver: DriverKind,
    /// Requests per second at the memcached server.
    pub rate: f64,
    /// Connections to the memcached server.
    pub connections: usize,
    /// Seconds of load before a measurement of the server.
    pub server_warm_up: f64,
    /// Seconds of a measurement of the server.
    pub server_duration: f64,
    /// Seconds that all may take. Rounds that have begun are finished.
    pub seconds: f64,
    /// The strategies that are compared.
    #[serde(serialize_with = "as_texts")]
    pub strategies: Vec<WaitStrategy>,
}

impl WaitingConfig {
    /// Messages after which a warm-up ends: more than an adaptive wait needs to learn that the gaps have changed.
    pub const WARM_UP_MESSAGES: u64 = 400;
    /// A low load on a memcached server, in requests per second.
    pub const RATE: f64 = 5_000.0;

    /// About five minutes, or one if `quick`; `seconds` limits it further, or lets it take longer.
    pub fn new(quick: bool, seconds: Option<f64>) -> Self {
        let gaps = [1, 10, 50, 100, 1_000].map(|micros| Gap::Fixed(Duration::from_micros(micros)));
        Self {
            rounds: if quick { 7 } else { 16 },
            gaps: gaps.into_iter().chain([Gap::Mixed]).collect(),
            message_warm_up: if quick { 0.02 } else { 0.05 },
            message_duration: if quick { 0.04 } else { 0.12 },
            driver: DriverKind::Epoll,
            rate: Self::RATE,
            connections: 8,
            server_warm_up: if quick { 0.1 } else { 0.2 },
            server_duration: if quick { 0.4 } else { 1.0 },
            seconds: seconds.unwrap_or(if quick { 55.0 } else { 280.0 }),
            strategies: STRATEGIES.to_vec(),
        }
    }
}

fn as_texts<S: Serializer>(strategies: &[WaitStrategy], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(strategies.iter().map(ToString::to_string))
}
