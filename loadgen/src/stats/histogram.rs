//! Histograms: dense ones to record into and to draw figures from, sparse ones to keep and to send.

use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer as _, V2Serializer};
use serde::{Deserialize, Serialize};

/// The largest value of a histogram, in nanoseconds: an hour.
pub(crate) const LARGEST_VALUE: u64 = 3_600_000_000_000;
const DIGITS: u8 = 3;
/// The most values in a histogram that was received, so that no sum overflows.
const MOST_VALUES: u64 = 1 << 48;

/// A histogram with room for every value.
pub(crate) fn new_histogram() -> Histogram<u64> {
    up_to(LARGEST_VALUE)
}

fn up_to(largest: u64) -> Histogram<u64> {
    // Bounds of at least 1 and 2, and at most 5 digits, are valid.
    Histogram::new_with_bounds(1, largest, DIGITS).expect("valid bounds")
}

/// A histogram that only has memory for values up to the largest one so far.
pub(crate) fn growing_histogram() -> Histogram<u64> {
    let mut histogram = up_to(2);
    histogram.auto(true);
    histogram
}

pub(crate) fn sum<'a>(histograms: impl IntoIterator<Item = &'a SparseHistogram>) -> Histogram<u64> {
    let mut sum = growing_histogram();
    for (value, count) in histograms.into_iter().flat_map(|histogram| &histogram.0) {
        sum.record_n(*value, *count).expect("a histogram that grows");
    }
    sum
}

/// The values of a histogram that occur, in ascending order, with their counts. A run has one for
/// each interval, which as a dense histogram would take gigabytes.
///
/// Agents send it as a histogram in the V2 format.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub(crate) struct SparseHistogram(Vec<(u64, u64)>);

impl SparseHistogram {
    pub(crate) fn new(histogram: &Histogram<u64>) -> Self {
        let recorded = histogram.iter_recorded();
        let value = |value| histogram.highest_equivalent(value);
        Self(recorded.map(|step| (value(step.value_iterated_to()), step.count_at_value())).collect())
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.0.extend(other.0);
        // Two sorted parts, which takes linear time.
        self.0.sort_by_key(|(value, _)| *value);
        self.0.dedup_by(|(value, count), kept| {
            let same = *value == kept.0;
            kept.1 += if same { *count } else { 0 };
            same
        });
    }
}

impl From<SparseHistogram> for Vec<u8> {
    /// Nothing for an empty histogram.
    fn from(histogram: SparseHistogram) -> Self {
        let mut bytes = Self::new();
        if !histogram.0.is_empty() {
            V2Serializer::new().serialize(&sum([&histogram]), &mut bytes).expect("counts below 2^63");
        }
        bytes
    }
}

impl TryFrom<Vec<u8>> for SparseHistogram {
    type Error = &'static str;

    fn try_from(bytes: Vec<u8>) -> Result<Self, Self::Error> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        // The decoder allocates as many bytes as are announced.
        let announced =
            bytes.get(4..8).map(|length| u32::from_be_bytes([length[0], length[1], length[2], length[3]]));
        if announced.is_none_or(|announced| announced as usize > bytes.len()) {
            return Err("a histogram is incomplete");
        }
        let decoded = Deserializer::new().deserialize::<u64, _>(&mut &*bytes).ok().filter(|decoded| {
            (decoded.low(), decoded.sigfig()) == (1, DIGITS)
                && decoded.max() <= decoded.highest_equivalent(LARGEST_VALUE)
                && decoded.len() <= MOST_VALUES
        });
        decoded.map(|decoded| Self::new(&decoded)).ok_or("a histogram is invalid")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(largest: u64, digits: u8, values: &[(u64, u64)]) -> Vec<u8> {
        let mut histogram = Histogram::<u64>::new_with_bounds(1, largest, digits).unwrap();
        values.iter().for_each(|(value, count)| histogram.record_n(*value, *count).unwrap());
        let mut bytes = Vec::new();
        V2Serializer::new().serialize(&histogram, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn what_is_received_is_refused_unless_it_can_be_added() {
        let good = of(LARGEST_VALUE, DIGITS, &[(7, 3), (LARGEST_VALUE, 1)]);
        let histogram = SparseHistogram::try_from(good.clone()).unwrap();
        assert_eq!((histogram.count(), sum([&histogram]).value_at_quantile(0.5)), (4, 7));
        let mut endless = good.clone();
        endless[4..8].fill(0xff);
        for bad in [
            b"{}".to_vec(),
            good[..good.len() - 1].to_vec(),
            endless,
            of(LARGEST_VALUE, 2, &[(7, 1)]),
            of(4 * LARGEST_VALUE, DIGITS, &[(2 * LARGEST_VALUE, 1)]),
            of(LARGEST_VALUE, DIGITS, &[(7, 1 << 49)]),
        ] {
            assert!(SparseHistogram::try_from(bad.clone()).is_err(), "{bad:?}");
        }
    }
}
