//! Histograms: dense ones to record into, and hdrhistogram's V2 format to keep and send them.

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
    Histogram::new_with_bounds(1, largest.max(2), DIGITS).expect("valid bounds")
}

/// A histogram that only has memory for values up to the largest one so far.
pub(crate) fn growing_histogram() -> Histogram<u64> {
    let mut histogram = up_to(0);
    histogram.auto(true);
    histogram
}

pub(crate) fn sum<'a>(histograms: impl IntoIterator<Item = &'a EncodedHistogram>) -> Histogram<u64> {
    let mut sum = growing_histogram();
    histograms.into_iter().for_each(|histogram| histogram.add_to(&mut sum));
    sum
}

/// A histogram in the V2 format, which takes a few bytes for each value that occurs. Without values
/// it has no bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>")]
pub(crate) struct EncodedHistogram(Vec<u8>);

impl EncodedHistogram {
    pub(crate) fn new(histogram: &Histogram<u64>) -> Self {
        let mut bytes = Vec::new();
        if !histogram.is_empty() {
            // Decoding allocates what the bounds need.
            let mut small = up_to(histogram.max());
            small.add(histogram).expect("bounds that contain the largest value");
            V2Serializer::new().serialize(&small, &mut bytes).expect("counts that fit into 63 bits");
        }
        Self(bytes)
    }

    pub(crate) fn add_to(&self, histogram: &mut Histogram<u64>) {
        if let Some(own) = self.decode() {
            histogram.add(own).expect("bounds that contain every value, or grow");
        }
    }

    pub(crate) fn merge(&mut self, other: Self) {
        if self.0.is_empty() {
            *self = other;
        } else if !other.0.is_empty() {
            *self = Self::new(&sum([&*self, &other]));
        }
    }

    /// `None` if it is empty or can't be decoded, which it can unless it was received.
    fn decode(&self) -> Option<Histogram<u64>> {
        Deserializer::new().deserialize(&mut &*self.0).ok()
    }
}

impl TryFrom<Vec<u8>> for EncodedHistogram {
    type Error = &'static str;

    /// Accepts what another generator has encoded.
    fn try_from(bytes: Vec<u8>) -> Result<Self, Self::Error> {
        let encoded = Self(bytes);
        if encoded.0.is_empty() {
            return Ok(encoded);
        }
        // The decoder allocates as many bytes as are announced.
        let announced = encoded
            .0
            .get(4..8)
            .map(|length| u32::from_be_bytes([length[0], length[1], length[2], length[3]]));
        if announced.is_none_or(|announced| announced as usize > encoded.0.len()) {
            return Err("a histogram is incomplete");
        }
        match encoded.decode() {
            Some(own)
                if own.low() == 1
                    && own.sigfig() == DIGITS
                    && own.max() <= own.highest_equivalent(LARGEST_VALUE)
                    && own.len() <= MOST_VALUES =>
            {
                Ok(encoded)
            }
            _ => Err("a histogram is invalid"),
        }
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
        let mut histogram = new_histogram();
        EncodedHistogram::try_from(good.clone()).unwrap().add_to(&mut histogram);
        assert_eq!((histogram.len(), histogram.value_at_quantile(0.5)), (4, 7));
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
            assert!(EncodedHistogram::try_from(bad.clone()).is_err(), "{bad:?}");
        }
    }
}
