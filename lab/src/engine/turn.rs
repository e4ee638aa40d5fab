//! What was measured of a contender once.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer as _, V2DeflateSerializer};
use serde::ser::Error;
use serde::{Serialize, Serializer};

use super::figure::Figure;
use crate::fleet::FleetWindow;

#[derive(Debug, Clone, Default, Serialize)]
pub struct Turn {
    /// The figures. What the machine does not count is not there.
    pub figures: BTreeMap<Figure, f64>,
    /// Latencies as ends of buckets in ns, ascending, with the number of requests in each. Reports
    /// have them as a histogram in HdrHistogram's format V2, compressed, in base64, which its tools
    /// read.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_histogram")]
    pub latencies: Vec<(u64, u64)>,
    /// Under an alternating rate, latencies by the time since the last step.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<FleetWindow>,
    /// How a controller drove the server's queue at the end. `None` without a controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invalid: Option<String>,
    /// CPU time that the hypervisor took from the cores that work for the server (steal), as a
    /// share of one core. `None`: that of all cores counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steal: Option<f64>,
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

fn as_histogram<S: Serializer>(latencies: &[(u64, u64)], serializer: S) -> Result<S::Ok, S::Error> {
    let mut histogram = Histogram::<u64>::new(2).map_err(S::Error::custom)?;
    for &(end, count) in latencies {
        histogram.record_n(end, count).map_err(S::Error::custom)?;
    }
    let mut bytes = Vec::new();
    V2DeflateSerializer::new().serialize(&histogram, &mut bytes).map_err(S::Error::custom)?;
    serializer.serialize_str(&STANDARD.encode(bytes))
}

#[cfg(test)]
mod tests {
    use hdrhistogram::serialization::Deserializer;

    use super::*;

    #[test]
    fn latencies_are_saved_in_little_space_and_in_full() {
        // As many buckets as a turn fills.
        let mut ends: Vec<u64> = (8_000..2_000_000).step_by(40).collect();
        let buckets = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 2).unwrap();
        ends.iter_mut().for_each(|end| *end = buckets.highest_equivalent(*end));
        ends.dedup();
        let latencies: Vec<(u64, u64)> = ends.into_iter().zip((1..90).cycle()).collect();
        let turn = Turn { latencies: latencies.clone(), ..Turn::default() };
        let saved = serde_json::to_value(&turn).unwrap();
        let text = saved["latencies"].as_str().unwrap();
        assert!(latencies.len() > 900 && text.len() < 2 * latencies.len(), "{}", text.len());
        let bytes = STANDARD.decode(text).unwrap();
        let read: Histogram<u64> = Deserializer::new().deserialize(&mut &bytes[..]).unwrap();
        let read: Vec<(u64, u64)> = read
            .iter_recorded()
            .map(|it| (read.highest_equivalent(it.value_iterated_to()), it.count_at_value()))
            .collect();
        assert_eq!(read, latencies);
    }
}
