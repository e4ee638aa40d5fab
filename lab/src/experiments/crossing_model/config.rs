//! How much the model measures.

use serde::Serialize;

/// How much the model measures.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ModelConfig {
    /// Batches of crossings, at most 400.
    pub batches: usize,
    /// Rounds of each comparison.
    pub rounds: usize,
    /// Seconds of an exchange at one size.
    pub exchange: f64,
    /// Seconds of load before a measurement of a server.
    pub warm_up: f64,
    /// Seconds of a measurement of a server.
    pub duration: f64,
    /// Seconds that all may take. Rounds that have begun are finished.
    pub seconds: f64,
}

impl ModelConfig {
    /// About five minutes, or one if `quick`; `seconds` limits it further, or lets it take longer.
    pub fn new(quick: bool, seconds: Option<f64>) -> Self {
        Self {
            batches: if quick { 200 } else { 400 },
            rounds: if quick { 10 } else { 20 },
            exchange: if quick { 0.02 } else { 0.05 },
            warm_up: if quick { 0.1 } else { 0.2 },
            duration: if quick { 0.2 } else { 0.8 },
            seconds: seconds.unwrap_or(if quick { 50.0 } else { 270.0 }),
        }
    }
}
