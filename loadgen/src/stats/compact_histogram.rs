//! Histogram that stores only non-empty buckets.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The non-empty buckets of a histogram, in ascending order: highest value and count. The
/// conversion in both directions is lossless.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct CompactHistogram(Vec<(u64, u64)>);

impl CompactHistogram {
    pub(crate) fn from_histogram(histogram: &Histogram<u64>) -> Self {
        let recorded = histogram.iter_recorded();
        let bucket = |value| histogram.highest_equivalent(value);
        Self(recorded.map(|step| (bucket(step.value_iterated_to()), step.count_at_value())).collect())
    }

    /// Adds the samples of another histogram.
    pub(crate) fn merge(&mut self, other: Self) {
        if self.0.is_empty() {
            *self = other;
            return;
        }
        let mut merged = Vec::with_capacity(self.0.len() + other.0.len());
        let (mut mine, mut theirs) = (self.0.iter().peekable(), other.0.iter().peekable());
        loop {
            let next = match (mine.peek(), theirs.peek()) {
                (Some(a), Some(b)) if a.0 == b.0 => (a.0, a.1 + b.1),
                (Some(a), Some(b)) if a.0 < b.0 => **a,
                (_, Some(b)) => **b,
                (Some(a), None) => **a,
                (None, None) => break,
            };
            mine.next_if(|one| one.0 == next.0);
            theirs.next_if(|one| one.0 == next.0);
            merged.push(next);
        }
        self.0 = merged;
    }

    pub(crate) fn add_to(&self, histogram: &mut Histogram<u64>) {
        for &(value, count) in &self.0 {
            histogram.saturating_record_n(value, count);
        }
    }

    /// The smallest value that at least a share of the samples doesn't exceed; 0 for an empty
    /// histogram.
    pub(crate) fn quantile(&self, share: f64) -> u64 {
        let rank = (share * self.count() as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let at = self.0.iter().find(|(_, count)| {
            seen += count;
            seen >= rank
        });
        at.map_or(0, |(value, _)| *value)
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    /// Adds a sample that is not below any other one.
    pub(crate) fn push(&mut self, value: u64) {
        match self.0.last_mut() {
            Some((last, count)) if *last == value => *count += 1,
            _ => self.0.push((value, 1)),
        }
    }

    pub(crate) fn sum(&self) -> f64 {
        self.0.iter().map(|(value, count)| *value as f64 * *count as f64).sum()
    }
}
