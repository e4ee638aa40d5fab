//! What was measured of a contender once.

use std::collections::BTreeMap;

use serde::Serialize;

use super::figure::Figure;
use crate::fleet::FleetWindow;

/// What was measured of a contender once.
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct Turn {
    /// The figures. What the machine does not count is not there.
    pub figures: BTreeMap<Figure, f64>,
    /// Latencies as ends of buckets in ns, ascending, with the number of requests in each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub latencies: Vec<(u64, u64)>,
    /// Under an alternating rate, latencies by the time since the last step.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<FleetWindow>,
    /// How a law drove the server's queue at the end. `None` without a law.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Why the turn does not count, if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invalid: Option<String>,
    /// CPU time that the hypervisor took from the cores that work for the server (steal), as a share of one core. `None`: that
    /// of all cores counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steal: Option<f64>,
    /// Whatever else is worth keeping.
    #[serde(skip_serializing_if = "serde_json::Value::is_null")]
    pub detail: serde_json::Value,
}

impl Turn {
    /// A turn with these figures. Those that are not finite are left out.
    pub fn new(figures: impl IntoIterator<Item = (Figure, f64)>) -> Self {
        let mut turn = Self::default();
        figures.into_iter().for_each(|(figure, value)| turn.set(figure, value));
        turn
    }

    /// A turn that does not count.
    pub fn invalid(reason: impl Into<String>) -> Self {
        Self { invalid: Some(reason.into()), ..Self::default() }
    }

    /// Adds a figure, unless it is not finite.
    pub fn set(&mut self, figure: Figure, value: f64) {
        if value.is_finite() {
            self.figures.insert(figure, value);
        }
    }

    /// A figure; NaN if the turn doesn't have it.
    pub fn get(&self, figure: Figure) -> f64 {
        self.figures.get(&figure).copied().unwrap_or(f64::NAN)
    }
}
