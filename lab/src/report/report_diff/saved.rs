//! What a comparison of two reports reads of each one's JSON. Unknown fields are passed over, so that reports of other
//! versions can be read.

use loadgen::interleaved_rounds::DistanceClass;
use loadgen::medians::TARGET_CONFIDENCE;
use policies::host::Machine;
use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize)]
pub(super) struct SavedReport {
    pub(super) machine: Machine,
    pub(super) cores_awake: bool,
    pub(super) congestion_control: String,
    pub(super) config: SavedConfig,
    pub(super) result: SavedResult,
}

#[derive(Debug, Deserialize)]
pub(super) struct SavedConfig {
    pub(super) connections: usize,
    pub(super) depth: usize,
    pub(super) capacity_p99_us: f64,
    #[serde(default)]
    pub(super) think_us: f64,
    #[serde(default)]
    pub(super) requests: serde_json::Value,
    #[serde(default)]
    pub(super) contenders: Vec<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
pub(super) struct SavedResult {
    pub(super) capacity: SavedLoad<SavedCapacity>,
    pub(super) loads: Vec<SavedLoad<SavedRow>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct SavedLoad<R> {
    pub(super) share: Option<f64>,
    pub(super) classes: Vec<SavedClass<R>>,
    pub(super) measured: SavedRounds,
}

impl<R> SavedLoad<R> {
    /// What two reports' loads have in common. The rates of a share differ, as the capacities do.
    pub(super) fn name(&self) -> String {
        self.share.map_or_else(|| self.measured.load.clone(), |share| format!("{:.0} %", share * 100.0))
    }

    /// Requests per second of an open loop.
    pub(super) fn rate(&self) -> Option<f64> {
        self.measured.load.strip_suffix("/s")?.parse().ok()
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct SavedRounds {
    pub(super) load: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct SavedClass<R> {
    pub(super) class: DistanceClass,
    pub(super) rows: Vec<R>,
}

#[derive(Debug, Deserialize)]
pub(super) struct SavedCapacity {
    pub(super) name: String,
    pub(super) rate: SavedInterval,
    pub(super) ratio: SavedInterval,
}

#[derive(Debug, Deserialize)]
pub(super) struct SavedRow {
    pub(super) name: String,
    pub(super) reference: String,
    pub(super) p50_us: SavedInterval,
    pub(super) p99_us: SavedInterval,
    pub(super) cpu_us: SavedInterval,
    pub(super) p50_ratio: SavedInterval,
    pub(super) p99_ratio: SavedInterval,
    pub(super) cpu_ratio: SavedInterval,
}

/// A median with its interval. JSON has null for what was not measured.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct SavedInterval {
    median: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
    confidence: Option<f64>,
    pub(super) count: usize,
}

impl SavedInterval {
    pub(super) fn median(&self) -> Option<f64> {
        self.median.filter(|_| self.count > 0)
    }

    /// Both ends, if the interval contains the true median with 95 % probability.
    pub(super) fn ends(&self) -> Option<(f64, f64)> {
        let (low, high) = (self.low?, self.high?);
        (self.confidence? >= TARGET_CONFIDENCE).then_some((low, high))
    }

    pub(super) fn text(&self, digits: usize) -> String {
        match (self.median(), self.ends()) {
            (None, _) => "not measured".to_owned(),
            (Some(median), Some((low, high))) => {
                format!("{median:.digits$} [{low:.digits$}, {high:.digits$}]")
            }
            (Some(median), None) => format!("{median:.digits$} (no interval)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_read_as_such() {
        let json = r#"{"median":null,"low":null,"high":null,"confidence":0.0,"count":0}"#;
        let interval: SavedInterval = serde_json::from_str(json).unwrap();
        assert_eq!((interval.median(), interval.ends()), (None, None));
        assert_eq!(interval.text(1), "not measured");
    }
}
